"""Calls of ``@action(on_worker=True)``, from the caller's side: ask, wait for the answer, or give up for certain.

The worker that holds the actor runs the action (``actions.run_called``); what came of it travels back as a record, and
is raised or returned here. A call that was given up is withdrawn, and a withdrawn call stores nothing.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NoReturn
from uuid import UUID

from django.db import OperationalError

from rivet_workflows import codec, exceptions
from rivet_workflows.client import bells, waiting
from rivet_workflows.client.sending import encoded
from rivet_workflows.client.twins import in_thread
from rivet_workflows.conf import settings
from rivet_workflows.exceptions import (
    ActionFailed,
    ActorNotFound,
    ErrorInfo,
    NoWorker,
    RivetError,
    SerializationError,
    UserError,
)
from rivet_workflows.records import CallStatus, WorkerCall
from rivet_workflows.registry import ActionDef, ActorType
from rivet_workflows.store import get_store
from rivet_workflows.store.errors import Trouble, classify
from rivet_workflows.validation import validate_arguments

__all__ = ["acall", "call", "call_timeout", "failure_text", "kept_until", "order", "user_of"]

Answer = tuple[CallStatus, str | None]


def call(
    actor_id: UUID,
    actor_type: ActorType,
    action: ActionDef,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    *,
    user: Any = None,
    convert: Callable[[Any], Any] | None = None,
    once: str | None = None,
) -> Any:
    """Have a worker run the action, and return what it returns.

    Raises what ``run_action`` raises, ``ActionFailed`` in the place of errors that are not ours, and ``NoWorker`` when
    it was not done in time: then nothing of it is stored, and it does not begin any more.
    """
    pending = _begin(actor_id, actor_type, action, args, kwargs, user, convert, once)
    if pending.recorded is None:
        found = waiting.wait_for(actor_id, pending.look, pending.timeout)
        return pending.outcome(found)
    return codec.loads(pending.recorded)


async def acall(
    actor_id: UUID,
    actor_type: ActorType,
    action: ActionDef,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    *,
    user: Any = None,
    convert: Callable[[Any], Any] | None = None,
    once: str | None = None,
) -> Any:
    """:func:`call` for event loops: it holds no thread while it waits."""
    pending = await in_thread(_begin, actor_id, actor_type, action, args, kwargs, user, convert, once)
    if pending.recorded is None:
        found = await waiting.await_for(actor_id, pending.look, pending.timeout)
        return await in_thread(pending.outcome, found)
    return codec.loads(pending.recorded)


def order(
    actor_id: UUID,
    actor_type: ActorType,
    action: ActionDef,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    *,
    user: Any = None,
    plain: bool = False,
    once: str | None = None,
    patience: float | None = None,
) -> WorkerCall:
    """The checked call. ``patience``: nobody waits, and it may begin within so many seconds. ``plain``: what it returns
    must have a JSON form."""
    args, kwargs = validate_arguments(action.func, args, kwargs)
    what = f'arguments of action "{action.name}"'
    text = encoded({"args": list(args), "kwargs": kwargs, "plain": plain}, "MAX_PAYLOAD", what)
    seconds = call_timeout(action) if patience is None else patience
    return WorkerCall(
        actor_id,
        action.name,
        text,
        until=get_store().clock.now() + round(seconds * 1e6),
        user=None if user is None else codec.dumps(getattr(user, "pk", None)),
        waits=patience is None,
        once=once,
    )


def call_timeout(action: ActionDef) -> float:
    """Seconds that its caller waits."""
    return settings.WORKER_ACTION_TIMEOUT if action.timeout is None else action.timeout


def kept_until() -> int:
    """Until when a key that is used now is remembered."""
    return get_store().clock.now() + round(settings.DEDUPE_PERIOD * 1_000_000)


def user_of(call: WorkerCall) -> Any:
    """Who called, read again: ``c.user``. None where it was our own code, or the account is gone."""
    if call.user is None:
        return None
    from django.contrib.auth import get_user_model
    from django.contrib.auth.models import AnonymousUser

    key: Any = codec.loads(call.user)
    return AnonymousUser() if key is None else get_user_model()._default_manager.filter(pk=key).first()


def _begin(
    actor_id: UUID,
    actor_type: ActorType,
    action: ActionDef,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    user: Any,
    convert: Callable[[Any], Any] | None,
    once: str | None,
) -> _Pending:
    title = f"{actor_type.name}.{action.name}"
    waiting.refuse_in_transaction(f"{title}, an @action(on_worker=True),")
    asked_for = order(
        actor_id, actor_type, action, args, kwargs, user=user, plain=convert is not None, once=once
    )
    asked = get_store().ask_worker(asked_for, kept_until() if once is not None else 0)
    bells.announce(work=[actor_id])
    return _Pending(asked_for, asked.call_id, title, call_timeout(action), convert, asked.result)


@dataclass(frozen=True, slots=True)
class _Pending:
    """A call that is on its way. ``recorded``: what it returned when it was made before."""

    call: WorkerCall
    id: int
    title: str
    timeout: float
    convert: Callable[[Any], Any] | None
    recorded: str | None

    def look(self) -> Answer | None:
        """The answer, once there is one. Raises ``ActorNotFound`` when the actor was destroyed meanwhile."""
        store = get_store()
        found = store.call_answer(self.id)
        if found is not None and found[0] in (CallStatus.DONE, CallStatus.FAILED):
            return found
        if found is None or store.get(self.call.actor_id) is None:
            self._gone()
        return None

    def outcome(self, found: Answer | None) -> Any:
        """What the call gave. None: time is up."""
        store = get_store()
        if found is None:
            stood = self._withdraw()
            if stood is not None:
                raise self._too_late(stood)
            found = store.call_answer(self.id)
        if found is None:
            self._gone()
        status, text = found
        store.drop_call(self.call, self.id, failed=status is CallStatus.FAILED)
        if status is CallStatus.FAILED:
            raise _failure(self.title, text)
        result = codec.loads(text or "null")
        return result if self.convert is None else self.convert(result)

    def _withdraw(self) -> CallStatus | None:
        try:
            return get_store().withdraw_call(self.call, self.id)
        except OperationalError as error:
            # SQLite: the action has the database to itself. It is not answered any more in any case.
            if classify(error) is not Trouble.LOCKED:
                raise
            return None if self.look() else CallStatus.RUNNING

    def _gone(self) -> NoReturn:
        store = get_store()
        store.withdraw_call(self.call, self.id)
        raise ActorNotFound(
            f"the actor of {self.title} was destroyed before its worker answered",
            metadata={"id": str(self.call.actor_id)},
        )

    def _too_late(self, stood: CallStatus) -> NoWorker:
        if stood is CallStatus.RUNNING:
            return NoWorker(
                f"{self.title} has begun on its worker and did not end within {self.timeout:g} s. Nothing of it "
                "will be stored; what it did outside the database is done. A longer time: @action(…, timeout=…)",
                metadata={"reason": "not_ended"},
            )
        if not get_store().any_worker_lives(round(settings.LEASE * 1e6)):
            why, reason = "no worker is running: start `manage.py rivet_worker`", "no_worker"
        else:
            why, reason = "no worker came to it: they are busy, or run other actors", "not_taken"
        return NoWorker(
            f"{self.title} did not begin within {self.timeout:g} s, and will not: {why}",
            metadata={"reason": reason},
        )


# -- failures, across processes ------------------------------------------------------------------------


def failure_text(error: BaseException) -> str:
    """The record of what a called action raised."""
    record: dict[str, Any] = {"error": ErrorInfo.from_exception(error).to_dict()}
    if isinstance(error, RivetError):
        kind = next(cls for cls in type(error).__mro__ if cls.__module__ == exceptions.__name__)
        record |= {"class": kind.__name__, "code": error.code, "message": error.message}
        try:
            record["metadata"] = codec.dumps(error.metadata, what="metadata of the error")
        except SerializationError:
            record["metadata"] = codec.dumps({})
    return json.dumps(record)


def _failure(title: str, text: str | None) -> RivetError:
    """The error to raise: ours as they were, ``ActionFailed`` for the rest."""
    if text is None:
        return NoWorker(
            f"the worker went away in the middle of {title}: nothing of it is stored, and it is not run again",
            metadata={"reason": "worker_died"},
        )
    record = json.loads(text)
    info = ErrorInfo.from_dict(record["error"])
    kind = getattr(exceptions, record.get("class", ""), None)
    if kind is None or not _is_plain(kind):
        return ActionFailed(f"{title} failed on its worker: {info}", error=info)
    metadata: Any = codec.loads(record["metadata"])
    if issubclass(kind, UserError):
        found: RivetError = UserError(record["message"], code=record["code"], metadata=metadata)
    else:
        found = kind(record["message"], metadata=metadata)
    found.error = info
    return found


def _is_plain(kind: Any) -> bool:
    """Is it one of those that are made of a text and metadata alone?"""
    return (
        isinstance(kind, type)
        and issubclass(kind, RivetError)
        and kind is not RivetError
        and kind.__init__ in (RivetError.__init__, UserError.__init__)
    )
