"""Every error a user of the package can meet, in one shallow tree, and the record an error leaves behind.

Pure Python: knows no Django, no engine, no store, so that every room may import it.
Each class has a stable ``code`` that clients switch on; texts may improve, codes do not change.

Failures are data (D-10): what a step raised is kept as an :class:`ErrorInfo`, and the exception that
workflow code sees is built from that record, the first time exactly as on a replay. No user class is
imported or constructed to raise it. The idea of a typed failure record with ``is_a`` comes from
Temporal's ``ApplicationError.type``.
"""

from __future__ import annotations

import traceback as _traceback
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

__all__ = [
    "ActionFailed",
    "ActionNotFound",
    "ActorBusy",
    "ActorExists",
    "ActorNotFound",
    "ChildFailed",
    "CriticalError",
    "EntryInProgress",
    "ErrorInfo",
    "HistoryDiverged",
    "JoinError",
    "MessageNotCompleted",
    "NoWorker",
    "NotReplaySafe",
    "PayloadTooLarge",
    "PermissionDenied",
    "QueueFull",
    "QueueNotFound",
    "QueueTimeout",
    "RaceError",
    "ResultTimeout",
    "RivetError",
    "RollbackCheckpointError",
    "RollbackError",
    "ScheduleError",
    "SerializationError",
    "StateConflict",
    "StepExhausted",
    "StepFailed",
    "StepTimeout",
    "UserError",
    "ValidationFailed",
    "WorkflowCancelled",
    "WorkflowFailed",
]

_TRACEBACK_LIMIT = 16_000
_MESSAGE_LIMIT = 8_000
_PRIMITIVES = (str, int, float, bool, type(None))


def dotted_name(cls: type) -> str:
    """``module.QualName`` of a class; builtins without their module, as people write them."""
    return cls.__qualname__ if cls.__module__ == "builtins" else f"{cls.__module__}.{cls.__qualname__}"


def _safe_text(value: object) -> str:
    """``str(value)`` that cannot raise: an exception's ``__str__`` is user code and may be broken."""
    try:
        return str(value)
    except Exception as exc:
        return f"<{type(value).__name__}: its text cannot be shown, __str__ raised {type(exc).__name__}>"


def _cut(text: str, limit: int) -> str:
    return text if len(text) <= limit else f"{text[:limit]}… [{len(text) - limit} more characters]"


@dataclass(frozen=True, slots=True)
class ErrorInfo:
    """What is kept of an exception: enough to decide and to debug, nothing that must be imported again.

    ``type`` and ``bases`` are dotted names (``bases`` is the whole MRO, the class itself first), so
    :meth:`is_a` answers also after the class was moved or deleted. ``metadata`` holds the exception's own
    attributes with primitive values.
    """

    type: str
    message: str
    bases: tuple[str, ...] = ()
    traceback: str = ""
    metadata: Mapping[str, Any] = field(default_factory=dict)

    def is_a(self, name: str) -> bool:
        """Is the error's class, or one of its bases, called ``name`` (dotted, or the bare class name)?"""
        names = self.bases or (self.type,)
        return name in names or ("." not in name and any(n.rsplit(".", 1)[-1] == name for n in names))

    def __str__(self) -> str:
        short = self.type.rsplit(".", 1)[-1]
        return f"{short}: {self.message}" if self.message else short

    @classmethod
    def from_exception(cls, exc: BaseException, *, with_traceback: bool = True) -> ErrorInfo:
        """The record of ``exc``. Never raises, whatever the exception's own code does."""
        if isinstance(exc, RivetError) and isinstance(exc.error, ErrorInfo) and not with_traceback:
            return exc.error
        text = ""
        if with_traceback:
            try:
                text = "".join(_traceback.format_exception(exc))
            except Exception as broken:
                text = f"<traceback cannot be shown: {type(broken).__name__}>"
        try:
            own = {k: v for k, v in vars(exc).items() if not k.startswith("_") and isinstance(v, _PRIMITIVES)}
        except Exception:  # a __dict__ of the class's own making: the record does without
            own = {}
        metadata = getattr(exc, "metadata", None)
        if isinstance(metadata, Mapping):
            own |= {str(k): v for k, v in metadata.items() if isinstance(v, _PRIMITIVES)}
        return cls(
            type=dotted_name(type(exc)),
            message=_cut(_safe_text(exc), _MESSAGE_LIMIT),
            bases=tuple(dotted_name(b) for b in type(exc).__mro__ if b is not object),
            # The end of a traceback says where it happened; the start is the way there.
            traceback=text if len(text) <= _TRACEBACK_LIMIT else "…" + text[-_TRACEBACK_LIMIT:],
            metadata=own,
        )

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON types, for storage and for REST."""
        return {
            "type": self.type,
            "message": self.message,
            "bases": list(self.bases),
            "traceback": self.traceback,
            "metadata": dict(self.metadata),
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> ErrorInfo:
        """The reverse of :meth:`to_dict`; missing parts are empty, so older records still read."""
        return cls(
            type=str(data.get("type", "Exception")),
            message=str(data.get("message", "")),
            bases=tuple(data.get("bases") or ()),
            traceback=str(data.get("traceback") or ""),
            metadata=dict(data.get("metadata") or {}),
        )


class RivetError(Exception):
    """Base of every error the package raises. ``code`` is stable; ``metadata`` is shown to callers."""

    code: ClassVar[str] = "internal_error"

    def __init__(
        self, message: str = "", *, metadata: Mapping[str, Any] | None = None, error: ErrorInfo | None = None
    ) -> None:
        super().__init__(message)
        self.message = message
        self.metadata: dict[str, Any] = dict(metadata or {})
        #: The record this error was built from, where there is one.
        self.error = error

    def __str__(self) -> str:
        return self.message


# -- what a workflow's own code meets ------------------------------------------------------------------


class StepFailed(RivetError):
    """A step ended in failure. Built from its record; catch it in ``run`` with plain ``try``/``except``."""

    code = "step_failed"
    #: Failure kind of a bare instance raised by step code; see ``kind``.
    default_kind: ClassVar[str] = "critical"

    def __init__(
        self,
        message: str = "",
        *,
        step_name: str | None = None,
        kind: str | None = None,
        attempts: int = 0,
        error: ErrorInfo | None = None,
        metadata: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(message, metadata=metadata, error=error)
        self.step_name = step_name
        #: ``exhausted timeout critical rollback conflict``.
        self.kind = kind or self.default_kind
        self.attempts = attempts

    @staticmethod
    def from_record(
        step_name: str, kind: str, attempts: int, error: ErrorInfo, *, retried: bool = False
    ) -> StepFailed:
        """The exception for a recorded failure. ``retried``: the step's retries were used up."""
        classes: dict[str, type[StepFailed]] = {
            "exhausted": StepExhausted,
            "timeout": StepExhausted if retried else StepTimeout,
            "critical": CriticalError,
            "rollback": RollbackError,
            "conflict": StateConflict,
        }
        times = "1 attempt" if attempts == 1 else f"{attempts} attempts"
        return classes.get(kind, StepFailed)(
            f'step "{step_name}" failed ({kind}) after {times}: {error}',
            step_name=step_name,
            kind=kind,
            attempts=attempts,
            error=error,
        )


class StepExhausted(StepFailed):
    """Every allowed attempt of the step failed."""

    code = "step_exhausted"
    default_kind = "exhausted"


class StepTimeout(StepFailed):
    """An attempt ran longer than the step's ``timeout`` and ``retry_on_timeout`` was not set."""

    code = "step_timeout"
    default_kind = "timeout"


class StateConflict(StepFailed):
    """A step and an action changed the same field of the state, in every allowed attempt (D-13)."""

    code = "state_conflict"
    default_kind = "conflict"


class CriticalError(StepFailed):
    """Raise it in a step, with a message, to end the step without another attempt."""

    code = "critical_error"
    default_kind = "critical"


class RollbackError(StepFailed):
    """Raise it in a step, with a message, to end the step and have the workflow rolled back."""

    code = "rollback_error"
    default_kind = "rollback"


class _BranchesFailed(RivetError):
    def __init__(
        self, message: str = "", *, errors: Mapping[Any, ErrorInfo] | None = None, name: str = ""
    ) -> None:
        super().__init__(message)
        #: The name of the call that failed.
        self.name = name
        #: Failed branch (of a map: index) to the record of its error.
        self.errors: dict[Any, ErrorInfo] = dict(errors or {})


class JoinError(_BranchesFailed):
    """One or more branches of a ``join`` or items of a ``map`` failed; all others have finished."""

    code = "join_failed"


class RaceError(_BranchesFailed):
    """Every branch of a ``race`` failed."""

    code = "race_failed"


class QueueTimeout(RivetError, TimeoutError):
    """``queue.next`` met its deadline without a message. ``next_batch`` gives ``[]`` instead."""

    code = "queue_timeout"


class ChildFailed(RivetError):
    """The workflow of a child actor failed, was cancelled, or is gone; ``error`` says how."""

    code = "child_failed"


class MessageNotCompleted(RivetError):
    """A receive while a completable message of this actor is still open (R-QUEUE-22)."""

    code = "previous_message_not_completed"


# -- what is reported of a run, never raised into it ---------------------------------------------------


class HistoryDiverged(RivetError):
    """The code no longer fits the recorded history. Nothing has run; the actor waits for code that fits."""

    code = "history_diverged"


class EntryInProgress(RivetError):
    """A context was used while another call on it was unfinished: no ``await``, or the wrong context."""

    code = "entry_in_progress"


class RollbackCheckpointError(RivetError):
    """A step has a ``rollback`` but no checkpoint was set before it in its scope."""

    code = "rollback_checkpoint_missing"


class NotReplaySafe(RivetError):
    """``run`` did what a replay cannot repeat: a foreign await, state, the ORM, the clock."""

    code = "not_replay_safe"


# -- what result() raises ------------------------------------------------------------------------------


class WorkflowFailed(RivetError):
    """The workflow ended in failure; ``error`` is the record of what left ``run``."""

    code = "workflow_failed"


class WorkflowCancelled(RivetError):
    """The workflow was cancelled."""

    code = "workflow_cancelled"


class ResultTimeout(RivetError, TimeoutError):
    """``result(timeout=…)`` met its deadline; the workflow goes on, or is set aside: the message says why."""

    code = "result_timeout"


# -- what callers of actors meet -----------------------------------------------------------------------


class UserError(RivetError):
    """Reaches the caller as it is, also a remote one. Any other exception is logged in full and masked."""

    def __init__(
        self, message: str = "", *, code: str = "user_error", metadata: Mapping[str, Any] | None = None
    ) -> None:
        super().__init__(message, metadata=metadata)
        self.code = code  # type: ignore[misc]  # per instance: the project names its own codes


class ActorExists(RivetError):
    """``create`` met an actor of that name and key."""

    code = "actor_exists"


class ActorNotFound(RivetError):
    """No actor of that name and key, or the id belongs to one that was destroyed."""

    code = "actor_not_found"


class ActorBusy(RivetError):
    """The actor's row was locked longer than ``ACTION_LOCK_TIMEOUT``; try again."""

    code = "actor_busy"


class ActionNotFound(RivetError):
    """The actor has no action of that name."""

    code = "action_not_found"


class QueueNotFound(RivetError):
    """The actor declares queues and this is none of them."""

    code = "queue_not_found"


class QueueFull(RivetError):
    """The actor holds ``MAX_QUEUE_SIZE`` messages already."""

    code = "queue_full"


class PayloadTooLarge(RivetError):
    """An encoded value is over its limit; the message names the limit and the value."""

    code = "payload_too_large"


class ValidationFailed(RivetError):
    """A value does not fit the declared type; ``metadata["issues"]`` lists where."""

    code = "validation_failed"


class ScheduleError(ValidationFailed):
    """A schedule that cannot be set. ``code`` says why: ``schedule_invalid_name``,
    ``schedule_invalid_cron_expression``, ``schedule_invalid_timezone``, ``schedule_invalid_interval``,
    ``schedule_invalid_max_history``, ``schedule_max_schedules_exceeded``; in a history ``schedule_interrupted``."""

    code = "schedule_invalid"


class InvalidScheduleName(ScheduleError):
    """A name of a cron job has 1 to 128 bytes."""

    code = "schedule_invalid_name"


class InvalidCronExpression(ScheduleError):
    """No five fields, or a time that never comes."""

    code = "schedule_invalid_cron_expression"


class InvalidTimezone(ScheduleError):
    """Not a name of the time zone database."""

    code = "schedule_invalid_timezone"


class InvalidInterval(ScheduleError):
    """Below the shortest interval, or no duration."""

    code = "schedule_invalid_interval"


class InvalidMaxHistory(ScheduleError):
    """Not a whole number from 0 to 1000."""

    code = "schedule_invalid_max_history"


class TooManySchedules(ScheduleError):
    """The actor has as many schedules as ``MAX_SCHEDULES`` allows."""

    code = "schedule_max_schedules_exceeded"


class ScheduleInterrupted(ScheduleError):
    """The worker went away while the scheduled action ran; nothing of it was kept, and it is not run again."""

    code = "schedule_interrupted"


class PermissionDenied(RivetError):
    """The permission hook refused the operation."""

    code = "permission_denied"


class SerializationError(RivetError, TypeError):
    """A value cannot be stored; the message has the path to the offending part and what to pass instead."""

    code = "not_serializable"


class ActionFailed(RivetError):
    """An ``@action(on_worker=True)`` raised something that is none of ours, where it ran; ``error`` has the record."""

    code = "action_failed"


class NoWorker(RivetError):
    """No live worker could run an ``@action(on_worker=True)`` in time. Nothing of it is stored.

    ``metadata["reason"]``: ``no_worker`` is running at all, it was ``not_taken`` by one, it had begun and
    ``not_ended``, or the ``worker_died`` in the middle.
    """

    code = "no_worker"


# -- failures as records -------------------------------------------------------------------------------

#: Classes that :func:`failure_from_record` gives back as they were; all others become :class:`WorkflowFailed`.
_REBUILT: dict[str, type[RivetError]] = {
    cls.__name__: cls
    for cls in (
        *(StepFailed, StepExhausted, StepTimeout, StateConflict, CriticalError, RollbackError),
        *(JoinError, RaceError, QueueTimeout, ChildFailed, MessageNotCompleted),
    )
}


def failure_record(exc: BaseException) -> dict[str, Any]:
    """What is stored of an error that ended a step, a branch or a run: plain JSON types, see the reverse below."""
    record: dict[str, Any] = {"error": ErrorInfo.from_exception(exc).to_dict()}
    if type(exc).__name__ in _REBUILT and type(exc) is _REBUILT[type(exc).__name__]:
        record["class"] = type(exc).__name__
    if isinstance(exc, RivetError):
        record["message"] = exc.message
        if exc.error is not None:
            record["cause"] = exc.error.to_dict()
    if isinstance(exc, StepFailed):
        record |= {"step": exc.step_name, "kind": exc.kind, "attempts": exc.attempts}
    if isinstance(exc, _BranchesFailed):
        record["errors"] = [[key, info.to_dict()] for key, info in exc.errors.items()]
        record["name"] = exc.name
    return record


def failure_from_record(record: Mapping[str, Any]) -> RivetError:
    """The error that :func:`failure_record` described: ours as they were, :class:`WorkflowFailed` for the rest."""
    info = ErrorInfo.from_dict(record.get("error") or {})
    cls = _REBUILT.get(record.get("class", ""))
    message = record.get("message") or info.message
    cause = ErrorInfo.from_dict(record["cause"]) if record.get("cause") else None
    if cls is None:
        return WorkflowFailed(f"the workflow failed: {info}", error=info)
    if issubclass(cls, StepFailed):
        return cls(
            message,
            step_name=record.get("step"),
            kind=record.get("kind"),
            attempts=record.get("attempts", 0),
            error=cause or info,
        )
    if issubclass(cls, _BranchesFailed):
        errors = {key: ErrorInfo.from_dict(data) for key, data in record.get("errors", ())}
        return cls(message, errors=errors, name=record.get("name", ""))
    return cls(message, error=cause)
