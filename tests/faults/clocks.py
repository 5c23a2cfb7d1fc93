"""A worker whose clock jumps by five minutes, forward and back, again and again, beside one whose clock is right.

    python -m tests.faults.clocks [--database postgres] [--times 6]

Only the database's time counts: timers are neither early nor late by it, leases are not lost, nothing runs twice. The
clock is bent by libfaketime; exit code 77 where that is not installed.
"""

from __future__ import annotations

import argparse
import signal
import sys
import time
from pathlib import Path
from typing import Any

from tests.cluster.cluster import NOT_HERE, WorkerProcess, run_scenario
from tests.cluster.load import Load, lost_leases
from tests.waiting import until

LEASE = 20
#: µs that the load's timer is set for, and after which it would be late even on a busy machine.
NAP, LATE = 50_000, 60_000_000


def library() -> Path | None:
    """Of Debian's package ``libfaketime``."""
    found = [*Path("/usr/lib").glob("**/faketime/libfaketimeMT.so.1")]
    return found[0] if found else None


def story(folder: Path, preload: Path, times: int) -> dict[str, Any]:
    from rivet_workflows.models import History, Worker
    from rivet_workflows.records import Kind

    log, clock = folder / "log", folder / "clock"
    clock.write_text("+0")
    bent = {
        "LD_PRELOAD": str(preload),
        "FAKETIME_TIMESTAMP_FILE": str(clock),
        "FAKETIME_NO_CACHE": "1",
        # A machine whose clock is set keeps its monotonic clock.
        "FAKETIME_DONT_FAKE_MONOTONIC": "1",
    }
    with WorkerProcess(log=log, **bent) as first, WorkerProcess(log=log) as second:
        until(lambda: Worker.objects.count() == 2, "both workers are there")
        load = Load(folder)
        load.start()
        for number in range(times):
            clock.write_text(("+300", "-300", "+0")[number % 3])
            time.sleep(1)
        load.finish()
        for worker in (first, second):
            assert worker.process.poll() is None, "a worker is gone"
            worker.kill(signal.SIGTERM)
            assert worker.wait(120) == 0
    assert not lost_leases(log), "a lease was lost"
    found = load.check()
    rows = History.objects.filter(kind=int(Kind.SLEEP)).values_list("started_at", "done_at")
    naps = [done - began for began, done in rows if done is not None]
    assert len(naps) == found["actors"] // 2
    assert all(NAP <= nap < LATE for nap in naps), f"{min(naps)} to {max(naps)} µs"
    return {"jumps": times, **found, "naps_ms": [round(min(naps) / 1000), round(max(naps) / 1000)]}


def main(database: str, times: int) -> int:
    there = library()
    if there is None:
        print("libfaketime is not installed", file=sys.stderr)
        return NOT_HERE
    return run_scenario(
        database,
        lambda folder: [story(folder, there, times)],
        RIVET_CLUSTER_LEASE=str(LEASE),
        RIVET_CLUSTER_HEARTBEAT="0.5",
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--database", default="postgres")
    parser.add_argument("--times", type=int, default=6)
    sys.exit(main(**vars(parser.parse_args())))
