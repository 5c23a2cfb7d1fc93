"""``rivet_worker --processes N``: a parent that starts N workers, starts again those that die, and passes signals on.

No pre-fork and nothing shared: each child is a new process with the same command line. Children are in a process group
of their own, so that Ctrl-C in a terminal reaches them once, through here; each holds a pipe that ends with the
parent, and stops when it does.
"""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rivet_workflows.worker.process import PARENT_FD, Happenings

logger = logging.getLogger("rivet_workflows.worker")

#: Exit codes that another start would not change: wrong usage, wrong tables.
HOPELESS = (2, 3)
#: Seconds before a worker that died is started again; doubled while it dies young, up to the longest.
FIRST_PAUSE, LONGEST_PAUSE, YOUNG = 0.5, 30.0, 10.0


@dataclass(slots=True)
class _Child:
    number: int
    process: subprocess.Popen[bytes]
    born: float
    pause: float


class _Ended:
    """A child has ended."""

    def __init__(self, child: _Child) -> None:
        self.child = child


class _Due:
    """It is time to start a child again."""

    def __init__(self, number: int, pause: float) -> None:
        self.number = number
        self.pause = pause


class Supervisor:
    """Keeps ``count`` children alive until told to stop; :meth:`run` returns the exit code."""

    def __init__(self, count: int, command: Sequence[str], happenings: Happenings) -> None:
        self._count = count
        self._command = list(command)
        self._happenings = happenings
        self._children: dict[int, _Child] = {}
        self._due = 0
        self._stopping = False
        self._code = 0
        self._lifeline, self._held = os.pipe()

    def run(self) -> int:
        """Start all, and see to them until the last one has ended."""
        for number in range(1, self._count + 1):
            self._start(number, FIRST_PAUSE)
        while self._children or (self._due and not self._stopping):
            happening = self._happenings.next()
            if isinstance(happening, signal.Signals):
                self._pass_on(happening)
            elif isinstance(happening, _Ended):
                self._bury(happening.child)
            elif isinstance(happening, _Due):
                self._due -= 1
                if not self._stopping:
                    self._start(happening.number, happening.pause)
        os.close(self._held)
        os.close(self._lifeline)
        return self._code

    def _start(self, number: int, pause: float) -> None:
        process = subprocess.Popen(  # noqa: S603  our own command line
            self._command,
            env={**os.environ, PARENT_FD: str(self._lifeline)},
            pass_fds=[self._lifeline],
            process_group=0,
        )
        child = _Child(number, process, time.monotonic(), pause)
        self._children[number] = child
        logger.info("Worker process %d of %d: pid %d", number, self._count, process.pid)

        def wait() -> None:
            process.wait()
            self._happenings.put(_Ended(child))

        threading.Thread(target=wait, name=f"rivet-child-{number}", daemon=True).start()

    def _pass_on(self, number: signal.Signals) -> None:
        if self._stopping:
            # The second: whoever started us sees the code that the signal has.
            self._code = 128 + number
        self._stopping = True
        for child in self._children.values():
            if child.process.poll() is None:
                child.process.send_signal(number)

    def _bury(self, child: _Child) -> None:
        del self._children[child.number]
        code = child.process.returncode
        if self._stopping:
            self._code = self._code or max(0, code)
            return
        if code == 0:
            return  # it had nothing left to do (--burst)
        if code in HOPELESS:
            logger.error(
                "Worker process %d ended with code %d; starting it again would not help", child.number, code
            )
            self._code = code
            self._pass_on(signal.SIGTERM)
            self._code = code
            return
        died_young = time.monotonic() - child.born < YOUNG
        pause = child.pause if died_young else FIRST_PAUSE
        what = f"by signal {-code}" if code < 0 else f"with code {code}"
        logger.warning("Worker process %d ended %s; it is started again in %g s", child.number, what, pause)
        self._due += 1
        timer = threading.Timer(
            pause, self._happenings.put, [_Due(child.number, min(LONGEST_PAUSE, pause * 2))]
        )
        timer.daemon = True
        timer.start()


def child_command(options: Mapping[str, Any]) -> list[str]:
    """The command line of one child: this one's, without ``--processes``."""
    # By the project's own script (manage.py) where that was called, else as `python -m django`, which looks for modules
    # in the working directory as the script does in its own.
    spec = getattr(sys.modules.get("__main__"), "__spec__", None)
    by_script = spec is None and sys.argv[1:2] == ["rivet_worker"] and Path(sys.argv[0]).is_file()
    start = [sys.argv[0]] if by_script else ["-m", "django"]
    command = [sys.executable, *start, "rivet_worker", "--verbosity", str(options["verbosity"])]
    for name in ("concurrency", "grace"):
        if options.get(name) is not None:
            command += [f"--{name}", f"{options[name]}"]
    for name in ("burst", "until_idle"):
        if options.get(name):
            command.append(f"--{name.replace('_', '-')}")
    for name in ("settings", "pythonpath"):
        if options.get(name):
            command += [f"--{name}", options[name]]
    if options.get("actors"):
        command += ["--actors", *options["actors"]]
    return command
