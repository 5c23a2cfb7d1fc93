"""What a worker was told from outside: stop, leave at once. Set from signal handlers and other threads, never cleared.

A request that comes before the worker's threads exist is found when they do: nothing resets these flags, so a stop
cannot be lost between starting and looking.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable


class Control:
    """Thread-safe; :meth:`stop` and :meth:`leave` may be called from a signal handler."""

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._changed = threading.Event()
        self.stopping = False
        self.leaving = False
        #: Monotonic seconds until which running steps may finish.
        self.deadline = float("inf")
        #: Why, for the log.
        self.reason = ""
        self.exit_code = 0

    def stop(self, grace: float, reason: str, exit_code: int = 0) -> None:
        """Finish what runs, at most ``grace`` seconds, hand the rest back, end. The first call counts."""
        if not self.stopping:
            self.reason, self.exit_code = reason, exit_code
            self.deadline = self._monotonic() + grace
            self.stopping = True
            self._changed.set()

    def leave(self, exit_code: int) -> None:
        """Hand back what can be handed back at once, and end."""
        self.exit_code = exit_code
        self.deadline = self._monotonic()
        self.stopping = self.leaving = True
        self._changed.set()

    def pause(self, seconds: float) -> bool:
        """Wait; False when whoever waits should give up: told to leave, or no time is left."""
        if self.leaving:
            return False
        if self.stopping:
            # The flag is up already and would end every wait at once.
            left = self.deadline - self._monotonic()
            if left <= 0:
                return False
            time.sleep(min(seconds, left))
            return not self.leaving
        self._changed.wait(seconds)
        return not self.leaving
