"""A PostgreSQL server of one's own, to restart, fill and switch over: never the one that others test on.

Its binaries come with Debian's and Ubuntu's ``postgresql`` package, or are on the PATH. PostgreSQL does not run as
root, so root starts it as the user that the package made.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

#: Durable as a real one, but small: several may run on a machine.
CONFIG = "shared_buffers = 32MB\nmax_wal_size = 256MB\nlisten_addresses = '127.0.0.1'\nunix_socket_directories = ''\n"


def binaries() -> Path | None:
    """The folder of ``pg_ctl``, or None where there is no PostgreSQL server to be had."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/pg_ctl"), key=lambda p: p.parent.parent.name)
    on_path = shutil.which("pg_ctl")
    if on_path:
        found.append(Path(on_path).resolve())
    return found[-1].parent if found else None


class OwnPostgres:
    """A running server; ``url`` is that of its database ``postgres``."""

    def __init__(self, folder: Path, port: int) -> None:
        self.folder = folder
        self.port = port
        self.url = f"postgres://postgres@127.0.0.1:{port}/postgres"

    def ctl(self, *arguments: str) -> None:
        """``pg_ctl``; raises RuntimeError, with the end of the server's log, when it fails."""
        _run("pg_ctl", "-D", str(self.folder / "data"), "-l", str(self.folder / "server.log"), *arguments)

    def start(self) -> None:
        self.ctl("start", "-w")

    def start_and_return(self) -> None:
        """As :meth:`start`, without waiting: :meth:`accepts` tells when it is there."""
        self.ctl("start", "-W")

    def accepts(self) -> bool:
        """Does it accept connections?"""
        import psycopg

        try:
            psycopg.connect(self.url).close()
        except psycopg.OperationalError:
            return False
        return True

    def stop(self, mode: str = "immediate") -> None:
        """``immediate`` is a crash: nobody says goodbye, and the next start recovers from the log."""
        self.ctl("stop", "-w", "-m", mode)

    def restart(self) -> None:
        """A crash, and a new start; back when connections are accepted."""
        self.ctl("restart", "-w", "-m", "immediate")


@contextlib.contextmanager
def own_postgres(config: str = "") -> Iterator[OwnPostgres]:
    """A fresh server with these lines of configuration on top; gone at the end."""
    with tempfile.TemporaryDirectory(prefix="rivet-postgres-") as name:
        folder = Path(name)
        folder.chmod(0o777)
        data = folder / "data"
        _run("initdb", "-D", str(data), "-U", "postgres", "--auth", "trust", "-E", "UTF8", "--no-sync")
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = int(probe.getsockname()[1])
        server = OwnPostgres(folder, port)
        with (data / "postgresql.conf").open("a") as file:
            file.write(f"{CONFIG}port = {port}\n{config}")
        server.start()
        try:
            yield server
        finally:
            server.stop()


def _run(program: str, *arguments: str) -> None:
    folder = binaries()
    assert folder is not None, "no PostgreSQL server is installed"
    user = "postgres" if os.geteuid() == 0 else None
    ended = subprocess.run(
        [folder / program, *arguments],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        user=user,
        cwd="/",
        text=True,
    )
    if ended.returncode:
        raise RuntimeError(f"{program} {' '.join(arguments)} ended with {ended.returncode}: {ended.stderr}")
