"""Failures that are durable now: one log line each, and the actor's ``on_error`` (D-21).

The hook runs on a thread of the runner's, after the commit that recorded the failure, in a transaction of its own. Best
effort: it is not in the history, a crash may skip it, and its own errors are logged.
"""

from __future__ import annotations

import json
import logging
import threading
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING
from uuid import UUID

from rivet_workflows.records import Blocked
from rivet_workflows.worker.hookjobs import HookJob, Wanted, too_long
from rivet_workflows.worker.orders import ErrorEvent
from rivet_workflows.worker.runner import StepRunner

if TYPE_CHECKING:
    from rivet_workflows.registry import ActorType

logger = logging.getLogger("rivet_workflows.worker")


class FailureTeller:
    """``hook(actor_type, event)`` runs ``on_error`` in a transaction of its own."""

    def __init__(
        self,
        runner: StepRunner,
        catalog: Callable[[str], ActorType],
        hook: Callable[[ActorType, ErrorEvent, Wanted], None],
    ) -> None:
        self._runner = runner
        self._catalog = catalog
        self._hook = hook
        self._lock = threading.Lock()
        #: Failures that an actor's hook has yet to be told; an actor is in here while its errand runs.
        self._waiting: dict[UUID, deque[ErrorEvent]] = {}

    def tell(self, event: ErrorEvent) -> None:
        """Log the failure and have the hook called, if the actor has one."""
        self._log(event)
        try:
            actor_type = self._catalog(event.actor_name)
        except LookupError:
            return
        if "on_error" not in actor_type.hooks:
            return
        with self._lock:
            waiting = self._waiting.get(event.actor_id)
            if waiting is not None:
                waiting.append(event)
                return
            self._waiting[event.actor_id] = deque([event])
        self._next(actor_type, event.actor_id)

    def _next(self, actor_type: ActorType, actor_id: UUID) -> None:
        """One after the other for one actor, in the order of its failures; a slow hook delays no other actor's."""
        with self._lock:
            waiting = self._waiting[actor_id]
            if not waiting:
                del self._waiting[actor_id]
                return
            event = waiting.popleft()
        title = f"on_error of {event.actor_name}/{shown(event.key)}"

        def work(wanted: Wanted) -> None:
            try:
                self._hook(actor_type, event, wanted)
            except BaseException:
                if wanted():
                    logger.exception("%s failed", title)

        self._runner.hook(
            HookJob(
                work,
                lambda: self._next(actor_type, actor_id),
                lambda: logger.error("%s failed: %s", title, too_long("on_error").message),
            )
        )

    @staticmethod
    def _log(event: ErrorEvent) -> None:
        logger.log(
            logging.WARNING if event.will_retry else logging.ERROR,
            "%s/%s: %s: %s",
            event.actor_name,
            shown(event.key),
            what_happened(event),
            event.error,
            extra={
                "rivet_actor": event.actor_name,
                "rivet_key": event.key,
                "rivet_actor_id": str(event.actor_id),
                "rivet_step": event.step_name,
                "rivet_traceback": event.error.traceback,
            },
        )


def what_happened(event: ErrorEvent) -> str:
    """The failure, without its error."""
    if event.set_aside is not None:
        return "its rollback is stuck" if event.set_aside == Blocked.ROLLBACK_FAILED.reason else "set aside"
    what = f'step "{event.step_name}"' if event.step_name else "the workflow"
    if event.source == "rollback":
        what = f"the rollback of {what}"
    elif event.source not in ("step", "workflow"):
        what = event.source  # a hook of the worker's
    fate = ""
    if event.will_retry:
        fate = f", attempt {event.attempt}; next in {event.retry_delay or 0:g} s"
    elif event.attempt:
        fate = f", attempt {event.attempt}, the last"
    return f"{what} failed{fate}"


def shown(key: str) -> str:
    """A stored key, on one line."""
    try:
        text = "/".join(map(str, json.loads(key)))
    except (ValueError, TypeError):
        text = key
    return text if text.isprintable() else ascii(text)
