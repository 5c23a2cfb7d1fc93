"""A step that takes its process down, every time, beside six innocent actors and two worker processes.

    python -m tests.faults.poison --database postgres

It is set aside after a few tries, and all the others complete (BR-024, BR-025).
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from tests.cluster.cluster import WorkerProcess, run_scenario
from tests.waiting import until


def story(log: Path) -> dict[str, Any]:
    from rivet_workflows import client

    killer = client.create("killer", "k")
    innocent = [client.create("slow_steps", str(n), input={"steps": 1, "ms": 50}) for n in range(6)]
    with WorkerProcess("--processes", "2", log=log):
        until(
            lambda: all(str(h.status()) in ("completed", "set_aside") for h in [killer, *innocent]),
            "ends",
            120,
        )
    assert killer.status().reason == "poisoned"
    assert [str(handle.status()) for handle in innocent] == ["completed"] * 6
    return {"innocent": len(innocent), "killer": str(killer.status())}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--database", default="postgres")
    sys.exit(
        run_scenario(
            parser.parse_args().database,
            lambda folder: [story(folder / "log")],
            RIVET_CLUSTER_LEASE="1",
            RIVET_CLUSTER_HEARTBEAT="0.25",
            RIVET_CLUSTER_LOG="WARNING",
        )
    )
