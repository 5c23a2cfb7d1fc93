"""What callers get back from an actor: :class:`Sent`, :class:`ActorStatus`, and the errors of ``result()``. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any, Generic, NoReturn, TypeVar

from rivet_workflows.client.moments import from_micros
from rivet_workflows.exceptions import ErrorInfo, WorkflowCancelled, failure_from_record
from rivet_workflows.records import Blocked, Kind, Lifecycle, load_open
from rivet_workflows.store.rows import ActorRow, RunRow

__all__ = ["ENDED", "ActorState", "ActorStatus", "Sent", "error_info", "raise_failure", "status_of"]

R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class Sent(Generic[R]):
    """What became of a send.

    ``status``: ``queued``; of a waiting send also ``completed``, ``timed_out`` (the message stays queued) and
    ``failed`` (the run ended, or took the message without completing it). ``response`` is what the actor completed it
    with. ``id`` is None for a send that joins a step's commit: there is no message yet. ``duplicate``: the dedupe key
    was used before, nothing was sent, ``id`` is the earlier message's.
    """

    id: int | None
    status: str = "queued"
    response: R | None = None
    duplicate: bool = False


class ActorState(StrEnum):
    """What an actor's workflow is doing. ``idle``: it has none."""

    IDLE = "idle"
    PENDING = "pending"
    RUNNING = "running"
    SLEEPING = "sleeping"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"
    ROLLING_BACK = "rolling_back"
    PAUSED = "paused"
    SET_ASIDE = "set_aside"


@dataclass(frozen=True, slots=True)
class ActorStatus:
    """An actor's state at one moment; ``str()`` of it is the state.

    ``reason`` says why it is set aside or its rollback is stuck: ``diverged poisoned unreadable rollback_failed``.
    ``waiting_for`` has the queue names that it waits for, ``()`` for any, None when it waits for no message.
    ``since`` is when the state began, as far as known; ``wake_at`` when its next timer is due; ``error`` what ended
    or stopped it.
    """

    state: ActorState
    reason: str | None = None
    waiting_for: tuple[str, ...] | None = None
    since: datetime | None = None
    wake_at: datetime | None = None
    error: ErrorInfo | None = None

    def __str__(self) -> str:
        return self.state.value


#: Ways in which a run is over.
ENDED = {
    Lifecycle.COMPLETED: ActorState.COMPLETED,
    Lifecycle.FAILED: ActorState.FAILED,
    Lifecycle.CANCELLED: ActorState.CANCELLED,
}


def status_of(run: RunRow, actor: ActorRow) -> ActorStatus:
    """The status that the stored rows say."""
    error = error_info(actor.error)
    if run.blocked == Blocked.OVER:
        state = ENDED.get(actor.lifecycle, ActorState.IDLE)
        since = actor.created_at if actor.finished_at is None else actor.finished_at
        return ActorStatus(state, since=from_micros(since), error=error)
    if run.blocked != Blocked.NO:
        state = {Blocked.PAUSED: ActorState.PAUSED, Blocked.ROLLBACK_FAILED: ActorState.ROLLING_BACK}.get(
            run.blocked, ActorState.SET_ASIDE
        )
        return ActorStatus(state, reason=run.blocked.reason, error=error)
    if not run.inflight:
        # Never taken up, or started over by a control operation.
        state = ActorState.PENDING if run.owner_id is None else ActorState.RUNNING
        return ActorStatus(state, since=from_micros(actor.created_at), error=error)
    try:
        return _of_open_entries(run, error)
    except (ValueError, KeyError, TypeError, AttributeError) as exc:
        # Damaged, and no worker has met it yet: the first that does sets it aside.
        info = ErrorInfo.from_exception(exc, with_traceback=False)
        return ActorStatus(ActorState.SET_ASIDE, reason=Blocked.UNREADABLE.reason, error=info)


def _of_open_entries(run: RunRow, error: ErrorInfo | None) -> ActorStatus:
    opened = load_open(run.inflight)
    leaves = [entry for entry in opened["e"] if entry["k"] in _LEAVES]
    began = [entry["t"] for entry in leaves if entry.get("t")]
    if opened.get("rb"):
        state = ActorState.ROLLING_BACK
    elif leaves and all(_waits(entry) for entry in leaves):
        state = ActorState.SLEEPING
    elif leaves or run.owner_id is not None:
        state = ActorState.RUNNING
    else:
        state = ActorState.PENDING
    return ActorStatus(
        state,
        waiting_for=_waiting_for(leaves),
        since=from_micros(max(began)) if began else None,
        wake_at=_wake_at([opened["rb"]] if opened.get("rb") else leaves),
        error=error,
    )


#: Open entries of other kinds hold these; they do not wait or run by themselves.
_LEAVES = frozenset({Kind.STEP, Kind.SLEEP, Kind.MESSAGE, Kind.CHILD})


def _waits(entry: Mapping[str, Any]) -> bool:
    return entry["k"] != Kind.STEP or entry.get("b") is not None


def _waiting_for(leaves: list[dict[str, Any]]) -> tuple[str, ...] | None:
    waits = [entry.get("q") for entry in leaves if entry["k"] == Kind.MESSAGE]
    if not waits:
        return None
    if any(names is None for names in waits):
        return ()
    return tuple(dict.fromkeys(name for names in waits for name in names or ()))


def _wake_at(entries: list[dict[str, Any]]) -> datetime | None:
    due = [at for entry in entries for at in (entry.get("d"), entry.get("b")) if at is not None]
    return from_micros(min(due)) if due else None


def raise_failure(lifecycle: int, error: str | None) -> NoReturn:
    """Raise what ``result()`` raises for a run that ended without a value.

    Step, join, race, queue and child errors are rebuilt from the record as the workflow met them, anything else is a
    ``WorkflowFailed``; no class of the project is imported.
    """
    if lifecycle == Lifecycle.CANCELLED:
        raise WorkflowCancelled("the workflow was cancelled")
    record = json.loads(error) if error else {}
    raise failure_from_record(record if "error" in record else {"error": record})


def error_info(text: str | None, *, cause: bool = False) -> ErrorInfo | None:
    """The :class:`ErrorInfo` in a stored error: the record of what was raised, or with ``cause`` of what made it so
    (the project's own exception behind a ``StepFailed``)."""
    if not text:
        return None
    record = json.loads(text)
    if "error" in record:
        record = (cause and record.get("cause")) or record["error"]
    return ErrorInfo.from_dict(record)
