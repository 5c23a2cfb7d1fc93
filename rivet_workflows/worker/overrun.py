"""Code of ``run`` that computes and never awaits: seen from outside, and made to end.

One thread of a worker runs the code of all workflows, between their awaits, which takes microseconds. A workflow that
loops for ever there would hold up all others, while the worker's heart goes on beating. So a thread looks at the time
that a turn takes; beyond the limit an exception is raised in it, by CPython's own means
(``PyThreadState_SetAsyncExc``), and the core sets the actor aside.

What is inside a call of C code (``time.sleep``, a regular expression that explodes) hears of it when that returns.
Knows threads and time, and nothing of the engine.
"""

from __future__ import annotations

import ctypes
import logging
import sys
import threading
import time
import traceback
from collections.abc import Callable
from types import FrameType
from typing import Any, TypeVar

from rivet_workflows.worker.orders import Overran

logger = logging.getLogger("rivet_workflows.worker")

A = TypeVar("A")
R = TypeVar("R")

#: Lines of the stack in the log.
SHOWN = 12


class RunWatch:
    """Calls workflow code, on one thread, and has it end after ``limit`` seconds; None: there is no limit.

    ``describe`` says of the argument whose code it is, for the log.
    """

    def __init__(self, limit: float | None, describe: Callable[[Any], str] = repr) -> None:
        self.limit = limit
        self._describe = describe
        self._argument: Any = None
        #: Which call the log has told of, and after how many seconds it is told again.
        self._told, self._again = 0.0, 0.0
        self._lock = threading.Lock()
        self._thread = 0
        #: Monotonic seconds since when something is called; 0.0: nothing is.
        self._since = 0.0
        self._overran = False
        self._ended = threading.Event()

    def __call__(self, function: Callable[[A], R], argument: A) -> R:
        """What ``function(argument)`` gives. Raises Overran where it was made to end, whatever it made of that."""
        # One that was raised as the call before it ended may have left its mark, which is not this one's.
        self._overran = False
        self._argument, self._since = argument, time.monotonic()
        try:
            result = function(argument)
        finally:
            self._since = 0.0
            # Whoever raises holds the lock: from here on nobody does, and what was raised is out by the next call.
            with self._lock:
                overran, self._overran = self._overran, False
            if overran:
                # No wait: a call, at which what was raised in this thread comes out, if it has not yet.
                time.sleep(0)
        if overran:
            raise Overran
        return result

    def start(self) -> None:
        """Watch the calling thread, from another one, until :meth:`stop`."""
        self._thread = threading.get_ident()
        if self.limit is not None:
            threading.Thread(
                target=self._watch, args=[self.limit], name="rivet-run-watch", daemon=True
            ).start()

    def stop(self) -> None:
        """End the thread that watches."""
        self._ended.set()

    def _watch(self, limit: float) -> None:
        while not self._ended.wait(limit / 4):
            since = self._since
            if since and time.monotonic() - since > limit:
                self._end(since, limit)

    def _end(self, since: float, limit: float) -> None:
        with self._lock:
            frame = sys._current_frames().get(self._thread)
            # Whoever steps through it with a debugger takes the time it needs.
            if self._since != since or frame is None or _is_traced(frame):
                return
            self._overran = True
            self._tell(since, limit, frame)
            ctypes.pythonapi.PyThreadState_SetAsyncExc(
                ctypes.c_ulong(self._thread), ctypes.py_object(Overran)
            )

    def _tell(self, since: float, limit: float, frame: FrameType) -> None:
        """Once, and again after twice the time: what is inside a call of C code does not hear of it."""
        took = time.monotonic() - since
        if since != self._told:
            self._told, self._again = since, 0.0
        if took < self._again:
            return
        self._again = 2 * took
        stack = "".join(traceback.format_stack(frame)[-SHOWN:])
        logger.error(
            "The code of run of %s has computed for %.0f s, more than %g, and awaits nothing, while all others of "
            "its worker wait; it is made to end:\n%s",
            self._describe(self._argument),
            took,
            limit,
            stack,
        )


def _is_traced(innermost: FrameType) -> bool:
    frame: FrameType | None = innermost
    while frame is not None:
        if frame.f_trace is not None:
            return True
        frame = frame.f_back
    return False
