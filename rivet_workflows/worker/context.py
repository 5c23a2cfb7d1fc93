"""The step context: what a step function gets as its first argument, and what it collects.

Nothing that a step does through it takes effect at once. State, messages, broadcasts, replies and destroy are
gathered into :class:`~rivet_workflows.worker.orders.Effects` and commit with the record of the attempt (D-12).
The state is loaded at its first touch, on the step's own thread: steps that do not touch it pay nothing, and a copy
read earlier could miss an action that has answered its caller.

May query the state through the function it is given; knows no queue, no thread and no scheduler.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, NoReturn, Protocol
from uuid import UUID

from rivet_workflows.engine.options import micros
from rivet_workflows.exceptions import PayloadTooLarge, RivetError
from rivet_workflows.records import Outgoing, StateWrite
from rivet_workflows.worker import guard
from rivet_workflows.worker.orders import Effects, StateChange, StepStart
from rivet_workflows.worker.state import apply_updates

if TYPE_CHECKING:
    from rivet_workflows.registry import ActorType

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
logger = logging.getLogger("rivet_workflows.step")


class StepIsOver(RuntimeError):
    """A step context was used after its step had ended, timed out or been cancelled."""


class Codec(Protocol):
    """What steps need of :mod:`rivet_workflows.codec`."""

    def dumps(self, value: object, *, what: str = ...) -> str: ...
    def loads(self, text: str) -> Any: ...
    def roundtrip(self, value: object, *, what: str = ...) -> tuple[object, str]: ...


class StepOutbox:
    """What ``step.client()`` is built on: ordinary handles, whose sends without ``wait`` go through here.

    The client calls :meth:`add` in place of inserting the message, and :meth:`call_key` for everything that happens
    at once (``create``, ``call``, ``send(wait=True)``): a repeated attempt makes the same keys in the same order, so
    the receiver knows it again.
    """

    __slots__ = ("_calls", "_context")

    def __init__(self, context: StepContext) -> None:
        self._context = context
        self._calls = 0

    @property
    def actor_id(self) -> UUID:
        """Who sends."""
        return self._context.actor_id

    def add(self, message: Outgoing) -> None:
        """Send ``message`` with the step's commit. Raises once the step is over."""
        self._context._check("client")
        self._context._sends.append(message)

    def call_key(self) -> str:
        """The idempotency key of the next immediate operation of this step."""
        self._context._check("client")
        self._calls += 1
        return f"{self._context.idempotency_key}:{self._calls}"


@dataclass(slots=True)
class StepEnvironment:
    """What all steps of a worker share. Functions, so that tests and the testing kit can give their own."""

    codec: Codec
    catalog: Callable[[str], ActorType]
    #: The stored state of an actor, ``(version, text)``; a query on the calling thread's connection.
    load_state: Callable[[UUID], tuple[int, str]]
    #: The database's time, epoch microseconds, never ahead of it.
    now: Callable[[], int]
    #: The ``vars`` of the holding that a step belongs to; made at first touch.
    vars: Callable[[StepContext], Any]
    #: ``rivet_workflows.client`` bound to a step's outbox.
    client: Callable[[StepOutbox], Any]
    max_payload: int = 1_048_576
    max_state: int = 1_048_576
    max_message: int = 65_536


class StepQueue:
    """``step.queue``: sends to the step's own actor."""

    __slots__ = ("_context",)

    def __init__(self, context: StepContext) -> None:
        self._context = context

    def send(self, queue: Any, body: Any = None, *, delay: float | timedelta | None = None) -> None:
        """Put a message into one of the actor's own queues when the step completes; a failed attempt sends nothing.

        ``queue`` is a name or one of the actor's ``Queue`` attributes, ``delay`` seconds or a timedelta. Raises
        ``QueueNotFound``, ``ValidationFailed`` for a body that is not of the declared type, ``SerializationError``,
        ``PayloadTooLarge``.
        """
        self._context._send(queue, body, delay)


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
        "_completes",
        "_destroy",
        "_env",
        "_events",
        "_loaded",
        "_log",
        "_outbox",
        "_over",
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
        self._outbox: StepOutbox | None = None
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
        parts = json.loads(self._start.key)
        return parts[0] if len(parts) == 1 else tuple(parts)

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
        return None if self._start.input is None else self._env.codec.loads(self._start.input)

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
        name = event if isinstance(event, str) else event.name
        declared = self.actor_type.events.get(name)
        if declared is not None:
            payload = declared.validate_payload(payload)
        text = self._encode(payload, f'payload of event "{name}"', self._env.max_payload, "MAX_PAYLOAD")
        self._events.append((name, text))

    def complete(self, message: Any, response: Any = None) -> None:
        """Complete a message that was received with ``completable=True``, and answer its sender, with the step.

        Completing one twice is fine, the first response counts. Raises ``ValidationFailed`` for a response that is not
        of the queue's declared reply type.
        """
        self._check("complete")
        declared = self.actor_type.queues.get(message.name)
        if declared is not None:
            response = declared.validate_reply(response)
        what = f'response on queue "{message.name}"'
        text = self._encode(response, what, self._env.max_payload, "MAX_PAYLOAD")
        if all(number != message.id for number, _ in self._completes):
            self._completes.append((message.id, text))

    def destroy(self) -> None:
        """Destroy the actor when this step completes; a failed attempt destroys nothing."""
        self._check("destroy")
        self._destroy = True

    def client(self) -> Any:
        """The client. A ``send`` without ``wait`` joins the step's commit; everything else happens at once."""
        self._check("client")
        if self._outbox is None:
            self._outbox = StepOutbox(self)
        return self._env.client(self._outbox)

    @property
    def schedule(self) -> NoReturn:
        """One-shot schedules."""
        self._not_yet("schedule")

    @property
    def cron(self) -> NoReturn:
        """Recurring schedules."""
        self._not_yet("cron")

    # -- for the runner

    @property
    def actor_type(self) -> ActorType:
        return self._env.catalog(self._start.actor_name)

    @property
    def holding(self) -> tuple[UUID, int]:
        """Tells apart the times that the worker held the actor."""
        return self._start.token.actor_id, self._start.token.holding

    def end(self, reason: str, *, cancelled: bool = False) -> None:
        """From here on the context raises. ``reason`` completes "step "x" …"."""
        if self._over is None:
            self._over = reason
        self._cancelled = self._cancelled or cancelled

    def has_updates(self) -> bool:
        """Does the change of state need a query to be prepared?"""
        return bool(self._updates) and self._loaded is None

    def effects(self, *, ok: bool) -> Effects:
        """What the attempt wants committed. A failed one keeps its state changes and broadcasts (D-12).

        Raises what encoding and checking the state, or an update function, raises.
        """
        state = self._state_change()
        if ok:
            return Effects(state, self._events, self._sends, self._completes, self._destroy)
        return Effects(state, self._events)

    def effects_without_state(self) -> Effects:
        """Of an attempt that failed and left a state that cannot be stored."""
        return Effects(None, self._events)

    # -- within

    def _check(self, what: str) -> None:
        if self._over is not None:
            raise StepIsOver(
                f'step.{what} is there only while the step runs; step "{self.step_name}" {self._over}. Start no '
                "thread or task in a step that goes on after it"
            )

    def _not_yet(self, what: str) -> NoReturn:
        self._check(what)
        raise NotImplementedError(f"step.{what}: this version of rivet_workflows has no schedules yet")

    def _require_state(self) -> None:
        if not self.actor_type.state_enabled:
            raise RivetError(
                f"{self.name} declares no state: add `state = …` to the class, or keep the value in the step's result"
            )

    def _load(self) -> _LoadedState:
        if self._loaded is None:
            self._require_state()
            with guard.outside_the_loop():
                version, text = self._env.load_state(self.actor_id)
            self._loaded = _LoadedState(version, text, self._env.codec.loads(text))
        return self._loaded

    def _send(self, queue: Any, body: Any, delay: float | timedelta | None) -> None:
        self._check("queue.send")
        kind = self.actor_type
        declared = kind.queue(queue)
        name = declared.name if declared is not None else queue if isinstance(queue, str) else queue.name
        if declared is not None:
            body = declared.validate_body(body)
        text = self._encode(body, f'body for queue "{name}"', self._env.max_message, "MAX_MESSAGE_SIZE")
        after = micros(delay, "delay") if delay is not None else 0
        self._sends.append(
            Outgoing(
                actor_id=self.actor_id,
                queue=name,
                body=text,
                visible_at=self._env.now() + after if after else None,
                max_queue_size=kind.options.max_queue_size,
            )
        )

    def _encode(self, value: Any, what: str, limit: int, setting: str) -> str:
        text = self._env.codec.dumps(value, what=what)
        if len(text) > limit:
            raise PayloadTooLarge(f"the {what} has {len(text)} bytes, {setting} allows {limit}")
        return text

    def _state_change(self) -> StateChange | None:
        loaded = self._loaded
        if loaded is None:
            return self._updates_alone() if self._updates else None
        text = self._encode_state(loaded.value)
        if text == loaded.text:
            if not self._updates:
                return None
            changed, final = None, loaded.text
        else:
            changed = final = self._checked_state(loaded.value, text)
        if self._updates:
            final = self._updated(final)
        return StateChange(
            loaded.version, loaded.text, changed, self._updates, StateWrite(loaded.version, final)
        )

    def _updates_alone(self) -> StateChange:
        with guard.outside_the_loop():
            version, text = self._env.load_state(self.actor_id)
        return StateChange(None, None, None, self._updates, StateWrite(version, self._updated(text)))

    def _updated(self, text: str) -> str:
        return apply_updates(text, self._updates, self._env.codec.loads, self._encode_state)

    def _encode_state(self, value: Any) -> str:
        return self._encode(value, f"state of {self.name}", self._env.max_state, "MAX_STATE")

    def _checked_state(self, value: Any, text: str) -> str:
        """The text of a changed state as its declared type has it; ``ValidationFailed`` when it does not fit."""
        valid = self.actor_type.validate_state(value)
        return text if valid is value else self._encode_state(valid)
