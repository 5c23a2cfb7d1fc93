"""The worker's heartbeat and its own watchdog, on threads of their own.

The heartbeat goes on whatever else the worker does, to the very end of a slow stop: a worker that stops beating before
its last step has ended gets its work taken away. The watchdog looks from the other side: when no heartbeat could be
written for a whole lease, others may rightly hold our actors, so steps must be told to stop, database or not.

May use the store for the heartbeat and for nothing else.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Protocol

from rivet_workflows.store.errors import WorkerForgotten
from rivet_workflows.worker.connections import close_all
from rivet_workflows.worker.patience import describe

logger = logging.getLogger("rivet_workflows.worker")


class BeatingStore(Protocol):
    """What the heartbeat needs of the store."""

    def heartbeat(self, worker_id: int) -> int:
        """Write a heartbeat; the database's time. Raises WorkerForgotten when the row is gone."""


class Pulse:
    """Beats for one worker id from :meth:`start` to :meth:`stop`.

    ``beat`` is called after each heartbeat with the database's time and the monotonic seconds of question and answer;
    ``lost`` once, with the reason, when the lease has run out or the worker's row is gone.
    """

    def __init__(
        self,
        store: BeatingStore,
        worker_id: int,
        *,
        interval: float,
        lease: float,
        beat: Callable[[int, float, float], None],
        lost: Callable[[str], None],
    ) -> None:
        self._store = store
        self._worker_id = worker_id
        self._interval = interval
        self._lease = lease
        self._beat = beat
        self._lost: Callable[[str], None] | None = lost
        self._last = time.monotonic()
        self._failing = False
        self._ended = threading.Event()
        self._threads = [
            threading.Thread(target=self._beat_on, name="rivet-heartbeat", daemon=True),
            threading.Thread(target=self._watch, name="rivet-watchdog", daemon=True),
        ]

    def start(self, registered: float) -> None:
        """Begin; ``registered``: the monotonic seconds just before the worker's row was written."""
        self._last = registered
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """End both threads. Waits for a heartbeat that is being written, within reason."""
        self._lost = None
        self._ended.set()
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join(self._interval)

    def _beat_on(self) -> None:
        while not self._ended.wait(self._interval):
            asked = time.monotonic()
            try:
                now = self._store.heartbeat(self._worker_id)
            except WorkerForgotten:
                self._lose("another worker has taken this one for dead")
                break
            except Exception as error:
                if not self._failing:
                    self._failing = True
                    logger.warning("The heartbeat could not be written (%s); trying on", describe(error))
                close_all()
                continue
            self._last = asked
            if self._failing:
                self._failing = False
                logger.info("Heartbeats are written again")
            self._beat(now, asked, time.monotonic())
        close_all()

    def _watch(self) -> None:
        while True:
            left = self._last + self._lease - time.monotonic()
            if left <= 0:
                self._lose(f"no heartbeat could be written for {self._lease:g} s, the length of the lease")
                return
            if self._ended.wait(left):
                return

    def _lose(self, reason: str) -> None:
        lost, self._lost = self._lost, None
        if lost is not None:
            lost(reason)
