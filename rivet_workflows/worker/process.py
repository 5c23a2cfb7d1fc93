"""What a worker is as a process: signals, the last exit, log output, and the supervisor's end noticed.

A signal handler runs in the middle of anything, so it only puts a number into a queue that is made for it; whoever
waits on that queue, in the main thread, does the rest.
"""

from __future__ import annotations

import gc
import logging
import os
import signal
import sys
import threading
from contextlib import suppress
from queue import Empty, SimpleQueue
from types import FrameType
from typing import Any

#: In the environment of a child: the file descriptor that ends with its supervisor.
PARENT_FD = "RIVET_WORKER_PARENT_FD"

#: New objects that may be there before Python looks for cycles among the young ones, and how often it then looks among
#: older ones.
GC_THRESHOLDS = (10_000, 20, 50)
#: Seconds. A signal that comes in the instant between Python's last check for signals and the system call that waits
#: does not end the wait, and its handler does not run before the wait is over: so no wait is longer than this.
LOOK_AGAIN = 0.5


class Happenings:
    """A queue of signals and ends, for the main thread. Entered, it hears SIGTERM and SIGINT.

    The first two of them are put into the queue; a third ends the process, and so does a second one that comes while
    nobody has begun to look (:attr:`attended`).
    """

    def __init__(self) -> None:
        self._queue: SimpleQueue[Any] = SimpleQueue()
        self._count = 0
        self._before: dict[int, Any] = {}
        self.attended = False

    def __enter__(self) -> Happenings:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGTERM, signal.SIGINT):
                self._before[number] = signal.signal(number, self._heard)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def put(self, happening: Any) -> None:
        """From any thread, and from a signal handler."""
        self._queue.put(happening)

    def next(self, timeout: float | None = None) -> Any:
        """The next one; None when there is none for ``timeout`` seconds."""
        self.attended = True
        left = float("inf") if timeout is None else timeout
        while True:
            piece = min(left, LOOK_AGAIN)
            try:
                return self._queue.get(timeout=piece)
            except Empty:
                left -= piece
                if left <= 0:
                    return None

    def _heard(self, number: int, _: FrameType | None) -> None:
        self._count += 1
        if self._count > 2 or (self._count == 2 and not self.attended):
            os._exit(128 + number)
        self._queue.put(signal.Signals(number))


def hard_exit(code: int) -> None:
    """End the process now: threads in users' code cannot be ended, and a normal exit would wait for some of them."""
    logging.getLogger("rivet_workflows.worker").warning("Leaving while steps still run")
    for stream in (sys.stdout, sys.stderr):
        with suppress(Exception):
            stream.flush()
    os._exit(code)


def watch_parent(happenings: Happenings) -> None:
    """In a supervisor's child: stop when the supervisor is gone, however it went. Its end closes the pipe."""
    given = os.environ.pop(PARENT_FD, None)
    if given is None:
        return
    descriptor = int(given)

    def watch() -> None:
        with suppress(OSError):
            os.read(descriptor, 1)
        happenings.put(signal.SIGTERM)

    threading.Thread(target=watch, name="rivet-parent", daemon=True).start()


def settle_memory() -> None:
    """Spare the collector of cycles what is there for good, before the work begins.

    A step makes and drops some fifty objects, and hardly ever a cycle. With the project's modules among what is looked
    at, a full collection took 0.1 s in which nothing else ran, and the small ones 15 µs a step on Python 3.11.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(*GC_THRESHOLDS)


def configure_logging(verbosity: int) -> None:
    """Show our log lines on stderr where the project's ``LOGGING`` does not already say what becomes of them."""
    ours = logging.getLogger("rivet_workflows")
    level = {0: logging.ERROR, 1: logging.INFO}.get(verbosity, logging.DEBUG)
    if ours.level == logging.NOTSET or verbosity > 1:
        ours.setLevel(level)
    if not ours.hasHandlers():
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)-7s %(message)s"))
        ours.addHandler(handler)
