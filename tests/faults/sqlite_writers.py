"""One SQLite file, four worker processes, and as many web writers beside them.

    python -m tests.faults.sqlite_writers --seconds 300

SQLite has one writer at a time. Nobody may ever see "database is locked", neither a web request nor a line in the log,
and no writer may wait for long. Prints how long the slowest write of a sender took.
"""

from __future__ import annotations

import argparse
import signal
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from tests.cluster.cluster import WorkerProcess, run_scenario
from tests.cluster.load import Load, lost_leases, persist
from tests.waiting import until

#: Django waits this long for the file (``OPTIONS``); a writer that waits longer is refused.
TIMEOUT = 20


def story(folder: Path, args: argparse.Namespace) -> dict[str, Any]:
    from rivet_workflows.models import Worker

    log = folder / "log"
    with ExitStack() as stack:
        workers = [stack.enter_context(WorkerProcess(log=log)) for _ in range(args.workers)]
        until(lambda: persist(Worker.objects.count) == args.workers, "all workers are there")
        load = Load(folder, senders=args.workers, every=0.2)
        load.start()
        time.sleep(args.seconds)
        load.finish(300)
        for worker in workers:
            worker.kill(signal.SIGTERM)
        for worker in workers:
            assert worker.wait(120) == 0
    found = load.check(lost_leases(log))
    assert found["refused"] == 0, "a sender was refused"
    locked = [line for line in log.read_text().splitlines() if "is locked" in line]
    assert not locked, locked[:5]
    return {"workers": args.workers, **found}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=300)
    parser.add_argument("--workers", type=int, default=4)
    chosen = parser.parse_args()
    sys.exit(
        run_scenario(
            "sqlite",
            lambda folder: [story(folder, chosen)],
            RIVET_CLUSTER_LEASE=str(TIMEOUT),
            RIVET_CLUSTER_HEARTBEAT="1",
        )
    )
