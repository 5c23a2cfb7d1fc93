"""Workers and senders behind PgBouncer in transaction mode: no LISTEN, no session of one's own.

    python -m tests.faults.pooling [--listen]

Everything goes through the pooler, which gives each transaction whatever server connection is free. Nothing rings
there, so new work is found by looking; with ``--listen`` the workers hear bells over a direct connection
(``LISTEN_DSN``). Exit code 77 where PgBouncer is not installed.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from tests.cluster.cluster import NOT_HERE, WorkerProcess, fresh_database, play
from tests.cluster.load import Load, lost_leases
from tests.waiting import until

CONFIG = """
[databases]
* = host={host} port={port} user={user}
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {listen}
auth_type = any
pool_mode = transaction
default_pool_size = 8
logfile = {folder}/pgbouncer.log
pidfile = {folder}/pgbouncer.pid
unix_socket_dir =
"""


def pgbouncer() -> str | None:
    return shutil.which("pgbouncer") or shutil.which("/usr/sbin/pgbouncer")


@contextlib.contextmanager
def pooled(server: str) -> Iterator[str]:
    """The URL of the same database, through a PgBouncer of our own."""
    parts = urlsplit(server)
    program = pgbouncer()
    assert program is not None
    with tempfile.TemporaryDirectory(prefix="rivet-pgbouncer-") as name:
        folder = Path(name)
        folder.chmod(0o777)
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = int(probe.getsockname()[1])
        known = {"host": parts.hostname, "port": parts.port or 5432, "user": parts.username, "listen": port}
        (folder / "pgbouncer.ini").write_text(CONFIG.format(folder=folder, **known))
        # It refuses to run as root.
        user = "postgres" if os.geteuid() == 0 else None
        process = subprocess.Popen([program, "-q", str(folder / "pgbouncer.ini")], user=user)
        try:
            until(lambda: _listens(port), "the pooler listens")
            yield parts._replace(netloc=f"{parts.username}@127.0.0.1:{port}").geturl()
        finally:
            process.send_signal(signal.SIGKILL)
            process.wait(10)


def _listens(port: int) -> bool:
    with contextlib.suppress(OSError):
        socket.create_connection(("127.0.0.1", port), timeout=1).close()
        return True
    return False


def story(folder: Path) -> dict[str, Any]:
    from rivet_workflows.models import Worker

    log = folder / "log"
    with WorkerProcess(log=log) as first, WorkerProcess(log=log) as second:
        until(lambda: Worker.objects.count() == 2, "both workers are there")
        load = Load(folder)
        load.start()
        until(lambda: load.created > 20, "there is some work")
        load.finish()
        for worker in (first, second):
            worker.kill(signal.SIGTERM)
            assert worker.wait(120) == 0
    lost = lost_leases(log)
    found = load.check(lost)
    assert found["refused"] == 0, "the pooler refused something"
    problems = [line for line in log.read_text().splitlines() if " WARNING " in line or " ERROR " in line]
    assert not problems or lost, problems
    return {"leases_lost": len(lost), **found}


def main(listen: bool) -> int:
    if pgbouncer() is None:
        print("PgBouncer is not installed", file=sys.stderr)
        return NOT_HERE
    with tempfile.TemporaryDirectory() as name, fresh_database("postgres", Path(name)) as direct:
        os.environ |= {
            "RIVET_CLUSTER_LEASE": "5", "RIVET_CLUSTER_HEARTBEAT": "0.5", "RIVET_CLUSTER_POLL": "0.2",
            "RIVET_CLUSTER_POOLED": "1",
        }  # fmt: skip
        if listen:
            os.environ["RIVET_CLUSTER_LISTEN_DSN"] = direct
        with pooled(direct) as url:
            return play(url, Path(name), lambda folder: [story(folder)])


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--listen", action="store_true")
    sys.exit(main(parser.parse_args().listen))
