"""How long it takes until everybody goes on: after the death of a worker, and after a crash of PostgreSQL.

    python -m tests.faults.recovery --fault kill --actors 1000
    python -m tests.faults.recovery --fault restart --actors 1000

``kill``: one worker has that many actors in flight, each in a step, and gets SIGKILL; another one stands by. Counted
is until each actor has made its next call there. ``restart``: ``pg_ctl restart -m immediate``, from the moment in which
the server accepts connections again. Prints the seconds of the first, the median and the last actor.
"""

from __future__ import annotations

import argparse
import signal
import sys
import time
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from tests.cluster.cluster import WorkerProcess, read_ledger, run_scenario
from tests.cluster.postgres import OwnPostgres, own_postgres
from tests.waiting import until


def begin(folder: Path, count: int, ms: int) -> None:
    """That many actors, in the middle of a step of ``ms`` each."""
    from rivet_workflows import client
    from rivet_workflows.models import Worker

    until(lambda: Worker.objects.count() == 1, "the worker is there")
    for n in range(count):
        client.create("slow_steps", str(n), input={"steps": 10_000, "ms": ms})
    until(lambda: len({call.actor_id for call in calls(folder)}) == count, "all are in a step", 300)


def calls(folder: Path) -> list[Any]:
    return read_ledger(folder / "ledger")


def went_on(folder: Path, count: int, since: float, pid: int | None = None) -> list[float]:
    """When each actor made its first call after ``since`` (of that process), in seconds from then."""

    def first_calls() -> dict[str, float]:
        found: dict[str, float] = {}
        for call in calls(folder):
            if call.at > since and pid in (None, call.pid):
                found.setdefault(call.actor_id, call.at - since)
        return found

    # Looked at seldom: to read a long ledger takes what the workers need.
    end = time.monotonic() + 120
    while len(found := first_calls()) < count:
        assert time.monotonic() < end, f"{len(found)} of {count} went on"
        time.sleep(1)
    return sorted(found.values())


def kill(folder: Path, count: int, _: OwnPostgres | None) -> list[float]:
    log = folder / "log"
    with WorkerProcess("--concurrency", str(count), log=log) as first:
        begin(folder, count, 20_000)
        with WorkerProcess("--concurrency", str(count), log=log) as second:
            until(lambda: log.read_text().count(" runs ") == 2, "the other stands by")
            since = time.time()
            first.kill()
            first.wait()
            return went_on(folder, count, since, second.process.pid)


def restart(folder: Path, count: int, server: OwnPostgres | None) -> list[float]:
    assert server is not None
    with WorkerProcess("--concurrency", str(count), log=folder / "log") as worker:
        begin(folder, count, 1_000)
        server.stop()
        server.start_and_return()
        until(server.accepts, "the server accepts connections")
        since = time.time()
        waited = went_on(folder, count, since)
        worker.kill(signal.SIGKILL)
        return waited


def story(folder: Path, args: argparse.Namespace, server: OwnPostgres | None) -> dict[str, Any]:
    waited = (kill if args.fault == "kill" else restart)(folder, args.actors, server)
    return {
        "fault": args.fault,
        "actors": args.actors,
        "lease": args.lease,
        "first": round(waited[0], 2),
        "median": round(waited[len(waited) // 2], 2),
        "last": round(waited[-1], 2),
    }


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--fault", required=True, choices=["kill", "restart"])
    parser.add_argument("--actors", type=int, default=1000)
    parser.add_argument("--lease", type=float, default=6)
    chosen = parser.parse_args()
    with own_postgres() if chosen.fault == "restart" else nullcontext() as own:
        code = run_scenario(
            own.url if own is not None else "postgres",
            lambda folder: [story(folder, chosen, own)],
            RIVET_CLUSTER_LEASE=str(chosen.lease),
            RIVET_CLUSTER_HEARTBEAT=str(chosen.lease / 3),
            RIVET_CLUSTER_POLL="5",
        )
    sys.exit(code)
