"""Runs the actions that callers want run where their actor is held, on threads of the runner's.

What runs next, and that one actor's run one at a time, is the core's to say; here one is taken, run and answered. It
is marked as running before the action begins, so it never runs twice. One that outlives its caller's patience is told,
and stores nothing; its thread is given up for lost, and the next call of the actor may begin.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Any

from rivet_workflows.client import bells
from rivet_workflows.client.actions import CallWithdrawn, find_action, run_called
from rivet_workflows.client.workercalls import call_timeout, failure_text
from rivet_workflows.crashpoints import crashpoint
from rivet_workflows.exceptions import RivetError, UserError
from rivet_workflows.records import CallStatus
from rivet_workflows.registry import registry
from rivet_workflows.worker.connections import drop
from rivet_workflows.worker.failures import shown
from rivet_workflows.worker.orders import CallStart
from rivet_workflows.worker.patience import OUTAGES
from rivet_workflows.worker.ports import WorkerStore

logger = logging.getLogger("rivet_workflows.worker")

#: Seconds between attempts to record a failure while the database is away: nothing rings when it is back.
AWAY = 0.5


class CallJob:
    """One call, for a thread. ``vars`` gives the actor's; ``ended`` is called once, when the next may begin."""

    def __init__(
        self,
        start: CallStart,
        worker_id: int,
        *,
        store: WorkerStore,
        vars: Callable[[], Any],
        now: Callable[[], int],
        ended: Callable[[CallStart], None],
    ) -> None:
        self.start = start
        self._worker_id = worker_id
        self._store = store
        self._vars = vars
        self._ended = ended
        self._late = False
        #: Taken by whoever ends it: its end, or its time.
        self._over = threading.Lock()
        left = (start.call.until - now()) / 1e6
        #: Seconds that it may run.
        self.timeout = max(0.01, min(left, self._own_timeout()))

    def run(self) -> bool:
        try:
            return self._run()
        except BaseException:
            logger.exception("The call of %s broke off", self._title)
            return False
        finally:
            if self._over.acquire(blocking=False):
                self._ended(self.start)

    def time_out(self) -> None:
        """Its caller has gone, and what it does is not stored."""
        if not self._over.acquire(blocking=False):
            return
        self._late = True
        logger.error(
            "%s still runs after %.3g s, when nobody waits for it any more; it keeps its thread, and nothing of it "
            "will be stored",
            self._title,
            self.timeout,
        )
        self._ended(self.start)

    # -- within

    def _own_timeout(self) -> float:
        try:
            return call_timeout(find_action(registry.get(self.start.actor_name), self.start.call.action))
        except (LookupError, RivetError):
            return float("inf")  # it will fail at once

    def _run(self) -> bool:
        call = self.start.call
        if not self._store.take_call(call.id, self._worker_id):
            return True
        crashpoint("call-taken")
        try:
            run_called(call, self.start.actor_name, self.start.key, self._vars, self._answer)
        except CallWithdrawn:
            logger.info("%s was withdrawn by its caller; nothing of it is stored", self._title)
        except BaseException as error:
            self._tell(error)
            self._fail(failure_text(error))
            return False
        crashpoint("call-run")
        return True

    def _answer(self, status: CallStatus, text: str) -> bool:
        return not self._late and self._store.answer_call(self.start.call, self._worker_id, status, text)

    def _fail(self, text: str) -> None:
        """Unless it was committed after all, and only its answer was lost."""
        until = time.monotonic() + self.timeout
        while True:
            try:
                with self._store.atomic():
                    self._store.answer_call(self.start.call, self._worker_id, CallStatus.FAILED, text)
                bells.announce(news=[self.start.actor_id])
                return
            except OUTAGES:
                if time.monotonic() > until:
                    raise
                drop(self._store.alias)
                # Nothing rings when the database is back; this thread is the call's own.
                time.sleep(AWAY)

    def _tell(self, error: BaseException) -> None:
        """A refusal is the caller's business; anything else is logged in full, as the caller may see less of it."""
        if not isinstance(error, UserError):
            logger.error("%s failed", self._title, exc_info=error)

    @property
    def _title(self) -> str:
        start = self.start
        return f"Action {start.call.action!r} of {start.actor_name}/{shown(start.key)}"
