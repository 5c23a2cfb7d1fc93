"""Worker processes for tests: started on a side database, read line by line, killed at the end whatever happened."""

from __future__ import annotations

import importlib
import json
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from rivet_workflows.registry import registry
from tests.databases import CHECKOUT
from tests.sidedb import SideDatabase

#: Seconds after which a test that waits for a process has failed. Starting one takes a while on a busy machine.
LONG = 45


class WorkerProcess:
    """One ``rivet_worker`` (or another command) on the side database, its log readable as it comes."""

    def __init__(
        self,
        side: SideDatabase,
        *arguments: str,
        ledger: Path | None = None,
        gate: Path | None = None,
        crash_at: str | None = None,
        settings: dict[str, Any] | None = None,
        command: str = "rivet_worker",
    ) -> None:
        environment = {**os.environ, **side.environment(), "PYTHONUNBUFFERED": "1"}
        environment["RIVET_TEST_SETTINGS"] = json.dumps(
            {"LEASE": 1.0, "HEARTBEAT": 0.2, "POLL_INTERVAL": 0.5} | (settings or {})
        )
        for name, value in (("LEDGER", ledger), ("GATE", gate)):
            environment[f"RIVET_TEST_{name}"] = str(value or "")
        environment.pop("RIVET_CRASH_AT", None)
        if crash_at is not None:
            environment["RIVET_CRASH_AT"] = crash_at
        self.process = subprocess.Popen(
            [sys.executable, "-m", "django", command, *arguments],
            cwd=CHECKOUT,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            process_group=0,
        )
        self.lines: list[str] = []
        self._changed = threading.Condition()
        self._ended = False
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            with self._changed:
                self.lines.append(line.rstrip())
                self._changed.notify_all()
        with self._changed:
            self._ended = True
            self._changed.notify_all()

    @property
    def log(self) -> str:
        return "\n".join(self.lines)

    def wait_for(self, pattern: str, count: int = 1) -> list[re.Match[str]]:
        """The first ``count`` lines that match, waited for."""

        def found() -> list[re.Match[str]]:
            return [match for line in self.lines if (match := re.search(pattern, line))]

        with self._changed:
            self._changed.wait_for(lambda: len(found()) >= count or self._ended, LONG)
            matches = found()
        assert len(matches) >= count, f"{pattern!r} is not in the log:\n{self.log}"
        return matches[:count]

    def wait_ready(self) -> None:
        self.wait_for(r"Worker \d+ .* runs ")

    def signal(self, number: int) -> None:
        self.process.send_signal(number)

    def wait(self) -> int:
        """The exit code; negative for the signal that ended it."""
        try:
            code = self.process.wait(LONG)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"the process does not end:\n{self.log}") from None
        self._reader.join(LONG)
        return code

    def kill(self) -> None:
        """End it, with children that have stayed in its group (those of ``--processes`` end by themselves)."""
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(LONG)


def declare_actors() -> None:
    """The actors of the processes, known here too."""
    from tests.sideapp import actors

    if registry.find("ledgered") is None:
        importlib.reload(actors)


@pytest.fixture
def ledger(tmp_path: Path) -> Path:
    """Where steps write that they were called."""
    path = tmp_path / "ledger"
    path.touch()
    return path


@pytest.fixture
def gate(tmp_path: Path) -> Path:
    """Steps of ``gated``, and ``slow`` actions, run while it exists."""
    path = tmp_path / "gate"
    path.touch()
    return path


@pytest.fixture
def start(side: SideDatabase, ledger: Path, gate: Path) -> Iterator[Callable[..., WorkerProcess]]:
    """Starts processes, which are killed at the end of the test."""
    started: list[WorkerProcess] = []

    def start(*arguments: str, **options: Any) -> WorkerProcess:
        started.append(WorkerProcess(side, *arguments, ledger=ledger, gate=gate, **options))
        return started[-1]

    yield start
    for process in started:
        process.kill()
