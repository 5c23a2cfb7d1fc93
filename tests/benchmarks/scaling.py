"""What each verb takes beside a thousand to a million actors that have finished, and as many that sleep (S)."""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from uuid import UUID

from tests.benchmarks.messages import all_wait, send_and_see
from tests.benchmarks.rig import Rig, latencies, timed

#: Claims, and repetitions of what is quick.
CLAIMS, TIMES = 5, 30
#: Seconds that the sleeping actors would still sleep.
FOR_LONG = 10_000_000


def scale(rig: Rig) -> None:
    """S: medians, in ms, of each verb of callers and workers, at each size of the population."""
    from tests.benchmarks.population import Template

    rig.worker()
    finished = rig.create("bench_steps", mode="async", steps=2)
    sleeping = rig.create("bench_receiver", messages=1, mark=True, timeout=FOR_LONG)
    rig.await_all([finished])
    all_wait([sleeping])
    rig.stop()  # it gives the sleeping one back
    fresh = rig.create("bench_receiver", messages=1)
    ended, asleep = Template(finished.actor_id), Template(sleeping.actor_id)
    unborn = Template(fresh.actor_id)
    ids: list[UUID] = []
    there = 0
    for size in rig.sizes.populations:
        built = timed(lambda: ids.extend(_grow(ended, asleep, size - there)))  # noqa: B023
        there = size
        unborn.copy(CLAIMS * rig.sizes.claimed, "due")
        with ThreadPoolExecutor(1, initializer=_tuned) as thread:
            found = thread.submit(_verbs, rig).result()
        found |= _callers(rig, ids)
        rig.emit("S", N=f"{size} finished, {size} sleeping", built_s=round(built, 1), **found)
        _wakes(rig, ids, size)


def _grow(ended: Any, asleep: Any, by: int) -> list[UUID]:
    from django.db import connection

    ended.copy(by, "finished")
    made = list(asleep.copy(by, "sleeping"))
    if connection.vendor == "postgresql":
        # As the server does by itself a minute later, where nobody has switched that off.
        with connection.cursor() as cursor:
            cursor.execute("ANALYZE")
    return made


def _tuned() -> None:
    from rivet_workflows.store import get_store

    get_store().tune_connection()


def _verbs(rig: Rig) -> dict[str, float]:
    """What a worker does, in its manner."""
    from django.db import connection

    from rivet_workflows.records import CommitItem, Look, Outgoing, Release
    from rivet_workflows.store import get_store

    store, size = get_store(), rig.sizes.claimed
    worker_id = store.register_worker("host", 1, {"bench_receiver": "x"})
    types = {"bench_receiver": "x"}
    groups: list[list[Any]] = []
    ms: dict[str, float] = {}
    ms[f"claim_{size}"] = _median(lambda: groups.append(store.claim(worker_id, types, size)[0]), CLAIMS)
    assert [len(group) for group in groups] == [size] * CLAIMS
    ms["claim_none"] = _median(lambda: store.claim(worker_id, types, size))
    group = groups[0]
    for c in group:
        store.send([Outgoing(c.actor_id, "q", "1")])
    ms["wakes_of_held"] = _median(lambda: store.due_wakes_of_held(worker_id, types))
    looked: list[Any] = []
    ms[f"look_{size}"] = _median(
        lambda: looked.append(store.look([Look(c.actor_id, ("q",)) for c in group])), CLAIMS
    )
    takes = {found.actor_id: [m.id for m in found.messages] for found in looked[0]}
    items = [
        CommitItem(c.actor_id, c.epoch, c.commit_no, c.next_seq, "", takes=takes[c.actor_id]) for c in group
    ]
    ms[f"take_{size}"] = round(timed(lambda: store.commit_group(items)) * 1e3, 2)
    releases = [[Release(c.actor_id, c.epoch) for c in some] for some in groups]
    ms[f"release_{size}"] = _median(lambda: store.release(releases.pop()), CLAIMS)
    ms["prune_nothing"] = _median(store.prune, CLAIMS)
    store.claim(worker_id, types, size)  # the wakes of what was sent
    store.forget_worker(worker_id)
    connection.close()
    return ms


def _callers(rig: Rig, sleeping: list[UUID]) -> dict[str, float]:
    """What callers do; pages of lists from the start and from the middle."""
    from rivet_workflows import client

    some = [client.get_for_id(actor_id) for actor_id in random.sample(sleeping, min(TIMES, len(sleeping)))]
    targets = iter(some)
    middle = sleeping[len(sleeping) // 2]
    return {
        "get": _median(lambda: client.get("bench_receiver", some[0].key)),
        "create": _median(lambda: rig.create("bench_steps", mode="async", steps=0)),
        "send_delayed": _median(lambda: next(targets).send("q", 1, delay=FOR_LONG), len(some)),
        "list_live": _median(lambda: client.list("bench_receiver", status="live", limit=50)),
        "list_completed_middle": _median(
            lambda: client.list("bench_steps", status="completed", limit=50, after=middle)
        ),
        "list_failed": _median(lambda: client.list("bench_steps", status="failed", limit=50)),
        "list_all_middle": _median(lambda: client.list(limit=50, after=middle)),
        "list_failed_of_all": _median(lambda: client.list(status="failed", limit=50)),
    }


def _wakes(rig: Rig, sleeping: list[UUID], size: int) -> None:
    """C among them: messages to actors that sleep as rows."""
    from rivet_workflows import client

    rig.worker()
    found = []
    for _ in range(min(rig.sizes.starts, len(sleeping))):
        actor = client.get_for_id(sleeping.pop(random.randrange(len(sleeping))))
        found.append(send_and_see(rig, actor, 1))
        time.sleep(0.01)
    rig.emit("C", how=f"asleep among {size} finished and {size} sleeping", **latencies(found))
    rig.stop()


def _median(call: Callable[[], Any], times: int = TIMES) -> float:
    return round(statistics.median(timed(call) for _ in range(times)) * 1e3, 2)
