"""The step context: what a step function gets as its first argument, and what it collects.

Nothing that a step does through it takes effect at once. State, messages, broadcasts, replies and destroy are
gathered into :class:`~rivet_workflows.worker.orders.Effects` and commit with the record of the attempt (D-12).
The state is loaded at its first touch, on the step's own thread: steps that do not touch it pay nothing, and a copy
read earlier could miss an action that has answered its caller.

May query the state through the function it is given; knows no queue, no thread and no scheduler.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any
from uuid import UUID

from rivet_workflows import codec, keys
from rivet_workflows.client.invoking import invoke
from rivet_workflows.client.schedules import Cron, Schedule
from rivet_workflows.client.sending import encoded, event_name, outgoing
from rivet_workflows.exceptions import RivetError
from rivet_workflows.records import Outgoing, ScheduleOp, StateWrite
from rivet_workflows.worker import guard
from rivet_workflows.worker.orders import Effects, StateChange, StepStart
from rivet_workflows.worker.patience import OUTAGES
from rivet_workflows.worker.state import apply_updates
from rivet_workflows.worker.stepschedules import StepSchedules

if TYPE_CHECKING:
    from rivet_workflows.registry import ActorType

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
logger = logging.getLogger("rivet_workflows.step")


class StepIsOver(RuntimeError):
    """A step context was used after its step had ended, timed out or been cancelled."""


@dataclass(slots=True)
class StepEnvironment:
    """What all steps of a worker share. Functions, so that tests and the testing kit can give their own."""

    catalog: Callable[[str], ActorType]
    #: The stored state of an actor, ``(version, text)``; a query on the calling thread's connection. No text: the
    #: actor is older than its state.
    load_state: Callable[[UUID], tuple[int, str | None]]
    #: The same, and nobody else changes it until the transaction ends: for atomic steps, which have one open.
    lock_state: Callable[[UUID], tuple[int, str | None]]
    #: The database's time, epoch microseconds, never ahead of it.
    now: Callable[[], int]
    #: The ``vars`` of the holding that a step belongs to; made at first touch.
    vars: Callable[[StepContext], Any]
    #: The client whose sends join a step's commit.
    client: Callable[[StepContext], Any]


class StepQueue:
    """``step.queue``: sends to the step's own actor."""

    __slots__ = ("_context",)

    def __init__(self, context: StepContext) -> None:
        self._context = context

    def send(
        self,
        queue: Any,
        body: Any = None,
        *,
        delay: float | timedelta | None = None,
        dedupe_key: str | None = None,
    ) -> None:
        """Put a message into one of the actor's own queues when the step completes; a failed attempt sends nothing.

        The arguments are those of :meth:`Handle.send`, and it raises the same for them.
        """
        context = self._context
        context._check("queue.send")
        context.add_message(
            outgoing(context.actor_id, context.name, queue, body, delay=delay, dedupe_key=dedupe_key)
        )


@dataclass(slots=True)
class _LoadedState:
    """The step's working copy of the state, and what it was loaded as."""

    version: int
    text: str
    value: Any


class StepContext:
    """One attempt of one step. Valid while the step runs; then all but the identifiers and ``log`` raise."""

    __slots__ = (
        "_cancelled",
        "_client",
        "_completes",
        "_destroy",
        "_env",
        "_events",
        "_loaded",
        "_log",
        "_over",
        "_schedules",
        "_sends",
        "_start",
        "_updates",
    )

    def __init__(self, start: StepStart, env: StepEnvironment) -> None:
        self._start = start
        self._env = env
        self._over: str | None = None
        self._cancelled = False
        self._loaded: _LoadedState | None = None
        self._updates: list[Callable[[Any], Any]] = []
        self._events: list[tuple[str, str]] = []
        self._sends: list[Outgoing] = []
        self._completes: list[tuple[int, str]] = []
        self._destroy = False
        self._schedules: list[ScheduleOp] = []
        self._client: Any = None
        self._log: logging.LoggerAdapter[logging.Logger] | None = None

    # -- identifiers, there for ever

    @property
    def actor_id(self) -> UUID:
        return self._start.token.actor_id

    @property
    def name(self) -> str:
        """The actor's name, as registered."""
        return self._start.actor_name

    @property
    def key(self) -> str | tuple[str, ...]:
        """The actor's key, as text; a tuple where it has several parts."""
        return keys.decode(self._start.key)

    @property
    def step_name(self) -> str:
        return self._start.name

    @property
    def attempt(self) -> int:
        """Which attempt this is, from 1."""
        return self._start.token.attempt

    @property
    def idempotency_key(self) -> str:
        """The same for every attempt of this step, also after a crash and ``recover``: hand it to outside services."""
        return self._start.idempotency_key

    @property
    def log(self) -> logging.LoggerAdapter[logging.Logger]:
        """A logger whose records carry the actor and the step (``rivet_*`` attributes)."""
        if self._log is None:
            self._log = logging.LoggerAdapter(
                logger,
                {
                    "rivet_actor": self.name,
                    "rivet_key": self._start.key,
                    "rivet_actor_id": str(self.actor_id),
                    "rivet_step": self.step_name,
                    "rivet_attempt": self.attempt,
                },
            )
        return self._log

    def is_cancelled(self) -> bool:
        """Has the attempt timed out, or is its result not wanted any more? A long ``def`` step asks now and then."""
        return self._cancelled

    # -- state and vars

    @property
    def state(self) -> Any:
        """The actor's state, loaded at first touch. Change it in place or assign another; it commits with the step."""
        self._check("state")
        return self._load().value

    @state.setter
    def state(self, value: Any) -> None:
        self._check("state")
        self._load().value = value

    def update(self, function: Callable[[Any], Any]) -> None:
        """Queue a pure ``function(state)`` that runs on the newest state as the step commits, and never conflicts.

        The way for counters and lists that actions change too. It returns the new state, or changes the given one and
        returns None; it may run several times. ``step.state`` does not show its effect.
        """
        self._check("update")
        self._require_state()
        if not callable(function):
            raise TypeError(f"step.update takes a function of the state, not {function!r}")
        self._updates.append(function)

    @property
    def vars(self) -> Any:
        """The actor's vars: what the worker keeps in memory while it holds the actor. Never stored."""
        self._check("vars")
        return self._env.vars(self)

    @property
    def input(self) -> Any:
        """What the actor was created with; a fresh copy each time."""
        self._check("input")
        return None if self._start.input is None else codec.loads(self._start.input)

    def now(self) -> datetime:
        """The time, aware, by the database's clock and never ahead of it."""
        self._check("now")
        return _EPOCH + timedelta(microseconds=self._env.now())

    # -- what takes effect with the step

    @property
    def queue(self) -> StepQueue:
        """The actor's own queues: ``step.queue.send("work", body)``."""
        self._check("queue")
        return StepQueue(self)

    def broadcast(self, event: Any, payload: Any = None) -> None:
        """Tell the actor's subscribers, once the attempt is recorded; a failed attempt's broadcasts stay.

        ``event`` is a name or one of the actor's ``Event`` attributes. Raises ``ValidationFailed`` for a payload
        that is not of the declared type, ``SerializationError``, ``PayloadTooLarge``.
        """
        self._check("broadcast")
        name = event_name(event)
        declared = self.actor_type.events.get(name)
        if declared is not None:
            payload = declared.validate_payload(payload)
        self._events.append((name, encoded(payload, "MAX_PAYLOAD", f'payload of event "{name}"')))

    def complete(self, message: Any, response: Any = None) -> None:
        """Complete a message that was received with ``completable=True``, and answer its sender, with the step.

        Completing one twice is fine, the first response counts. Raises ``ValidationFailed`` for a response that is not
        of the queue's declared reply type.
        """
        self._check("complete")
        declared = self.actor_type.queues.get(message.name)
        if declared is not None:
            response = declared.validate_reply(response)
        text = encoded(response, "MAX_PAYLOAD", f'response on queue "{message.name}"')
        if all(number != message.id for number, _ in self._completes):
            self._completes.append((message.id, text))

    def destroy(self) -> None:
        """Destroy the actor when this step completes; a failed attempt destroys nothing."""
        self._check("destroy")
        self._destroy = True

    def client(self) -> Any:
        """The client. A ``send`` without ``wait`` joins the step's commit; everything else happens at once."""
        self._check("client")
        if self._client is None:
            self._client = self._env.client(self)
        return self._client

    @property
    def schedule(self) -> Schedule:
        """One-shot schedules; what is set and cancelled takes effect with the step."""
        self._check("schedule")
        return Schedule(StepSchedules(self))

    @property
    def cron(self) -> Cron:
        """Recurring schedules; what is set and deleted takes effect with the step."""
        self._check("cron")
        return Cron(StepSchedules(self))

    # -- for the client and the runner

    def add_message(self, message: Outgoing) -> None:
        """Send it when the step completes. Raises once the step is over."""
        self._check("client")
        self._sends.append(message)

    def add_schedule(self, op: ScheduleOp) -> None:
        """Set or remove it when the step completes. Raises once the step is over."""
        self._check("schedule")
        self._schedules.append(op)

    def scheduled(self) -> list[ScheduleOp]:
        """What :meth:`add_schedule` was given. Raises once the step is over."""
        self._check("schedule")
        return self._schedules

    def database_time(self) -> int:
        """:meth:`now` in microseconds."""
        self._check("now")
        return self._env.now()

    @property
    def actor_type(self) -> ActorType:
        return self._env.catalog(self._start.actor_name)

    @property
    def holding(self) -> tuple[UUID, int]:
        """Tells apart the times that the worker held the actor."""
        return self._start.token.actor_id, self._start.token.epoch

    def end(self, reason: str, *, cancelled: bool = False) -> None:
        """From here on the context raises. ``reason`` completes "step "x" …"."""
        if self._over is None:
            self._over = reason
        self._cancelled = self._cancelled or cancelled

    def has_updates(self) -> bool:
        """Does the change of state need a query to be prepared?"""
        return bool(self._updates) and self._loaded is None

    def effects(self, *, ok: bool) -> Effects | None:
        """What the attempt wants committed, if anything. A failed one keeps its state changes and broadcasts (D-12).

        Raises what encoding and checking the state, or an update function, raises.
        """
        if ok and self._destroy:
            self._tell_of_the_end()
        state = self._state_change()
        if ok and (self._sends or self._completes or self._destroy or self._schedules):
            return Effects(state, self._events, self._sends, self._completes, self._destroy, self._schedules)
        return Effects(state, self._events) if state is not None or self._events else None

    def effects_without_state(self) -> Effects | None:
        """Of an attempt that failed and left a state that cannot be stored."""
        return Effects(None, self._events) if self._events else None

    # -- within

    def _check(self, what: str) -> None:
        if self._over is not None:
            raise StepIsOver(
                f'step.{what} is there only while the step runs; step "{self.step_name}" {self._over}. Start no '
                "thread or task in a step that goes on after it"
            )

    def _require_state(self) -> None:
        if not self.actor_type.state_enabled:
            raise RivetError(
                f"{self.name} declares no state: add `state = …` to the class, or keep the value in the step's result"
            )

    def _load(self) -> _LoadedState:
        if self._loaded is None:
            self._require_state()
            version, text = self._stored_state(lock=self._start.lock_state)
            self._loaded = _LoadedState(version, text, self._decode_valid(text))
        return self._loaded

    def _stored_state(self, *, lock: bool = False) -> tuple[int, str]:
        read = self._env.lock_state if lock else self._env.load_state
        with guard.outside_the_loop():
            version, text = read(self.actor_id)
        return version, self._encode_state(self.actor_type.initial_state()) if text is None else text

    def _state_change(self) -> StateChange | None:
        loaded = self._loaded
        if loaded is None:
            return self._updates_alone() if self._updates else None
        changed = None
        if self._encode_state(loaded.value) != loaded.text:
            changed = self._encode_valid(loaded.value)
        if changed is None and not self._updates:
            return None
        final = self._told(self._updated(changed or loaded.text), loaded.text)
        return self._change(loaded.version, loaded.text, changed, StateWrite(loaded.version, final))

    def _updates_alone(self) -> StateChange:
        atomic = self._start.options.atomic
        try:
            # An atomic step is about to commit: for this last instant it may hold the row, and need not run again.
            version, text = self._stored_state(lock=atomic)
        except OUTAGES:
            if atomic:
                raise
            # The database is away, which must not cost the step its attempt: it is merged when that is back.
            return self._change(None, None, None, None)
        write = StateWrite(version, self._told(self._updated(text), text))
        return self._change(None, None, None, write)

    def _change(
        self, version: int | None, base: str | None, changed: str | None, prepared: StateWrite | None
    ) -> StateChange:
        return StateChange(
            version, base, changed, self._updates, prepared, self._decode_valid, self._encode_valid
        )

    def _updated(self, text: str) -> str:
        return apply_updates(text, self._updates, self._decode_valid, self._encode_valid)

    def _encode_state(self, value: Any) -> str:
        return encoded(value, "MAX_STATE", f"state of {self.name}")

    def _encode_valid(self, value: Any) -> str:
        """The text of a state as its declared type has it; ``ValidationFailed`` when it does not fit."""
        return self._encode_state(self.actor_type.validate_state(value))

    def _decode_valid(self, text: str) -> Any:
        return self.actor_type.validate_loaded(self._migrated(codec.loads(text)))

    def _tell_of_the_end(self) -> None:
        """``on_destroy``, here, on the step's thread: what it sends and broadcasts goes with the step, as the
        destruction does. When it raises, the attempt has failed and nothing is destroyed."""
        kind = self.actor_type
        hook = kind.hooks.get("on_destroy")
        if hook is not None:
            with guard.outside_the_loop():
                invoke(hook, kind.bind(self.actor_id, self.key), self)

    def _told(self, text: str, before: str) -> str:
        """``text``, after the actor's ``on_state_change`` was told of it, here, on the step's thread: what it
        broadcasts goes with the step."""
        kind = self.actor_type
        hook = kind.hooks.get("on_state_change")
        if hook is not None and text != before:
            value = codec.loads(text)
            with guard.outside_the_loop():
                invoke(hook, kind.bind(self.actor_id, self.key), self, value)
            if self._encode_state(value) != text:
                raise RivetError("on_state_change changed the state it was told of; change it in the step")
        return text

    def _migrated(self, stored: Any) -> Any:
        """The stored state as the class now declares it: ``migrate_state`` has the first word."""
        kind = self.actor_type
        hook = kind.hooks.get("migrate_state")
        if hook is None:
            return stored
        with guard.outside_the_loop():
            return invoke(hook, kind.bind(self.actor_id, self.key), self, stored)
