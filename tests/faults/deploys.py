"""A rolling deploy under load: every worker replaced by another, one after the other, again and again.

    python -m tests.faults.deploys --database postgres [--rounds 3]

As an orchestrator does it: the new one is started and has registered, then the old one is told to stop and is waited
for. Nothing is lost and nothing runs twice, not even a step that ran as its worker was told to stop, and callers are
answered all along. Prints how long they waited.
"""

from __future__ import annotations

import argparse
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.cluster.cluster import WorkerProcess, run_scenario
from tests.cluster.load import Load, lost_leases, persist
from tests.waiting import until

LEASE = 20


class Caller(threading.Thread):
    """Asks for one small piece of work after the other, and for its result."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.ending = threading.Event()
        self.waited: list[float] = []
        #: Its actors, and the steps of each.
        self.asked: dict[str, int] = {}
        self.failed: list[BaseException] = []

    def run(self) -> None:
        from django.db import connection

        try:
            while not self.ending.wait(0.1):
                self._ask(len(self.waited))
        except BaseException as error:
            self.failed.append(error)
        finally:
            connection.close()

    def _ask(self, number: int) -> None:
        from rivet_workflows import client

        began = time.monotonic()
        handle = client.create("slow_steps", f"asked-{number}", input={"steps": 1, "ms": 0})
        self.asked[str(handle.actor_id)] = 1
        handle.result(timeout=60)
        self.waited.append(time.monotonic() - began)


@contextmanager
def calling() -> Iterator[Caller]:
    caller = Caller()
    caller.start()
    try:
        yield caller
    finally:
        caller.ending.set()
        caller.join(60)
    assert not caller.failed, caller.failed


def story(folder: Path, args: argparse.Namespace) -> dict[str, Any]:
    from rivet_workflows.models import Worker

    log = folder / "log"
    workers = [WorkerProcess(log=log) for _ in range(args.workers)]
    try:
        until(lambda: persist(Worker.objects.count) == args.workers, "all workers are there")
        load = Load(folder)
        load.start()
        with calling() as caller:
            for number in range(args.rounds * args.workers):
                place = number % args.workers
                old, workers[place] = workers[place], WorkerProcess(log=log)
                until(lambda: persist(Worker.objects.count) == args.workers + 1, "the new one is there", 180)
                old.kill(signal.SIGTERM)
                assert old.wait(120) == 0
            load.finish()
        for worker in workers:
            worker.kill(signal.SIGTERM)
            assert worker.wait(120) == 0
    finally:
        for worker in workers:
            worker.__exit__()
    found = load.check(lost_leases(log), beside=caller.asked)
    waited = sorted(caller.waited)
    return {
        "database": args.database,
        "replaced": args.rounds * args.workers,
        **found,
        "asked": len(waited),
        "waited_p50": round(waited[len(waited) // 2], 3),
        "waited_p99": round(waited[len(waited) * 99 // 100], 3),
    }


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--database", default="postgres")
    parser.add_argument("--workers", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=3)
    chosen = parser.parse_args()
    sys.exit(
        run_scenario(
            chosen.database,
            lambda folder: [story(folder, chosen)],
            RIVET_CLUSTER_LEASE=str(LEASE),
            RIVET_CLUSTER_HEARTBEAT="1",
        )
    )
