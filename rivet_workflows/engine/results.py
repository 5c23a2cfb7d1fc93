"""The values that workflow code receives from its context. Pure; all can be returned, stored and passed to steps."""

from __future__ import annotations

from collections.abc import Awaitable
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from ..exceptions import ErrorInfo, JoinError, RaceError, RivetError, StepFailed

if TYPE_CHECKING:
    from .machine import Machine

T = TypeVar("T")


class _Bound:
    """What ties a message to the run that received it: in slots, as it is no part of the message's value."""

    __slots__ = ("_completable", "_machine")


@dataclass
class Message(_Bound, Generic[T]):
    """A received message. ``id`` is its number, ``name`` its queue, ``body`` what was sent."""

    id: int
    name: str
    body: T
    created_at: datetime

    def complete(self, response: Any = None) -> Awaitable[None]:
        """Answer a message received with ``completable=True``; it leaves the queue. Idempotent.

        Inside a step use ``step.complete(message, response)``. Raises RivetError when the message was not received
        as completable, SerializationError when the response cannot be stored.
        """
        machine: Machine | None = getattr(self, "_machine", None)
        if machine is None:
            raise RivetError(
                f"message {self.id} of queue {self.name!r} cannot be completed here: in a step use "
                "step.complete(message, response); in run keep the message that queue.next returned"
            )
        return machine.complete_message(self, response)

    def _bind(self, machine: Machine, completable: bool) -> Message[T]:
        self._machine = machine
        self._completable = completable
        return self


@dataclass(frozen=True)
class RaceOutcome(Generic[T]):
    """``winner`` is the name of the first branch that succeeded, ``value`` what it returned."""

    winner: str
    value: T


@dataclass(frozen=True)
class StepFailure:
    """Why a step ended: ``kind`` is ``exhausted timeout critical rollback conflict``."""

    kind: str
    step_name: str
    attempts: int
    error: ErrorInfo


@dataclass(frozen=True)
class BlockFailure:
    """What a ``try_block`` met. ``source`` is ``step join race block``; ``step`` is set for a step."""

    source: str
    name: str
    error: ErrorInfo
    step: StepFailure | None = None


@dataclass(frozen=True)
class TryResult(Generic[T]):
    """Outcome of ``try_step`` and ``try_block``: ``ok`` and ``value``, or ``failure``."""

    ok: bool
    value: T | None = None
    failure: StepFailure | BlockFailure | None = None

    def unwrap(self) -> T:
        """The value; or raise the failure as the plain call would have (a join's or race's as its own class)."""
        if self.failure is None:
            return self.value  # type: ignore[return-value]
        if isinstance(self.failure, StepFailure):
            raise _step_failed(self.failure)
        if self.failure.step is not None:
            raise _step_failed(self.failure.step)
        cls = {"join": JoinError, "race": RaceError}.get(self.failure.source)
        if cls is not None:
            raise cls(self.failure.error.message)
        raise RivetError(str(self.failure.error), error=self.failure.error)


def _step_failed(failure: StepFailure) -> StepFailed:
    return StepFailed.from_record(failure.step_name, failure.kind, failure.attempts, failure.error)


@dataclass(frozen=True)
class Loop:
    """What the body of a callable loop returns: ``Loop.next(state)`` or ``Loop.stop(value)``."""

    stopped: bool
    value: Any = None

    @classmethod
    def next(cls, state: Any = None) -> Loop:
        """Go on with this state."""
        return cls(False, state)

    @classmethod
    def stop(cls, value: Any = None) -> Loop:
        """End the loop; ``value`` is what the loop returns."""
        return cls(True, value)
