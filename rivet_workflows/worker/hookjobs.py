"""Hooks on threads of their own, within bounds: one that never ends must not keep those of other actors from running.

After ``HOOK_TIMEOUT`` a hook is given up: that is told, the worker goes on as if it had failed, and what it still does
is dropped. Its thread stays with it; another takes its place, up to twice as many.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from rivet_workflows.conf import settings
from rivet_workflows.exceptions import ErrorInfo

logger = logging.getLogger("rivet_workflows.worker")

#: Is the result still wanted? A hook that was given up asks before it writes.
Wanted = Callable[[], bool]


class HookJob:
    """``work`` calls hooks; ``ended`` is called once, when it is through or given up, ``late`` before that."""

    def __init__(
        self,
        work: Callable[[Wanted], None],
        ended: Callable[[], None] = lambda: None,
        late: Callable[[], None] = lambda: None,
    ) -> None:
        self.timeout: float | None = settings.HOOK_TIMEOUT
        self._work = work
        self._ended = ended
        self._tell_late = late
        self._late = False
        #: Taken by whoever ends it: its end, or its time.
        self._over = threading.Lock()

    def run(self) -> bool:
        try:
            self._work(lambda: not self._late)
        except BaseException:
            logger.exception("A hook broke off")
            return False
        finally:
            if self._over.acquire(blocking=False):
                self._ended()
        return True

    def time_out(self) -> None:
        """It has run for too long."""
        if not self._over.acquire(blocking=False):
            return
        self._late = True
        try:
            self._tell_late()
        finally:
            self._ended()


def too_long(hook: str) -> ErrorInfo:
    """The failure of a hook that was given up."""
    return ErrorInfo(
        "TimeoutError",
        f"{hook} ran longer than {settings.HOOK_TIMEOUT:g} s (HOOK_TIMEOUT) and was given up; its thread is lost until "
        "it ends",
        bases=("TimeoutError", "OSError", "Exception", "BaseException"),
    )
