"""Ten thousand increments of one counter by four processes: it is exact, and history tells what ran more than once.

    python -m tests.faults.counter --database postgres [--increments 10000]

Two processes call an action that adds one, two are workers whose steps add one: through ``step.update``, by
``step.state.n += 1`` and ``atomic``, in three branches side by side. Each step also counts outside, in the ledger.
A third and two thirds through, the worker that holds the counter is replaced, as a deploy does.

In the end the counter is exact; no action has waited for a running step (every tenth step ends only after an action
has passed it); and the ledger has one line per step and one more for each conflict that the step's history shows: a
failed attempt that says ``StateConflict``, or a rerun of an atomic one.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from tests.cluster.cluster import ROOT, WorkerProcess, read_ledger, run_scenario
from tests.waiting import until

CALLERS = 2
#: Actions that a caller may be ahead of the steps.
AHEAD = 5


def act(actions: int) -> None:
    """A process that calls. Each action that is committed is a byte in a file.

    It keeps step with the steps, else all actions would be through before the first hundred of them.
    """
    import django

    django.setup()
    from rivet_workflows import client
    from tests.cluster.actors import tick

    counter = client.get("counter", "one")
    acted = Path(os.environ["RIVET_ACTED"])
    begun, waiting = acted.with_name("begun"), acted.with_name("waiting")
    seen = 0
    for n in range(actions):
        until(
            lambda: begun.stat().st_size >= (n - AHEAD) * CALLERS or waiting.stat().st_size > seen,  # noqa: B023
            "steps go on",
            120,
        )
        seen = waiting.stat().st_size
        counter.call("add", loud=n % 10 == 0)
        tick(acted)


def caller(actions: int) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "tests.faults.counter", "--act", str(actions)]
    return subprocess.Popen(command, cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)})


def story(increments: int, folder: Path) -> dict[str, Any]:
    from django.db import connection

    from rivet_workflows import client

    actions = increments // 2
    steps = {way: (increments - actions + n) // 3 for n, way in enumerate(("update", "assign", "atomic"))}
    acted = folder / "acted"
    for file in (acted, folder / "begun", folder / "waiting"):
        file.touch()
    os.environ |= {"RIVET_ACTED": str(acted), "RIVET_ACTIONS": str(actions)}
    with connection.cursor() as cursor:
        cursor.execute("CREATE TABLE counted (idempotency_key varchar(100))")
    counter = client.create("counter", "one", input=steps)
    began, patience = time.monotonic(), 120 + increments / 5
    with ExitStack() as stack:
        callers = [caller((actions + n) // CALLERS) for n in range(CALLERS)]
        until(lambda: acted.stat().st_size >= CALLERS, "callers call")
        workers = [stack.enter_context(WorkerProcess(log=folder / "log")) for _ in range(2)]
        for third in (1, 2):
            until(lambda: acted.stat().st_size >= third * actions // 3, "actions go on", patience)  # noqa: B023
            deploy(counter, workers, stack, folder / "log")
        assert [process.wait(patience) for process in callers] == [0] * CALLERS, "a caller failed"
        result = counter.result(timeout=patience)
    seconds = time.monotonic() - began
    assert result == steps, result
    assert counter.call("get") == increments, f"the counter is {counter.call('get')}, not {increments}"
    with connection.cursor() as cursor:
        cursor.execute("SELECT count(*), count(DISTINCT idempotency_key) FROM counted")
        assert cursor.fetchone() == (steps["atomic"],) * 2, "rows of atomic steps"
    found = check(counter, steps, folder / "ledger")
    return {"actions": actions, "steps": sum(steps.values()), **found, "seconds": round(seconds, 1)}


def deploy(counter: Any, workers: list[WorkerProcess], stack: ExitStack, log: Path) -> None:
    """Replace the worker that holds the counter: asked to stop, it hands over, and another comes."""
    from rivet_workflows.models import Run, Worker

    def holder() -> WorkerProcess | None:
        owner = Run.objects.values_list("owner_id", flat=True).get(actor_id=counter.actor_id)
        row = None if owner is None else Worker.objects.filter(id=owner).first()
        return next((w for w in workers if row is not None and w.process.pid == row.pid), None)

    if str(counter.status()) == "completed":
        return
    old = until(holder, "somebody holds the counter")
    workers.append(stack.enter_context(WorkerProcess(log=log)))
    old.kill(signal.SIGTERM)
    assert old.wait(60) == 0, "a worker that was asked to stop"
    workers.remove(old)


def check(counter: Any, steps: dict[str, int], ledger: Path) -> dict[str, Any]:
    """Calls in the ledger against what history tells. Raises AssertionError."""
    calls = Counter(call.key for call in read_ledger(ledger))
    conflicts: Counter[str] = Counter()
    done: Counter[str] = Counter()
    for entry in counter.history():
        if entry.kind != "step":
            continue
        way = entry.path[1]
        failed = [attempt.error for attempt in entry.attempts if attempt.error is not None]
        assert all(error.type.endswith(".StateConflict") for error in failed), failed
        # The last attempts are shown, not all of a step that many actions came between: its number is its result.
        told = entry.output - 1 + sum(attempt.reruns for attempt in entry.attempts)
        assert len(failed) == entry.output - 1 or len(entry.attempts) >= 20, entry
        key = f"{counter.actor_id}:{entry.seq}"
        assert calls[key] == 1 + told, f"{entry.location}: {calls[key]} calls, {told} conflicts"
        done[way] += 1
        conflicts[way] += told
    assert done == steps, done
    assert sum(calls.values()) == sum(steps.values()) + conflicts.total()
    assert conflicts["update"] == 0, "step.update never conflicts"
    return {"outside": sum(calls.values()), "conflicts": dict(conflicts)}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--database", default="sqlite")
    parser.add_argument("--increments", type=int, default=10_000)
    parser.add_argument("--act", type=int, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.act is not None:
        act(args.act)
        sys.exit()
    sys.exit(
        run_scenario(
            args.database,
            lambda folder: [story(args.increments, folder)],
            RIVET_CLUSTER_LOG="WARNING",
            # Nobody dies here: a step that is cut off would run again, and tell of no conflict.
            RIVET_CLUSTER_LEASE="60",
        )
    )
