"""Durable actors and workflows for Django. This is what a project imports; it loads on first use of each name.

Importable before Django is set up. Nothing but names is here.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rivet_workflows import client
    from rivet_workflows.actors import Actor, Event, Queue, action, step
    from rivet_workflows.client import ActorState, ActorStatus, Handle, HistoryEntry, ScheduledFire, Sent
    from rivet_workflows.codec import stable_name
    from rivet_workflows.engine import Loop
    from rivet_workflows.exceptions import (
        ActionFailed,
        ActionNotFound,
        ActorBusy,
        ActorExists,
        ActorNotFound,
        ChildFailed,
        CriticalError,
        EntryInProgress,
        ErrorInfo,
        HistoryDiverged,
        JoinError,
        MessageNotCompleted,
        NotReplaySafe,
        NoWorker,
        PayloadTooLarge,
        PermissionDenied,
        QueueFull,
        QueueNotFound,
        QueueTimeout,
        RaceError,
        ResultTimeout,
        RivetError,
        RollbackCheckpointError,
        RollbackError,
        ScheduleError,
        SerializationError,
        StateConflict,
        StepExhausted,
        StepFailed,
        StepTimeout,
        UserError,
        ValidationFailed,
        WorkflowCancelled,
        WorkflowFailed,
    )

__all__ = [
    "ActionFailed",
    "ActionNotFound",
    "Actor",
    "ActorBusy",
    "ActorExists",
    "ActorNotFound",
    "ActorState",
    "ActorStatus",
    "ChildFailed",
    "CriticalError",
    "EntryInProgress",
    "ErrorInfo",
    "Event",
    "Handle",
    "HistoryDiverged",
    "HistoryEntry",
    "JoinError",
    "Loop",
    "MessageNotCompleted",
    "NoWorker",
    "NotReplaySafe",
    "PayloadTooLarge",
    "PermissionDenied",
    "Queue",
    "QueueFull",
    "QueueNotFound",
    "QueueTimeout",
    "RaceError",
    "ResultTimeout",
    "RivetError",
    "RollbackCheckpointError",
    "RollbackError",
    "ScheduleError",
    "ScheduledFire",
    "Sent",
    "SerializationError",
    "StateConflict",
    "StepExhausted",
    "StepFailed",
    "StepTimeout",
    "UserError",
    "ValidationFailed",
    "WorkflowCancelled",
    "WorkflowFailed",
    "action",
    "client",
    "stable_name",
    "step",
]

#: Module to the names that it exports here. A submodule that is itself the export names itself.
_MODULES: dict[str, tuple[str, ...]] = {
    "actors": ("Actor", "Event", "Queue", "action", "step"),
    "client": ("client", "ActorState", "ActorStatus", "Handle", "HistoryEntry", "ScheduledFire", "Sent"),
    "codec": ("stable_name",),
    "engine": ("Loop",),
    "exceptions": (
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
    ),
}
_HOME = {name: module for module, names in _MODULES.items() for name in names}


def __getattr__(name: str) -> Any:
    home = _HOME.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = import_module(f"{__name__}.{home}")
    value = module if home == name else getattr(module, name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
