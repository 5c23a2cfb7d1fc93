"""``c``: what actions and the hooks of creation and destruction are given.

State is read at first touch and written once, at the end, in the same transaction; broadcasts, messages to the actor
itself and ``destroy`` are collected and carried out then. So an action that raises leaves no trace, and one that only
touches state locks nothing but its state's row (engineering notes 3.1).
"""

from __future__ import annotations

import asyncio.events
import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, NoReturn
from uuid import UUID

from rivet_workflows import codec, keys
from rivet_workflows.client import bells, sending
from rivet_workflows.client.moments import from_micros
from rivet_workflows.client.schedules import Cron, Schedule
from rivet_workflows.client.scheduling import check_room
from rivet_workflows.conf import settings
from rivet_workflows.exceptions import ActorBusy, RivetError
from rivet_workflows.markers import Event, Queue
from rivet_workflows.records import Outgoing, ScheduleOp
from rivet_workflows.registry import ActorType
from rivet_workflows.store import get_store

if TYPE_CHECKING:
    from rivet_workflows.client.base import Client

__all__ = ["ActionContext"]

logger = logging.getLogger("rivet_workflows.actions")


class ActionContext:
    """What an action or hook may use; valid while it runs.

    ``user`` is who called over REST or WebSocket, ``connection`` the WebSocket it came over; both None otherwise.
    """

    def __init__(
        self,
        actor_type: ActorType,
        actor_id: UUID,
        stored_key: str,
        *,
        read_only: bool = False,
        stateless: str | None = None,
        user: Any = None,
        connection: Any = None,
        vars: Callable[[], Any] | None = None,
        unlocked: bool = False,
    ) -> None:
        self.actor_id = actor_id
        self.name = actor_type.name
        self.user = user
        self.connection = connection
        self.queue = SelfQueue(self)
        self._type = actor_type
        self._stored_key = stored_key
        self._read_only = read_only
        #: Why there is no state (yet).
        self._stateless = stateless
        #: Gives the vars, in a worker that holds the actor.
        self._vars = vars
        #: Nothing is locked before the end: another's change of the state meanwhile is a conflict.
        self._unlocked = unlocked
        self._state: _State | None = None
        self._events: list[tuple[str, str]] = []
        self._sends: list[Outgoing] = []
        self._schedules: list[ScheduleOp] = []
        self._destroy = False
        self._over = False
        #: The time when an async function began; others ask when they want it.
        self._began: int | None = None

    # -- what it is about

    @property
    def key(self) -> str | tuple[str, ...]:
        return keys.decode(self._stored_key)

    @property
    def log(self) -> logging.LoggerAdapter[logging.Logger]:
        """A logger that says which actor it is about."""
        about = {"rivet_actor": self.name, "rivet_actor_id": str(self.actor_id)}
        return logging.LoggerAdapter(logging.getLogger(f"rivet_workflows.actor.{self.name}"), about)

    def now(self) -> datetime:
        """The time as the workers' timers know it; aware, UTC."""
        return from_micros(self._now())

    def _now(self) -> int:
        return get_store().clock.now() if self._began is None else self._began

    def client(self) -> Client:
        """The client for calls to other actors. What it sends and creates joins this transaction."""
        from rivet_workflows import client

        return client.default

    # -- state

    @property
    def state(self) -> Any:
        """The actor's state: change it in place or assign it. Read at first touch; then nobody else changes it until
        this action is over, except in a ``read_only`` one, which sees a copy."""
        return self._loaded().value

    @state.setter
    def state(self, value: Any) -> None:
        if self._read_only:
            self._refuse_change("assign c.state")
        self._loaded().value = value

    @property
    def vars(self) -> Any:
        """What the worker that holds the actor keeps in memory; only in hooks that run there."""
        if self._vars is not None:
            return self._vars()
        raise RivetError(
            "c.vars is kept by the worker that holds the actor and is not there in an action of the caller's process: "
            "mark the action @action(on_worker=True), or keep the value in c.state"
        )

    def preload(self) -> None:
        """Ask the database now for what may be wanted: an event loop may not do it at first touch."""
        self._began = get_store().clock.now()
        if self._type.state_enabled and self._stateless is None:
            self._loaded()

    def _loaded(self) -> _State:
        if self._state is None:
            self._usable("c.state")
            if self._stateless is not None:
                raise RivetError(self._stateless)
            if not self._type.state_enabled:
                raise RivetError(
                    f"{self.name} declares no state: give the class a state = … or a create_state"
                )
            self._state = _State.read(self)
        return self._state

    def begin_state(self, value: Any) -> None:
        """Take what ``create_state`` returned."""
        version, text = get_store().load_state(self.actor_id)
        self._state = _State(value, text, version)

    # -- effects

    def broadcast(self, event: str | Event[Any], payload: Any = None) -> None:
        """Send an event to all that subscribed, when this transaction commits. A declared type is checked here."""
        self._changing("c.broadcast")
        name = sending.event_name(event)
        declared = self._type.events.get(name)
        if declared is not None:
            payload = declared.validate_payload(payload)
        self._events.append((name, sending.encoded(payload, "MAX_PAYLOAD", f'payload of event "{name}"')))

    def destroy(self) -> None:
        """Destroy the actor at the end of this action: state, queues, history and events go; its key is free again."""
        self._changing("c.destroy")
        self._destroy = True

    @property
    def schedule(self) -> Schedule:
        """Call an action of this actor later: ``c.schedule.after(60, "remind", user_id)``."""
        return Schedule(_Host(self))

    @property
    def cron(self) -> Cron:
        """Call an action of this actor again and again: ``c.cron.set(name="report", expression="0 9 * * 1-5", …)``."""
        return Cron(_Host(self))

    def _changing(self, what: str) -> None:
        self._usable(what)
        if self._read_only:
            self._refuse_change(what)

    def _usable(self, what: str) -> None:
        if self._over:
            raise RivetError(f"{what} was used after its action was over; return what is needed instead")

    def _refuse_change(self, what: str) -> NoReturn:
        raise RivetError(
            f"{what} changes something, but the action is @action(read_only=True): leave read_only out"
        )

    # -- the end

    def finish(self) -> None:
        """Write what was collected. The lock order of ``store`` is kept: state, then the run row for events."""
        store = get_store()
        if self._state is not None:
            self._state.write(self)
        if self._events:
            store.add_events(self.actor_id, self._events, settings.ACTION_LOCK_TIMEOUT)
            bells.announce(news=[self.actor_id])
        if self._sends:
            store.send_all(self._sends)
        self.write_schedules()
        self._over = True

    def write_schedules(self) -> None:
        """What was set and deleted and is not written yet; counted first where it could not be at the call."""
        ops, self._schedules = self._schedules, []
        if not ops:
            return
        get_store().set_schedules(self.actor_id, ops)
        check_room(self._type, self.actor_id, more=0)
        bells.announce_schedules()

    @property
    def wants_destroy(self) -> bool:
        return self._destroy

    def close(self) -> None:
        """No use after this."""
        self._over = True


class _Host:
    """Schedules of an action or hook: written at once, in its transaction."""

    def __init__(self, context: ActionContext) -> None:
        self._context = context
        self.actor_type = context._type
        self.actor_id = context.actor_id

    def now(self) -> int:
        return self._context._now()

    @property
    def deferred(self) -> bool:
        """Beside the thread that has the transaction, in an ``async def`` action, or where there is none yet: what is
        set is written at the end."""
        return self._context._unlocked or asyncio.events._get_running_loop() is not None

    @contextmanager
    def reading(self) -> Iterator[None]:
        self._context._usable("c.schedule")
        if asyncio.events._get_running_loop() is not None:
            raise RuntimeError(
                "schedules were asked for in async code: await the form with an a (c.schedule.alist(), c.cron.aget(…))"
            )
        yield

    def change(self, op: ScheduleOp) -> None:
        context = self._context
        context._changing("c.schedule")
        context._schedules.append(op)
        if not self.deferred:
            context.write_schedules()

    def pending(self) -> Sequence[ScheduleOp]:
        return self._context._schedules


class SelfQueue:
    """``c.queue``: messages to the actor itself. They go out with the action's transaction."""

    def __init__(self, context: ActionContext) -> None:
        self._context = context

    def send(
        self,
        queue: str | Queue[Any, Any],
        body: Any = None,
        *,
        delay: float | timedelta | None = None,
        dedupe_key: str | None = None,
    ) -> None:
        """Put ``body`` into one of the actor's own queues; like :meth:`Handle.send`, without waiting."""
        context = self._context
        context._changing("c.queue.send")
        message = sending.outgoing(
            context.actor_id,
            context.name,
            queue,
            body,
            delay=delay,
            dedupe_key=dedupe_key,
            now=context._now,
        )
        context._sends.append(message)


class _State:
    """The state as loaded and as it is now."""

    def __init__(self, value: Any, text: str | None, version: int) -> None:
        self.value = value
        self._text = text
        self._version = version

    @classmethod
    def read(cls, context: ActionContext) -> _State:
        store = get_store()
        if context._read_only or context._unlocked:
            row = store.load_state(context.actor_id)
        else:
            row = store.lock_state(context.actor_id, settings.ACTION_LOCK_TIMEOUT)
        version, text = row
        value = None if text is None else _fitting(context, codec.loads(text))
        if text is not None and context._read_only:
            # One that was brought up to date has not been changed by a reader.
            text = sending.encoded(value, "MAX_STATE", f"state of {context.name}")
        return cls(value, text, version)

    def write(self, context: ActionContext) -> None:
        text = self._encoded(context)
        if text == self._text:
            return
        if context._read_only:
            raise RivetError(
                "the action changed c.state, but it is @action(read_only=True): the change would be lost. "
                "Leave read_only out, or work on a copy"
            )
        self.value = context._type.validate_state(self.value)
        text = self._encoded(context)
        hook = context._type.hooks.get("on_state_change")
        if hook is not None:
            self._tell(hook, context)
            if self._encoded(context) != text:
                raise RivetError("on_state_change changed the state it was told of; change it in the action")
        if not get_store().save_state(context.actor_id, self._version, text):
            # On SQLite with deferred transactions nothing is locked before the first write.
            raise ActorBusy(f"the state of {context.name} was changed meanwhile; try again")

    def _encoded(self, context: ActionContext) -> str:
        return sending.encoded(self.value, "MAX_STATE", f"state of {context.name}")

    def _tell(self, hook: Any, context: ActionContext) -> None:
        from rivet_workflows.client.invoking import invoke

        invoke(hook, context._type.bind(context.actor_id, context.key), context, self.value)


def _fitting(context: ActionContext, stored: Any) -> Any:
    """The stored state as the class now declares it: ``migrate_state`` has the first word."""
    hook = context._type.hooks.get("migrate_state")
    if hook is not None:
        from rivet_workflows.client.invoking import invoke

        stored = invoke(hook, context._type.bind(context.actor_id, context.key), context, stored)
    return context._type.validate_loaded(stored)
