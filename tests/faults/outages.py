"""What befalls a PostgreSQL server, while workers claim, commit, listen and beat, and senders hold transactions.

    python -m tests.faults.outages --fault restart [--times 5]

The faults: ``restart`` (a crash: ``pg_ctl restart -m immediate``), ``terminate`` (all backends), ``read_only`` (the
server has become a standby), ``full`` (no connection left for a new one), ``slow`` (a statement timeout of 50 ms, and
tables that others hold locked). Each comes and goes, shorter than a lease; so in the end no step has run twice, nobody
had to be started again, and everything is there once.
"""

from __future__ import annotations

import argparse
import contextlib
import random
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.cluster.cluster import execute, run_scenario, two_workers
from tests.cluster.load import Load, lost_leases
from tests.cluster.postgres import OwnPostgres, own_postgres

#: Long enough that no outage here outlasts it, on a busy machine.
LEASE = 20
MAX_CONNECTIONS = 60
#: Whose connections are counted: of a superuser's, some are always left.
ROLE = "app"


class Faults:
    """Each method hurts the server, and returns when it is whole again."""

    def __init__(self, server: OwnPostgres, database: str) -> None:
        self.server = server
        self.database = database
        self.url = url_of(server, "postgres", database)
        #: What callers were told meanwhile.
        self.heard: set[str] = set()

    def restart(self) -> None:
        self.server.restart()

    def terminate(self) -> None:
        execute(
            self.server.url,
            f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '{self.database}'",
        )

    def read_only(self) -> None:
        with self._set("default_transaction_read_only", "on"):
            self.heard.add(what_a_caller_hears())
            time.sleep(1)

    def full(self) -> None:
        import psycopg

        with contextlib.ExitStack() as stack:
            self.terminate()
            with contextlib.suppress(psycopg.OperationalError):
                while True:
                    stack.enter_context(psycopg.connect(url_of(self.server, ROLE, "postgres")))
            self.terminate()
            with contextlib.suppress(psycopg.OperationalError):
                while True:
                    stack.enter_context(psycopg.connect(url_of(self.server, ROLE, "postgres")))
            self.heard.add(what_a_caller_hears())
            time.sleep(1)

    def slow(self) -> None:
        import psycopg

        with self._set("statement_timeout", "'50ms'"):
            for table in ("rivet_history", "rivet_message", "rivet_run", "rivet_worker"):
                with psycopg.connect(self.url) as connection:
                    connection.execute("SET statement_timeout = 0")
                    connection.execute(f"LOCK TABLE {table} IN EXCLUSIVE MODE")
                    time.sleep(0.4)

    @contextlib.contextmanager
    def _set(self, name: str, value: str) -> Iterator[None]:
        """A setting of the database, for new connections, and there are no others."""
        execute(self.server.url, f"ALTER DATABASE {self.database} SET {name} = {value}")
        self.terminate()
        try:
            yield
        finally:
            execute(self.server.url, f"ALTER DATABASE {self.database} RESET {name}")
            self.terminate()


def url_of(server: OwnPostgres, role: str, database: str) -> str:
    return f"postgres://{role}@127.0.0.1:{server.port}/{database}"


def what_a_caller_hears() -> str:
    """The error of a send just now."""
    from django.db import Error, connection

    from rivet_workflows import client

    connection.close()
    try:
        client.get_or_create("slow_steps", "asked-meanwhile", input={"steps": 0, "ms": 0})
    except Error as error:
        return str(error).strip().rpartition("FATAL:")[2].strip()
    finally:
        connection.close()
    raise AssertionError("the database took it")


def story(folder: Path, server: OwnPostgres, args: argparse.Namespace) -> dict[str, Any]:
    from django.db import connection

    log = folder / "log"
    faults = Faults(server, connection.settings_dict["NAME"])
    draw = random.Random(args.seed)
    with two_workers(log):
        load = Load(folder, senders=3)
        load.start()
        for _ in range(args.times):
            time.sleep(draw.uniform(0.3, 1.5))
            getattr(faults, args.fault)()
        time.sleep(0.5)
        load.finish()
    lost = lost_leases(log)
    found = load.check(lost, database_hurt=True)
    return {
        "fault": args.fault, "times": args.times, "leases_lost": len(lost), **found, "heard": sorted(faults.heard)
    }  # fmt: skip


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--fault", required=True, choices=["restart", "terminate", "read_only", "full", "slow"]
    )
    parser.add_argument("--times", type=int, default=5)
    parser.add_argument("--seed", type=int, default=1)
    chosen = parser.parse_args()
    with own_postgres(f"max_connections = {MAX_CONNECTIONS}\n") as own:
        execute(own.url, f"CREATE ROLE {ROLE} LOGIN CREATEDB")
        code = run_scenario(
            url_of(own, ROLE, "postgres"),
            lambda folder: [story(folder, own, chosen)],
            RIVET_CLUSTER_LEASE=str(LEASE),
            RIVET_CLUSTER_HEARTBEAT="0.5",
        )
    sys.exit(code)
