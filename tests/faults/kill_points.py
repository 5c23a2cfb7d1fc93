"""Kill a real worker with SIGKILL at every named crash point, let another take over, and count in a ledger outside.

    python -m tests.faults.kill_points --database sqlite [--points before-commit,after-commit]

For each point and passage: an actor whose story has steps of both kinds, a loop fed by a queue, a sleep and prunes; a
worker that dies there; then one that does not. In the end the story is complete, no step that was committed before
the kill ran again after it, and none ran more than twice. Prints a JSON line per kill; exits 1 with the reason when a
promise was broken or a point was never reached.
"""

from __future__ import annotations

import argparse
import signal
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rivet_workflows.crashpoints import POINTS
from tests.cluster.cluster import WorkerProcess, read_ledger, run_scenario
from tests.waiting import until

#: Those within an action on a worker have tests of their own, ``tests/workercalls/test_processes.py``.
KILLED_AT = tuple(point for point in POINTS if not point.startswith("call-"))
#: Where the second passage differs from the first.
TWICE = ("before-commit", "after-commit", "before-body", "after-body")
WAIT = 60


def completed_keys(actor_id: Any) -> set[str]:
    """Idempotency keys of the steps that are recorded as completed."""
    from rivet_workflows.models import History
    from rivet_workflows.records import EntryStatus, Kind

    rows = History.objects.filter(actor_id=actor_id, kind=int(Kind.STEP), status=int(EntryStatus.COMPLETED))
    return {f"{actor_id}:{seq}" for seq in rows.values_list("seq", flat=True)}


def kill_once(point: str, passage: int, ledger: Path, log: Path) -> dict[str, Any]:
    """One story, one kill."""
    from rivet_workflows import client
    from rivet_workflows.models import Worker

    story = client.create("story", f"{point}-{passage}", input={})
    for n in range(5):
        story.send("work", n)
    story.send("control", None)
    if "take-over" in point:
        with WorkerProcess(log=log, RIVET_CRASH_AT="before-body") as first:
            first.wait(WAIT)
    evict = {"RIVET_CLUSTER_EVICT": "0"} if "release" in point else {}
    with WorkerProcess(log=log, RIVET_CRASH_AT=f"{point}:{passage}", **evict) as victim:
        code = victim.wait(WAIT)
    assert code == -signal.SIGKILL, f"{point}:{passage}: the worker ended with {code}, not by the kill"
    before = completed_keys(story.actor_id)
    lines = len(read_ledger(ledger))
    began = time.monotonic()
    with WorkerProcess(log=log):
        total = story.result(timeout=60)
    seconds = time.monotonic() - began
    assert total == 2, f"{point}:{passage}: result {total}"
    calls = Counter(call.key for call in read_ledger(ledger) if call.actor_id == str(story.actor_id))
    again = {call.key for call in read_ledger(ledger)[lines:]} & before
    assert not again, f"{point}:{passage}: completed steps ran again: {again}"
    notes = [call.note for call in read_ledger(ledger) if call.actor_id == str(story.actor_id)]
    assert {f"sync {n}" for n in range(5)} <= set(notes), f"{point}:{passage}: steps are missing: {notes}"
    twice = [key for key, times in calls.items() if times > 1]
    assert len(twice) <= 1, f"{point}:{passage}: more than the one running step ran twice: {twice}"
    assert max(calls.values()) <= 2, f"{point}:{passage}: {calls}"
    assert story.call("get_count") == 5, f"{point}:{passage}: state {story.call('get_count')}"
    Worker.objects.all().delete()
    return {"point": point, "passage": passage, "ran_twice": len(twice), "seconds": round(seconds, 2)}


def kill_fire(point: str, log: Path) -> dict[str, Any]:
    """A worker dies while it calls a scheduled action: a one-shot as it has run, a recurring one as it was taken."""
    from rivet_workflows import client
    from rivet_workflows.models import Worker

    once = point == "fire-run"
    ticker = client.create("ticker", point)
    ticker.call("once" if once else "again")
    with WorkerProcess(log=log, RIVET_CRASH_AT=point) as victim:
        code = victim.wait(WAIT)
    assert code == -signal.SIGKILL, f"{point}: the worker ended with {code}, not by the kill"
    assert ticker.call("get_ticks") == 0, f"{point}: what the fire did was committed in part"
    began = time.monotonic()
    with WorkerProcess(log=log):
        until(lambda: ticker.call("get_ticks"), f"{point}: it is called again")
    assert ticker.call("get_ticks") == 1
    if not once:
        fires = ticker.call("get_fires")
        assert ("error", True) in fires, f"{point}: the fire that was cut off is not told: {fires}"
        assert ("ok", False) in fires, f"{point}: {fires}"
    Worker.objects.all().delete()
    return {"point": point, "passage": 1, "ran_twice": 0, "seconds": round(time.monotonic() - began, 2)}


def kills(points: list[str], folder: Path) -> Iterator[dict[str, Any]]:
    """One kill after another."""
    for point in points:
        if point.startswith("fire-"):
            yield kill_fire(point, folder / "log")
            continue
        for passage in (1, 3) if point in TWICE else (1,):
            yield kill_once(point, passage, folder / "ledger", folder / "log")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--database", default="sqlite")
    parser.add_argument("--points", default=",".join(KILLED_AT))
    args = parser.parse_args()
    sys.exit(
        run_scenario(
            args.database,
            lambda folder: kills(args.points.split(","), folder),
            RIVET_CLUSTER_LEASE="1",
            RIVET_CLUSTER_HEARTBEAT="0.25",
            RIVET_CLUSTER_POLL="0.5",
        )
    )
