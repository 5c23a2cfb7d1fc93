"""Two workers, 200 actors, PostgreSQL, and a trigger that writes down every change of a run row.

    python -m tests.faults.audit

One worker is stopped with SIGSTOP past its lease while it holds actors with running steps, and goes on later. In the
end each (actor, epoch) has had one owner, commit numbers have no gaps and none twice, the stopped worker has committed
nothing for the actors that were taken from it, and the ledger has every step of every actor.
"""

from __future__ import annotations

import signal
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

from tests.cluster.cluster import WorkerProcess, read_ledger, run_scenario
from tests.waiting import until

ACTORS = 200
TRIGGER = """
CREATE TABLE audit (id bigserial PRIMARY KEY, actor_id uuid, epoch int, old_no bigint, new_no bigint,
                    old_owner bigint, new_owner bigint);
CREATE FUNCTION note() RETURNS trigger AS $$ BEGIN
  INSERT INTO audit (actor_id, epoch, old_no, new_no, old_owner, new_owner)
  VALUES (NEW.actor_id, NEW.epoch, OLD.commit_no, NEW.commit_no, OLD.owner_id, NEW.owner_id); RETURN NEW;
END $$ LANGUAGE plpgsql;
CREATE TRIGGER audit AFTER UPDATE ON rivet_run FOR EACH ROW EXECUTE FUNCTION note();
"""


def check() -> dict[str, int]:
    """What the audit table says. Raises AssertionError."""
    from django.db import connection

    with connection.cursor() as cursor:
        cursor.execute("SELECT actor_id, epoch, old_no, new_no, old_owner, new_owner FROM audit ORDER BY id")
        rows = cursor.fetchall()
    owners: dict[tuple[object, int], set[int]] = {}
    numbers: dict[object, list[int]] = {}
    for actor, epoch, old_no, new_no, old_owner, new_owner in rows:
        # The owner of a commit is who held the actor before it: a final commit clears the owner.
        owner = old_owner if new_no != old_no else new_owner
        if owner is not None:
            owners.setdefault((actor, epoch), set()).add(owner)
        if new_no != old_no:
            assert new_no == old_no + 1, f"{actor}: commit number from {old_no} to {new_no}"
            numbers.setdefault(actor, []).append(new_no)
    shared = {key: found for key, found in owners.items() if len(found) > 1}
    assert not shared, f"more than one owner: {shared}"
    for actor, found in numbers.items():
        assert found == list(range(1, len(found) + 1)), f"{actor}: commit numbers {found}"
    return {"changes": len(rows), "commits": sum(map(len, numbers.values())), "holdings": len(owners)}


def story(folder: Path) -> dict[str, Any]:
    from django.db import connection

    from rivet_workflows import client
    from rivet_workflows.models import Actor, Run, Worker
    from rivet_workflows.records import Lifecycle

    with connection.cursor() as cursor:
        cursor.execute(TRIGGER)
    log = folder / "log"
    with WorkerProcess(log=log) as first, WorkerProcess(log=log) as second:
        until(lambda: Worker.objects.count() == 2, "both workers are there")
        for n in range(ACTORS):
            client.create("slow_steps", str(n), input={"steps": 6, "ms": 150})
        until(
            lambda: Run.objects.exclude(owner_id=None).values("owner_id").distinct().count() == 2,
            "two owners",
        )
        until(lambda: len(read_ledger(folder / "ledger")) > 50, "steps run")
        first.kill(signal.SIGSTOP)
        held = dict(Run.objects.exclude(owner_id=None).values_list("actor_id", "owner_id"))
        done = Actor.objects.filter(lifecycle=int(Lifecycle.COMPLETED)).count
        until(lambda: done() >= ACTORS // 2, "half of them are done")
        began = time.monotonic()
        until(lambda: done() == ACTORS, "all are done without the stopped worker", 120)
        waited = time.monotonic() - began
        first.kill(signal.SIGCONT)
        client.create("slow_steps", "after", input={"steps": 2, "ms": 1}).result(timeout=30)
        assert first.process.poll() is None, "the worker that was stopped is gone"
        for worker in (first, second):
            worker.kill(signal.SIGTERM)
            assert worker.wait(30) == 0
    found = check()
    calls = Counter(call.key for call in read_ledger(folder / "ledger"))
    per_actor = Counter(key.rsplit(":", 1)[0] for key in calls)
    wrong = {a: n for a, n in per_actor.items() if n != 6 and n != 2}
    assert len(per_actor) == ACTORS + 1, f"{len(per_actor)} actors in the ledger"
    assert not wrong, f"steps per actor: {wrong}"
    assert max(calls.values()) <= 2
    twice = sum(n > 1 for n in calls.values())
    return {**found, "held_at_stop": len(held), "ran_twice": twice, "seconds": round(waited, 1)}


if __name__ == "__main__":
    sys.exit(
        run_scenario(
            "postgres",
            lambda folder: [story(folder)],
            RIVET_CLUSTER_LEASE="1",
            RIVET_CLUSTER_HEARTBEAT="0.25",
            RIVET_CLUSTER_LOG="WARNING",
        )
    )
