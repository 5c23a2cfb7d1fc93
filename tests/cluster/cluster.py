"""Databases and worker processes for the fault tests and the benchmarks.

Used inside a process of its own whose settings are ``tests.cluster.settings``.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from tests.databases import MYSQL_COLLATION
from tests.servers import MARIADB_URL, POSTGRES_URL
from tests.waiting import until

ROOT = Path(__file__).resolve().parents[2]
#: Exit code of a scenario that cannot be played on this machine; it says why.
NOT_HERE = 77


@contextlib.contextmanager
def fresh_database(kind: str, folder: Path) -> Iterator[str]:
    """The URL of an empty database of its own, dropped at the end.

    ``kind``: ``sqlite``, ``postgres`` or ``mariadb`` (the servers of the tests), or the URL of a server.
    """
    if kind == "sqlite":
        yield f"sqlite:///{folder}/cluster.sqlite3"
        return
    server = {"postgres": POSTGRES_URL, "mariadb": MARIADB_URL}.get(kind, kind)
    name = f"rivet_cluster_{os.getpid()}"
    create, drop = statements(server, name)
    execute(server, drop, create)
    try:
        yield urlsplit(server)._replace(path=f"/{name}").geturl()
    finally:
        from django.db import connections

        connections.close_all()
        execute(server, drop)


def statements(server: str, name: str) -> tuple[str, str]:
    """What creates a database there, and what drops it if it is there."""
    if server.startswith("postgres"):
        return f'CREATE DATABASE "{name}"', f'DROP DATABASE IF EXISTS "{name}" WITH (FORCE)'
    return (
        f"CREATE DATABASE `{name}` CHARACTER SET utf8mb4 COLLATE {MYSQL_COLLATION}",
        f"DROP DATABASE IF EXISTS `{name}`",
    )


def execute(server: str, *statements: str) -> list[tuple[Any, ...]]:
    """Run statements on a server, on a connection of their own, each by itself; the rows of the last."""
    connection: Any
    if server.startswith("postgres"):
        import psycopg

        connection = psycopg.connect(server, autocommit=True)
    else:
        import MySQLdb

        parts = urlsplit(server)
        connection = MySQLdb.connect(
            host=parts.hostname or "127.0.0.1",
            port=parts.port or 3306,
            user=parts.username or "root",
            password=parts.password or "",
            autocommit=True,
        )
    with contextlib.closing(connection), connection.cursor() as cursor:
        for statement in statements:
            cursor.execute(statement)
        return list(cursor.fetchall()) if cursor.description else []


def setup(url: str, settings: str | None = None) -> None:
    """Django in this process and in its workers, on that database, migrated."""
    os.environ["RIVET_CLUSTER_DB"] = url
    if settings is not None:
        os.environ["DJANGO_SETTINGS_MODULE"] = settings
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "tests.cluster.settings")
    import django
    from django.core.management import call_command

    django.setup()
    call_command("migrate", run_syncdb=True, verbosity=0)


class WorkerProcess:
    """A real ``rivet_worker``."""

    def __init__(self, *args: str, log: Path | None = None, **env: str) -> None:
        self.log = log
        out = subprocess.DEVNULL if log is None else log.open("ab")
        self.process = subprocess.Popen(
            [sys.executable, "-m", "django", "rivet_worker", *args],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(ROOT), **env},
            stdout=out,
            stderr=out,
        )

    def kill(self, number: int = signal.SIGKILL) -> None:
        if self.process.poll() is None:
            self.process.send_signal(number)

    def wait(self, timeout: float = 30) -> int:
        return self.process.wait(timeout)

    def __enter__(self) -> WorkerProcess:
        return self

    def __exit__(self, *_: Any) -> None:
        self.kill(signal.SIGCONT)
        self.kill()
        self.process.wait(10)


@dataclass(frozen=True, slots=True)
class Call:
    """A line of the ledger: a step's function was called."""

    key: str
    attempt: int
    pid: int
    #: By the machine's clock.
    at: float
    note: str

    @property
    def actor_id(self) -> str:
        return self.key.rsplit(":", 1)[0]


@contextlib.contextmanager
def two_workers(log: Path) -> Iterator[None]:
    """Two workers that are there, and that in the end are alive and stop as they are told to."""
    from rivet_workflows.models import Worker

    with WorkerProcess(log=log) as first, WorkerProcess(log=log) as second:
        until(lambda: Worker.objects.count() == 2, "both workers are there")
        yield
        for worker in (first, second):
            assert worker.process.poll() is None, "a worker is gone"
            worker.kill(signal.SIGTERM)
            assert worker.wait(120) == 0


def read_ledger(path: Path) -> list[Call]:
    """All calls, in the order in which they were written down."""
    lines = path.read_text().splitlines() if path.exists() else []
    rows = [line.split(" ", 4) for line in lines]
    return [Call(key, int(attempt), int(pid), float(at), note) for key, attempt, pid, at, note in rows]


def run_scenario(database: str, story: Callable[[Path], Iterable[dict[str, Any]]], **env: str) -> int:
    """Play ``story(folder)`` on a fresh database and print what it gives as JSON lines; the exit code.

    The folder holds ``ledger`` and ``log``; the end of the log is shown when the story fails, and all of it is
    kept where ``RIVET_CLUSTER_KEEP`` says.
    """
    os.environ |= env
    with tempfile.TemporaryDirectory() as name, fresh_database(database, Path(name)) as url:
        return play(url, Path(name), story)


def play(url: str, folder: Path, story: Callable[[Path], Iterable[dict[str, Any]]]) -> int:
    """:func:`run_scenario` on a database that is there."""
    os.environ["RIVET_LEDGER"] = str(folder / "ledger")
    setup(url)
    try:
        for line in story(folder):
            print(json.dumps(line), flush=True)
    except Exception as exc:
        log = folder / "log"
        print(f"{type(exc).__name__}: {exc}", file=sys.stderr)
        print(log.read_text()[-4000:] if log.exists() else "(no worker wrote a log)", file=sys.stderr)
        return 1
    finally:
        if keep := os.environ.get("RIVET_CLUSTER_KEEP"):
            shutil.copytree(folder, keep, dirs_exist_ok=True)
    return 0
