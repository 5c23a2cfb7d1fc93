"""Messages: from send to the next step (C), as many as go (C1, C50), request and reply (D)."""

from __future__ import annotations

import threading
import time
from typing import Any

from tests.benchmarks.rig import LONG, Rig, history_span, latencies
from tests.waiting import until

#: Threads that send at once.
SENDERS = 4


def all_wait(handles: list[Any]) -> None:
    """Until all of them wait for a message."""
    from rivet_workflows.models import Run

    runs = Run.objects.filter(actor_id__in=[handle.actor_id for handle in handles])
    waiting = runs.filter(inflight__contains='"q":')
    until(lambda: waiting.count() == len(handles), "all wait for a message", LONG)


def send_and_see(rig: Rig, handle: Any, n: int) -> float:
    """Seconds from before a send until the step that answers it is committed: the next one has begun."""
    began = time.perf_counter()
    handle.send("q", n)
    return rig.mark() - began


def one_after_the_other(rig: Rig) -> None:
    """C: sends to an idle actor, each from before the call until the step behind the message is committed."""
    rig.worker()
    count = rig.sizes.sends
    actor = rig.create("bench_receiver", messages=count, mark=True)
    all_wait([actor])
    found = []
    for n in range(count):
        found.append(send_and_see(rig, actor, n))
        time.sleep(0.01)
    actor.result(timeout=60)
    rig.emit("C", **latencies(found))


def to_one(rig: Rig) -> None:
    """C1: many messages to one actor, a step each."""
    rig.worker()
    count = rig.sizes.to_one
    actor = rig.create("bench_receiver", messages=count)
    all_wait([actor])
    began = time.perf_counter()
    for n in range(count):
        actor.send("q", n)
    sent = time.perf_counter() - began
    actor.result(timeout=LONG)
    rig.emit("C1", msgs_s=round(count / (time.perf_counter() - began)), send_s=round(count / sent))


def to_many(rig: Rig) -> None:
    """C50: so many messages to each of many actors, from several threads; C50-before: queued while no worker runs."""
    rig.worker()
    actors = _receivers(rig)
    all_wait(actors)
    total = len(actors) * rig.sizes.to_each
    began = time.perf_counter()
    threads = [
        threading.Thread(target=_send_all, args=(actors[k::SENDERS], rig.sizes.to_each))
        for k in range(SENDERS)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    sent = time.perf_counter() - began
    rig.await_all(actors)
    rig.emit("C50", msgs_s=round(total / (time.perf_counter() - began)), send_s=round(total / sent))

    rig.stop()
    actors = _receivers(rig)
    _send_all(actors, rig.sizes.to_each)
    rig.worker()
    rig.await_all(actors)
    rig.emit("C50-before", msgs_s=round(total / history_span(actors)))


def _receivers(rig: Rig) -> list[Any]:
    return [
        rig.create("bench_receiver", messages=rig.sizes.to_each)
        for _ in range(min(50, 10 * rig.sizes.workflows))
    ]


def _send_all(actors: list[Any], count: int) -> None:
    from django.db import connections

    for n in range(count):
        for actor in actors:
            actor.send("q", n)
    if threading.current_thread() is not threading.main_thread():
        connections.close_all()


def request_and_reply(rig: Rig) -> None:
    """D: a message and its answer, one after the other."""
    rig.worker()
    count = rig.sizes.replies
    actor = rig.create("bench_replier", messages=count)
    all_wait([actor])
    found = []
    for n in range(count):
        began = time.perf_counter()
        answer = actor.send("q", n, wait=True, timeout=60)
        found.append(time.perf_counter() - began)
        assert (answer.status, answer.response) == ("completed", n)
    rig.emit("D", **latencies(found))
