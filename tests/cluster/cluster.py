"""Databases and worker processes for the fault tests and the benchmarks.

Used inside a process of its own whose settings are ``tests.cluster.settings``.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

ROOT = Path(__file__).resolve().parents[2]
POSTGRES = os.environ.get("RIVET_POSTGRES_URL", "postgres://postgres@127.0.0.1:5432/postgres")


@contextlib.contextmanager
def fresh_database(kind: str, folder: Path) -> Iterator[str]:
    """The URL of an empty database of its own, dropped at the end."""
    if kind == "sqlite":
        yield f"sqlite:///{folder}/cluster.sqlite3"
        return
    import psycopg

    name = f"rivet_cluster_{os.getpid()}"
    with psycopg.connect(POSTGRES, autocommit=True) as connection:
        connection.execute(f'DROP DATABASE IF EXISTS "{name}" WITH (FORCE)')
        connection.execute(f'CREATE DATABASE "{name}"')
    try:
        yield urlsplit(POSTGRES)._replace(path=f"/{name}").geturl()
    finally:
        from django.db import connections

        connections.close_all()
        with psycopg.connect(POSTGRES, autocommit=True) as connection:
            connection.execute(f'DROP DATABASE IF EXISTS "{name}" WITH (FORCE)')


def setup(url: str) -> None:
    """Django in this process, on that database, migrated."""
    os.environ["RIVET_CLUSTER_DB"] = url
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "tests.cluster.settings")
    import django
    from django.core.management import call_command

    django.setup()
    call_command("migrate", verbosity=0)


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


def until(condition: Callable[[], Any], what: str, timeout: float = 60) -> Any:
    """Ask again and again until ``condition()`` is true; its value. Raises AssertionError after ``timeout``."""
    end = time.monotonic() + timeout
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > end:
            raise AssertionError(f"not within {timeout} s: {what}")
        time.sleep(0.02)


def read_ledger(path: Path) -> list[list[str]]:
    """The lines of the ledger: key, attempt, process, note."""
    return [line.split(" ", 3) for line in path.read_text().splitlines()] if path.exists() else []


def run_scenario(database: str, story: Callable[[Path], Iterable[dict[str, Any]]], **env: str) -> int:
    """Play ``story(folder)`` on a fresh database and print what it gives as JSON lines; the exit code.

    The folder holds ``ledger`` and ``log``; the end of the log is shown when the story fails.
    """
    with tempfile.TemporaryDirectory() as name, fresh_database(database, Path(name)) as url:
        folder = Path(name)
        os.environ |= {"RIVET_LEDGER": str(folder / "ledger"), **env}
        setup(url)
        try:
            for line in story(folder):
                print(json.dumps(line), flush=True)
        except Exception as exc:
            log = folder / "log"
            print(f"{type(exc).__name__}: {exc}", file=sys.stderr)
            print(log.read_text()[-4000:] if log.exists() else "(no worker wrote a log)", file=sys.stderr)
            return 1
    return 0
