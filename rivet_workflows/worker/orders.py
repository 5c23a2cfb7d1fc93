"""What the worker's core orders and what it is told: the vocabulary between ``core.py`` and its shell.

Pure data. The shell (threads, connections, signals), the testing kit and the simulation all speak it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple
from uuid import UUID

from rivet_workflows.engine.options import StepOptions
from rivet_workflows.exceptions import ErrorInfo
from rivet_workflows.records import CommitItem, Look, Outgoing, Release, ScheduleOp, StateWrite, WorkerCall


class StepToken(NamedTuple):
    """Names one attempt of one step by one holder; a report with one that is no longer current is dropped."""

    actor_id: UUID
    epoch: int
    seq: int
    attempt: int
    #: Tells two holdings of one actor by one worker apart (dropped, then loaded again).
    holding: int = 0


class Overran(BaseException):
    """Raised in code of ``run`` that has computed for too long. No Exception: code that goes on whatever happens would
    go on for ever."""


@dataclass(slots=True)
class StepStart:
    """Call this function now: the record of its start is durable (D-11), or the step is ephemeral."""

    token: StepToken
    actor_name: str
    key: str
    name: str
    function: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    options: StepOptions
    idempotency_key: str
    #: The actor's encoded input.
    input: str | None
    #: False: any attempt; True: this is a rollback handler, called with (step, output).
    is_rollback: bool = False
    #: Retries left after this attempt, for ``step.log`` and error events.
    remaining_retries: int = 0
    #: Times that an atomic attempt was rolled back and has run again, which counts as no attempt.
    reruns: int = 0
    #: An atomic step that lost its state to actions several times: lock the state at its first touch.
    lock_state: bool = False


@dataclass(slots=True)
class StateChange:
    """How a step changed the state: what it read, what it left, and the pure updates it queued (D-13)."""

    #: Version and text that the step loaded; version None: it never read the state, it only queued updates.
    base_version: int | None
    base: str | None
    #: The encoded state the step left; None: only updates.
    changed: str | None
    updates: list[Callable[[Any], Any]] = field(default_factory=list)
    #: The change as it can be written at once, made in the step's own thread; it stays valid until the stored
    #: version moves. None: it must be merged first (``Orders.remerges``).
    prepared: StateWrite | None = None
    #: The stored text as the state that updates are applied to, and back, checked; None: the codec's.
    decode: Callable[[str], Any] | None = None
    encode: Callable[[Any], str] | None = None
    #: Why it could not be merged: the failure of its attempt. None: somebody else changed the same field.
    refusal: ErrorInfo | None = None


@dataclass(slots=True)
class Effects:
    """What one attempt of a step wants committed together with its record (D-12)."""

    state: StateChange | None = None
    events: list[tuple[str, str]] = field(default_factory=list)
    sends: list[Outgoing] = field(default_factory=list)
    #: ``(message id, response text)``
    completes: list[tuple[int, str]] = field(default_factory=list)
    destroy: bool = False
    schedules: list[ScheduleOp] = field(default_factory=list)


@dataclass(slots=True)
class StepReport:
    """How an attempt ended. ``output`` is the encoded value, ``value`` that text decoded again (what a step
    returns is what a replay returns)."""

    ok: bool
    output: str | None = None
    value: Any = None
    error: ErrorInfo | None = None
    timed_out: bool = False
    #: The state change lost against an action's (D-13).
    conflict: bool = False
    #: The attempt, of an atomic step, has lost its state to somebody else and was rolled back: it runs again.
    lost: bool = False
    #: Times that the attempt, of an atomic step, was rolled back and has run again before it ended so.
    reruns: int = 0
    #: The attempt did not run to an end because the worker stops: hand it back, count nothing.
    abandoned: bool = False
    effects: Effects | None = None
    #: The step is ``atomic`` and its transaction is open: the core answers with ``Orders.atomics`` (commit this in
    #: it) or ``Orders.aborts`` (roll it back).
    atomic: bool = False


@dataclass(slots=True)
class ErrorEvent:
    """A failure, told to ``on_error`` once it is committed (D-21)."""

    actor_id: UUID
    actor_name: str
    key: str
    source: str
    error: ErrorInfo
    step_name: str | None = None
    attempt: int | None = None
    max_retries: int | None = None
    remaining_retries: int | None = None
    will_retry: bool | None = None
    #: Seconds, and epoch microseconds.
    retry_delay: float | None = None
    retry_at: int | None = None
    #: Why the workflow, which has not ended, may not go on; as ``ActorStatus.reason`` has it.
    set_aside: str | None = None


@dataclass(slots=True, frozen=True)
class CallStart:
    """Run an action that a caller wants run here, unless it was withdrawn; answer with ``core.call_done``."""

    actor_id: UUID
    epoch: int
    actor_name: str
    key: str
    call: WorkerCall


@dataclass(slots=True, frozen=True)
class ChildStart:
    """Create this actor unless it exists and have its end wake ``actor_id``; answer with ``core.child_begun``."""

    actor_id: UUID
    seq: int
    holding: int
    actor: str
    key: str
    input: str | None


@dataclass(slots=True, frozen=True)
class ChildEnd:
    """How a child ended: its encoded output, or the record of its failure."""

    ok: bool
    output: str | None = None
    error: str | None = None


@dataclass(slots=True)
class Orders:
    """Everything the core wants done now. The shell carries it out in this order and reports back."""

    looks: list[Look] = field(default_factory=list)
    #: One group, sorted by actor id, to hand to ``store.commit_group``.
    commits: list[CommitItem] = field(default_factory=list)
    starts: list[StepStart] = field(default_factory=list)
    #: Attempts whose result is not wanted any more: cancel the coroutine, tell the thread.
    cancels: list[StepToken] = field(default_factory=list)
    children: list[ChildStart] = field(default_factory=list)
    #: Children that may have ended, with the actor that waits; answer with ``core.children_ended``.
    child_looks: list[tuple[UUID, list[UUID]]] = field(default_factory=list)
    #: Actors, with their epochs, for which callers may have asked for actions; answer with ``core.called``. After
    #: ``looks``, which take away the wakes that told of them.
    call_looks: list[tuple[UUID, int]] = field(default_factory=list)
    calls: list[CallStart] = field(default_factory=list)
    releases: list[Release] = field(default_factory=list)
    #: Actors that are not held any more, with their epochs; those of ``releases`` too.
    gone: list[tuple[UUID, int]] = field(default_factory=list)
    #: What an atomic step commits in its own transaction, on its own thread; answer with
    #: ``core.atomic_committed``.
    atomics: list[tuple[StepToken, CommitItem]] = field(default_factory=list)
    #: Atomic steps whose transaction is to be rolled back.
    aborts: list[StepToken] = field(default_factory=list)
    #: Actors to load again from the store (their coroutine ran ahead of a refused commit).
    reloads: list[tuple[UUID, int]] = field(default_factory=list)
    #: Actors whose state must be merged again; answer with ``core.remerged``, and the change.
    remerges: list[tuple[UUID, StateChange]] = field(default_factory=list)
    #: Failed runs whose completed steps must be compensated: ``(actor id, [(checkpoint seq, scope)])``; answer with
    #: ``core.rolled_back`` and the rows of ``store.rollback_rows``.
    rollbacks: list[tuple[UUID, list[tuple[int, str]]]] = field(default_factory=list)
    #: Failures that are now durable.
    errors: list[ErrorEvent] = field(default_factory=list)
    #: What became durable and somebody may wait for: doorbells to ring.
    rings: list[CommitItem] = field(default_factory=list)

    def __bool__(self) -> bool:
        return any(map(self.__getattribute__, self.__slots__))
