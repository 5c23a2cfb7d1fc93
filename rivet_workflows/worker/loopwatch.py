"""Sees to it that the loop of async steps turns: one step that blocks it (``time.sleep``) stops all others.

A thread asks the loop for an answer now and then while steps run on it. When none comes it says where the loop hangs,
ends the attempts whose time is up in the loop's stead, and at last puts a new loop in its place: the blocked one keeps
its thread for as long as it hangs, its other steps go on when it turns again, and new steps no longer wait for it.
"""

from __future__ import annotations

import logging
import sys
import threading
import traceback
from collections.abc import Awaitable, Callable, Iterable
from typing import Any

from rivet_workflows.worker.aioloop import StepLoop
from rivet_workflows.worker.attempt import Attempt

logger = logging.getLogger("rivet_workflows.worker")

#: Seconds between questions, until a loop counts as blocked, and until it is replaced.
EVERY, BLOCKED, REPLACED = 1.0, 3.0, 10.0
#: Loops that hang at a time: beyond it there is something wrong that more threads do not mend.
MOST = 4


class WatchedLoop:
    """A :class:`StepLoop` that is replaced when it hangs. The same methods."""

    def __init__(
        self,
        make: Callable[[], StepLoop],
        late: Callable[[Attempt], None],
        *,
        every: float = EVERY,
        blocked: float = BLOCKED,
        replaced: float = REPLACED,
    ) -> None:
        self._make = make
        self._late = late
        self._every, self._blocked, self._replaced = every, blocked, replaced
        self._loop = make()
        self._hanging: list[StepLoop] = []
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._watcher: threading.Thread | None = None

    def submit(self, attempts: Iterable[tuple[Attempt, Awaitable[Any] | None]]) -> None:
        with self._lock:
            if self._watcher is None:
                self._watcher = threading.Thread(target=self._watch, name="rivet-async-watch", daemon=True)
                self._watcher.start()
            self._loop.submit(attempts)

    def cancel(self, attempts: Iterable[Attempt]) -> None:
        unwanted = list(attempts)
        for loop in self._all():
            loop.cancel(unwanted)

    def tell(self) -> None:
        for loop in self._all():
            loop.tell()

    def stop(self, timeout: float) -> bool:
        self._ended.set()
        loops = self._all()
        ended = loops[0].stop(timeout)
        # Those that hang have had their time.
        stopped = [loop.stop(0) for loop in loops[1:]]
        return ended and all(stopped)

    def _all(self) -> list[StepLoop]:
        with self._lock:
            return [self._loop, *self._hanging]

    # -- the watcher's thread

    def _watch(self) -> None:
        while not self._ended.wait(self._every):
            self._dismiss()
            loop = self._loop
            if not loop.busy:
                continue
            silent = 0.0
            answer = loop.ask()
            while not answer.wait(self._every) and not self._ended.is_set():
                silent += self._every
                loop.tell()
                if silent >= self._blocked:
                    if silent - self._every < self._blocked:
                        _tell(loop, silent)
                    for attempt in loop.overdue():
                        self._late(attempt)
                if silent >= self._replaced and self._replace(loop):
                    break

    def _dismiss(self) -> None:
        """Loops that turn again, and have nothing left to do, are not needed any more."""
        with self._lock:
            done = [loop for loop in self._hanging if not loop.busy]
            self._hanging = [loop for loop in self._hanging if loop not in done]
        for loop in done:
            loop.stop(0)

    def _replace(self, loop: StepLoop) -> bool:
        with self._lock:
            if len(self._hanging) >= MOST or self._ended.is_set():
                return False
            self._hanging.append(loop)
            self._loop = self._make()
            waiting = loop.give_up_waiting()
            if waiting:
                self._loop.submit(waiting)
        logger.error("Async steps go on, on another loop; %d waited for this one", len(waiting))
        return True


def _tell(loop: StepLoop, silent: float) -> None:
    frame = sys._current_frames().get(loop.thread_id or 0)
    where = "".join(traceback.format_stack(frame)[-3:]) if frame is not None else "somewhere\n"
    logger.error(
        "An async def step has blocked the loop for %.0f s, and with it all other async steps. Await in it, or make it "
        "a def, which gets a thread. It is at:\n%s",
        silent,
        where,
    )
