"""Child processes that never outlive the demo, and a worker that may be killed."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

FOLDER = Path(__file__).resolve().parent.parent
_PR_SET_PDEATHSIG = 1
_LIBC = ctypes.CDLL(None) if sys.platform == "linux" else None


class DemoFailed(Exception):
    """The demo cannot go on, or did not show what it promises. The text is for whoever started it."""


def _die_with_parent() -> None:
    """On Linux a child hears SIGTERM when the demo is killed in a way that leaves it no time to clean up."""
    if _LIBC is not None:
        _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


class Child:
    """One process in a session of its own (so that Ctrl-C reaches the demo alone), its output in a file."""

    def __init__(
        self, name: str, command: list[str], env: dict[str, str], log: Path, fds: tuple[int, ...] = ()
    ) -> None:
        self.name = name
        self.log = log
        with log.open("ab") as output:
            self.process = subprocess.Popen(
                [sys.executable, *command],
                cwd=FOLDER,
                env=env,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                preexec_fn=_die_with_parent,
                pass_fds=fds,
            )

    @property
    def alive(self) -> bool:
        return self.process.poll() is None

    def kill(self) -> None:
        """``kill -9``, whatever the process has started included."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def stop(self, patience: float = 8) -> None:
        """Ask, wait, insist."""
        if self.alive:
            self.process.terminate()
            try:
                self.process.wait(patience)
            except subprocess.TimeoutExpired:
                self.kill()

    def tail(self, lines: int = 25) -> str:
        text = self.log.read_text(errors="replace") if self.log.exists() else ""
        return "\n".join(text.splitlines()[-lines:])


class Processes:
    """All children of one demo; leaving the ``with`` block ends them, newest first."""

    def __init__(self, var: Path, env: dict[str, str]) -> None:
        self.var = var
        self.env = env
        self.children: list[Child] = []

    def __enter__(self) -> Processes:
        return self

    def __exit__(self, *exc_info: object) -> None:
        for child in reversed(self.children):
            child.stop()

    def start(self, name: str, *command: str, fds: tuple[int, ...] = ()) -> Child:
        child = Child(name, list(command), self.env, self.var / f"{name}.log", fds)
        self.children.append(child)
        return child

    def run(self, name: str, *command: str, timeout: float = 60) -> None:
        """A command that must succeed before anything else starts."""
        child = self.start(name, *command)
        try:
            code = child.process.wait(timeout)
        except subprocess.TimeoutExpired:
            raise DemoFailed(f"{name} took longer than {timeout:.0f} s:\n{child.tail()}") from None
        if code != 0:
            raise DemoFailed(f"{name} failed with exit code {code}:\n{child.tail()}")

    def wait_until(self, child: Child, ready: Callable[[], bool], timeout: float = 30) -> None:
        """Wait until ``ready()``; a child that has ended will not become it."""
        deadline = time.monotonic() + timeout
        while not ready():
            if not child.alive:
                raise DemoFailed(f"{child.name} ended at once:\n{child.tail()}")
            if time.monotonic() > deadline:
                raise DemoFailed(f"{child.name} was not ready after {timeout:.0f} s:\n{child.tail()}")
            time.sleep(0.05)


class Worker:
    """The worker that is killed and comes back. Its process id is in a file, for the button on the page."""

    def __init__(self, processes: Processes, pid_file: Path) -> None:
        self.processes = processes
        self.pid_file = pid_file
        self.kills = 0
        self.child: Child | None = None

    def start(self) -> None:
        self.child = self.processes.start("worker", "manage.py", "rivet_worker")
        fresh = self.pid_file.with_suffix(".new")
        fresh.write_text(str(self.child.process.pid))
        fresh.replace(self.pid_file)

    def tail(self) -> str:
        return self.child.tail() if self.child else ""

    def kill(self) -> None:
        assert self.child is not None
        self.child.kill()
        self.processes.children.remove(self.child)
        self.kills += 1

    def check(self) -> None:
        """A worker that ended without being killed is a fault, not a part of the show."""
        assert self.child is not None
        if not self.child.alive:
            raise DemoFailed(f"the worker ended by itself:\n{self.child.tail()}")

    def revive(self) -> bool:
        """Start another if somebody killed this one. Says whether it did."""
        assert self.child is not None
        if self.child.alive:
            return False
        self.processes.children.remove(self.child)
        self.start()
        return True


def listening_socket(preferred: int) -> socket.socket:
    """A listening socket on this machine, at the preferred port or a free one.

    The web server inherits it, so no other demo can take the port between our looking and its binding.
    """
    for port in (preferred, 0):
        listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind(("127.0.0.1", port))
            listener.listen(128)
        except OSError:
            listener.close()
            continue
        return listener
    raise DemoFailed("no port is free on 127.0.0.1")
