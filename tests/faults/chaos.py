"""Workers killed and stopped at random, for as long as one likes, and a ledger that has to come out exact.

    python -m tests.faults.chaos --database postgres --seconds 600 [--workers 3] [--seed N]

Every half second or so one of the workers gets SIGKILL and is started again, or SIGSTOP and, some time later, mostly
past its lease, SIGCONT. In the end all work is done, each message was taken once and in order, each atomic write is
there once, and no step ran again whose call was not cut off. The ledger is a file, outside the database.
"""

from __future__ import annotations

import argparse
import random
import signal
import sys
import time
from pathlib import Path
from typing import Any

from tests.cluster.cluster import WorkerProcess, run_scenario
from tests.cluster.load import Harm, Load, lost_leases, persist
from tests.waiting import until

#: Seconds. SQLite has one writer: a heartbeat takes its time behind three workers and two senders.
LEASES = {"sqlite": 4.0}
LEASE = 2.0
#: Seconds within which a start, an end, and all that is left to do have to come about.
PATIENCE = 240


def set_isolation(level: str) -> None:
    """For every connection from here on: the workers', and this process's. (On MariaDB it is in their settings.)"""
    from django.db import connection

    if connection.vendor != "postgresql":
        return
    name = connection.settings_dict["NAME"]
    with connection.cursor() as cursor:
        cursor.execute(f"ALTER DATABASE {name} SET default_transaction_isolation = '{level}'")
    connection.close()


def lease_on(database: str) -> float:
    return LEASES.get(database, LEASE)


class Chaos:
    """Some workers, and what is done to them."""

    def __init__(self, count: int, log: Path, draw: random.Random, lease: float) -> None:
        self.log = log
        self.lease = lease
        self.draw = draw
        self.workers = [WorkerProcess(log=log) for _ in range(count)]
        #: Index of a worker that is stopped, and when it began and is to end.
        self.stopped: dict[int, tuple[float, float]] = {}
        self.harms: list[Harm] = []
        self.kills = self.stops = 0

    def go_on(self, seconds: float) -> None:
        """Hurt, for that long; all run again in the end."""
        end = time.time() + seconds
        while time.time() < end:
            time.sleep(self.draw.uniform(0.1, 0.8))
            self._continue(time.time())
            number = self.draw.randrange(len(self.workers))
            if number in self.stopped or not self._works(number):
                continue
            if self.draw.random() < 0.5:
                self._kill(number)
            else:
                self._stop(number)
        self._continue(float("inf"))

    def _works(self, number: int) -> bool:
        """Has it come up? To kill one that has not hurts nobody."""
        from rivet_workflows.models import Worker

        pid = self.workers[number].process.pid
        return persist(lambda: Worker.objects.filter(pid=pid).exists())

    def _kill(self, number: int) -> None:
        worker = self.workers[number]
        worker.kill()
        worker.wait()
        self.harms.append(Harm(worker.process.pid, time.time(), time.time()))
        self.workers[number] = WorkerProcess(log=self.log)
        self.kills += 1

    def _stop(self, number: int) -> None:
        now = time.time()
        self.workers[number].kill(signal.SIGSTOP)
        self.stopped[number] = (now, now + self.draw.uniform(0.05, 3 * self.lease))
        self.stops += 1

    def _continue(self, until: float) -> None:
        for number, (begin, end) in list(self.stopped.items()):
            if end <= until:
                worker = self.workers[number]
                del self.stopped[number]
                worker.kill(signal.SIGCONT)
                self.harms.append(Harm(worker.process.pid, begin, time.time()))

    def end(self) -> None:
        for worker in self.workers:
            worker.kill(signal.SIGTERM)
        for worker in self.workers:
            # One that has only just been started again has not read its first line yet.
            assert worker.wait(PATIENCE) in (0, -signal.SIGTERM), (
                "a worker that was told to stop did not end well"
            )

    def kill_all(self) -> None:
        for worker in self.workers:
            worker.__exit__()


def story(folder: Path, args: argparse.Namespace) -> dict[str, Any]:
    from rivet_workflows.models import Worker

    if args.isolation:
        set_isolation(args.isolation)
    log = folder / "log"
    chaos = Chaos(args.workers, log, random.Random(args.seed), lease_on(args.database))
    try:
        until(lambda: persist(Worker.objects.count) == args.workers, "all workers are there", PATIENCE)
        load = Load(folder, every=args.every)
        load.start()
        began = time.time()
        chaos.go_on(args.seconds)
        load.finish(PATIENCE)
        seconds = time.time() - began
        chaos.end()
    finally:
        chaos.kill_all()
    lost = lost_leases(log)
    # Where transactions are isolated strictly, the database ends some for the sake of others: of atomic steps too.
    found = load.check([*chaos.harms, *lost], database_hurt=bool(args.isolation))
    done = {
        "kills": chaos.kills,
        "stops": chaos.stops,
        "leases_lost": len(lost),
        "seconds": round(seconds, 1),
    }
    level = {"isolation": args.isolation} if args.isolation else {}
    return {"database": args.database, **level, "seed": args.seed, **found, **done}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--database", default="postgres")
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--workers", type=int, default=3)
    parser.add_argument("--seed", type=int, default=random.randrange(10**6))
    parser.add_argument("--isolation", help="of all transactions, on a server: like 'repeatable read'")
    parser.add_argument("--every", type=float, default=0.1, help="seconds between two actors of one sender")
    chosen = parser.parse_args()
    sys.exit(
        run_scenario(
            chosen.database,
            lambda folder: [story(folder, chosen)],
            RIVET_CLUSTER_LEASE=str(lease_on(chosen.database)),
            RIVET_CLUSTER_HEARTBEAT="0.25",
            RIVET_CLUSTER_POLL="0.5",
            **({"RIVET_CLUSTER_ISOLATION": chosen.isolation} if chosen.isolation else {}),
        )
    )
