"""What befalls the network between workers, senders and PostgreSQL.

    python -m tests.faults.network --fault swallow [--times 20]

``swallow``: a commit is carried out, and the answer to it lost with the connection: of a worker's group, of an atomic
step's transaction, of a claim, of a sender's. ``cut``: all connections, in the middle of everything. ``stall``: nothing
comes through for a while, shorter than a lease. In the end everything is there once, and no step has run twice but
atomic ones, whose transaction was lost.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from pathlib import Path
from typing import Any

from tests.cluster.cluster import run_scenario, two_workers
from tests.cluster.load import Load, lost_leases
from tests.cluster.proxy import Proxy, proxy_to
from tests.servers import POSTGRES_URL
from tests.waiting import until

#: Longer than any stall here, on a busy machine.
LEASE = 20
#: In the texts of what is swallowed: a worker's group (one statement, in autocommit), and the end of a transaction, be
#: it a claim, an atomic step or a send.
GROUP, END = "f AS (UPDATE rivet_run", "COMMIT"


def hurt(proxy: Proxy, fault: str, draw: random.Random) -> None:
    if fault == "cut":
        proxy.cut()
    elif fault == "swallow":
        proxy.swallow(draw.choice([GROUP, END]))
    else:
        proxy.stall()
        time.sleep(draw.uniform(0.5, 2))
        proxy.flow()


def story(folder: Path, proxy: Proxy, args: argparse.Namespace) -> dict[str, Any]:
    log = folder / "log"
    draw = random.Random(args.seed)
    with two_workers(log):
        load = Load(folder, senders=2)
        load.start()
        for _ in range(args.times):
            # In the middle of work, not before it.
            seen = load.created
            until(lambda seen=seen: load.created > seen, "senders send")  # type: ignore[misc]
            time.sleep(draw.uniform(0.0, 0.2))
            hurt(proxy, args.fault, draw)
        load.finish()
    lost = lost_leases(log)
    swallowed = {
        "groups_swallowed": sum(GROUP in text for text in proxy.swallowed),
        "ends_swallowed": sum(text == END for text in proxy.swallowed),
    }
    found = load.check(lost, database_hurt=True)
    return {"fault": args.fault, "times": args.times, "leases_lost": len(lost), **swallowed, **found}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--fault", required=True, choices=["swallow", "cut", "stall"])
    parser.add_argument("--times", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1)
    chosen = parser.parse_args()
    with proxy_to(POSTGRES_URL) as between:
        code = run_scenario(
            between.url,
            lambda folder: [story(folder, between, chosen)],
            RIVET_CLUSTER_LEASE=str(LEASE),
            RIVET_CLUSTER_HEARTBEAT="0.5",
            PGSSLMODE="disable",
            PGGSSENCMODE="disable",
        )
    sys.exit(code)
