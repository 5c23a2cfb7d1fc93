"""Running an action, and the hooks at an actor's birth and end, in the caller's process and transaction (D-22)."""

from __future__ import annotations

import difflib
import inspect
import logging
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any
from uuid import UUID

from django.db import connections, transaction

from rivet_workflows import codec
from rivet_workflows.client import bells, workercalls
from rivet_workflows.client.context import ActionContext
from rivet_workflows.client.invoking import invoke
from rivet_workflows.client.sending import encoded
from rivet_workflows.client.twins import in_thread
from rivet_workflows.client.workercalls import kept_until
from rivet_workflows.conf import settings
from rivet_workflows.exceptions import ActionNotFound, ActorNotFound
from rivet_workflows.records import CallStatus, WorkerCall
from rivet_workflows.registry import ActionDef, ActorType, registry
from rivet_workflows.store import get_store
from rivet_workflows.validation import validate_arguments

__all__ = [
    "CallWithdrawn",
    "arun_action",
    "destroy",
    "find_action",
    "kept_until",
    "on_created",
    "run_action",
    "run_called",
    "run_hook",
    "run_worker_hook",
]

logger = logging.getLogger("rivet_workflows.actions")


def find_action(actor_type: ActorType, name: str) -> ActionDef:
    """The action; ``ActionNotFound`` names close ones."""
    action = actor_type.actions.get(name)
    if action is None:
        close = difflib.get_close_matches(name, actor_type.actions, 3) or sorted(actor_type.actions)
        raise ActionNotFound(
            f"{actor_type.name} has no action {name!r}; "
            + (f"there is {', '.join(close)}" if close else "it has none"),
            metadata={"action": name, "actions": sorted(actor_type.actions)},
        )
    return action


def run_action(
    actor_id: UUID,
    actor_name: str,
    name: str,
    args: tuple[Any, ...] = (),
    kwargs: dict[str, Any] | None = None,
    *,
    user: Any = None,
    connection: Any = None,
    convert: Callable[[Any], Any] | None = None,
    once: str | None = None,
) -> Any:
    """Run one action and return what it returns, ``convert``-ed while it can still fail.

    ``once``: the hash of a key under which the action happens at most once; called again it gives the recorded result,
    which must therefore be one that can be stored.

    One transaction (a savepoint of the caller's, if there is one): it commits whole or, when the action raises, leaves
    no trace. A ``read_only`` action runs without transaction and locks; an ``on_worker`` one where the actor is held,
    see :mod:`~rivet_workflows.client.workercalls`. Raises ``ActorNotFound``, ``ActionNotFound``,
    ``ValidationFailed`` (arguments), ``ActorBusy`` (the state was locked longer than ``ACTION_LOCK_TIMEOUT``), and what
    the action raises.
    """
    actor_type = registry.get(actor_name)
    action = find_action(actor_type, name)
    if action.on_worker:
        return workercalls.call(
            actor_id, actor_type, action, args, kwargs or {}, user=user, convert=convert, once=once
        )
    args, kwargs = validate_arguments(action.func, args, kwargs or {})
    row = get_store().get(actor_id)
    if row is None:
        raise ActorNotFound(f"{actor_name} {actor_id} was destroyed", metadata={"id": str(actor_id)})
    context = ActionContext(
        actor_type, actor_id, row.key, read_only=action.read_only, user=user, connection=connection
    )
    bound = actor_type.bind(actor_id, context.key)
    if action.read_only:
        return _run(context, action.func, bound, args, kwargs, convert)
    with transaction.atomic(using=settings.DATABASE):
        if once is not None:
            fresh, recorded = get_store().begin_call(actor_id, once, kept_until())
            if not fresh:
                return codec.loads(recorded or "null")
        result = _run(context, action.func, bound, args, kwargs, convert)
        if once is not None:
            result, text = codec.roundtrip(result, what=f"the result of action {name!r}, which a step called")
            get_store().end_call(actor_id, once, text)
        if context.wants_destroy:
            _destroy_now(actor_type, actor_id, row.key)
    return result


async def arun_action(
    actor_id: UUID,
    actor_name: str,
    name: str,
    args: tuple[Any, ...] = (),
    kwargs: dict[str, Any] | None = None,
    **options: Any,
) -> Any:
    """:func:`run_action` for event loops."""
    actor_type = registry.get(actor_name)
    action = find_action(actor_type, name)
    if not action.on_worker:
        return await in_thread(run_action, actor_id, actor_name, name, args, kwargs, **options)
    options.pop("connection", None)
    return await workercalls.acall(actor_id, actor_type, action, args, kwargs or {}, **options)


class CallWithdrawn(Exception):
    """Nobody wants the outcome any more: nothing of the action, or hook, is stored."""


def run_called(
    call: WorkerCall,
    actor_name: str,
    stored_key: str,
    vars: Callable[[], Any],
    answer: Callable[[CallStatus, str], bool],
) -> None:
    """Run an action where the actor is held. ``answer`` records how it ended, in the transaction of its effects; it
    gives False when the call was withdrawn meanwhile, and then nothing is stored (:class:`CallWithdrawn`).

    What the action raises is raised.
    """
    actor_type = registry.get(actor_name)
    action = find_action(actor_type, call.action)
    given: Any = codec.loads(call.args)
    args, kwargs = validate_arguments(action.func, given["args"], given["kwargs"])
    context = ActionContext(
        actor_type,
        call.actor_id,
        stored_key,
        read_only=action.read_only,
        user=workercalls.user_of(call),
        vars=vars,
    )

    def keep(result: Any) -> str:
        if given["plain"]:
            codec.to_plain(result)
        return encoded(result, "MAX_PAYLOAD", f'result of action "{call.action}"')

    def finish(text: str) -> None:
        if not answer(CallStatus.DONE, text):
            raise CallWithdrawn
        bells.announce(news=[call.actor_id])

    bound = actor_type.bind(call.actor_id, context.key)
    if action.read_only:
        finish(_run(context, action.func, bound, args, kwargs, keep))
        return
    with transaction.atomic(using=settings.DATABASE):
        finish(_run(context, action.func, bound, args, kwargs, keep))
        if context.wants_destroy:
            _destroy_now(actor_type, call.actor_id, stored_key)


def run_hook(
    actor_id: UUID,
    actor_name: str,
    hook: str,
    *args: Any,
    user: Any = None,
    connection: Any = None,
    wanted: Callable[[], bool] = lambda: True,
) -> None:
    """Run an optional method of an actor as an action is run; nothing where the class has none. ``wanted`` is asked
    before the end: where it gives False, nothing is stored."""
    actor_type = registry.get(actor_name)
    function = actor_type.hooks.get(hook)
    if function is None:
        return
    row = get_store().get(actor_id)
    if row is None:
        raise ActorNotFound(f"{actor_name} {actor_id} was destroyed", metadata={"id": str(actor_id)})
    context = ActionContext(actor_type, actor_id, row.key, user=user, connection=connection)
    with transaction.atomic(using=settings.DATABASE):
        _run(context, function, actor_type.bind(actor_id, context.key), args, {})
        if not wanted():
            raise CallWithdrawn
        if context.wants_destroy:
            _destroy_now(actor_type, actor_id, row.key)


def run_worker_hook(
    actor_id: UUID,
    actor_name: str,
    hook: str,
    vars: Callable[[], Any] | None,
    wanted: Callable[[], bool] = lambda: True,
) -> Any:
    """Run a hook of the worker that holds the actor, and return what it returns. ``vars`` gives the actor's; ``wanted``
    as for :func:`run_hook`.

    It may take long, to open a connection say, so it holds neither a transaction nor a lock: what it changed is written
    in the end, in one transaction. Raises ``ActorBusy`` when somebody else changed the state meanwhile.
    """
    actor_type = registry.get(actor_name)
    function = actor_type.hooks[hook]
    row = get_store().get(actor_id)
    if row is None:
        raise ActorNotFound(f"{actor_name} {actor_id} was destroyed", metadata={"id": str(actor_id)})
    context = ActionContext(actor_type, actor_id, row.key, vars=vars, unlocked=True)
    alias = settings.DATABASE
    # In a test's transaction a statement that fails must not take that with it.
    safe = transaction.atomic(using=alias) if connections[alias].in_atomic_block else nullcontext()
    try:
        with safe:
            if inspect.iscoroutinefunction(function):
                context.preload()
            result = invoke(function, actor_type.bind(actor_id, context.key), context)
            if not wanted():
                raise CallWithdrawn
            with transaction.atomic(using=alias):
                context.finish()
                if context.wants_destroy:
                    _destroy_now(actor_type, actor_id, row.key)
            return result
    finally:
        context.close()


def _run(
    context: ActionContext,
    function: Callable[..., Any],
    bound: Any,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    convert: Callable[[Any], Any] | None = None,
) -> Any:
    try:
        if inspect.iscoroutinefunction(function):
            context.preload()
        result = invoke(function, bound, context, *args, **kwargs)
        if convert is not None:
            result = convert(result)
        context.finish()
        return result
    finally:
        context.close()


def on_created(actor_type: ActorType, actor_id: UUID, stored_key: str, given: Any) -> None:
    """``create_state`` and ``on_create``, in the creator's transaction, after the rows are there."""
    bound = actor_type.bind(actor_id, ActionContext(actor_type, actor_id, stored_key).key)
    create_state, on_create = actor_type.hooks.get("create_state"), actor_type.hooks.get("on_create")
    if create_state is not None:
        context = ActionContext(
            actor_type, actor_id, stored_key, stateless="create_state returns the state; there is none yet"
        )
        context.begin_state(invoke(create_state, bound, context, given))
        context.finish()
    if on_create is not None:
        context = ActionContext(actor_type, actor_id, stored_key)
        _run(context, on_create, bound, (given,), {})
        if context.wants_destroy:
            _destroy_now(actor_type, actor_id, stored_key)


def destroy(actor_id: UUID, actor_name: str) -> bool:
    """Destroy the actor, its ``on_destroy`` first, in one transaction. False when it is gone already."""
    with transaction.atomic(using=settings.DATABASE):
        row = get_store().get(actor_id)
        if row is None:
            return False
        actor_type = registry.find(actor_name)
        if actor_type is None:  # its class is gone; its rows must be able to follow
            return _remove(actor_id)
        return _destroy_now(actor_type, actor_id, row.key)


def _destroy_now(actor_type: ActorType, actor_id: UUID, stored_key: str) -> bool:
    hook = actor_type.hooks.get("on_destroy")
    if hook is not None:
        context = ActionContext(actor_type, actor_id, stored_key)
        _run(context, hook, actor_type.bind(actor_id, context.key), (), {})
    return _remove(actor_id)


def _remove(actor_id: UUID) -> bool:
    done = get_store().destroy(actor_id)
    # A holder hears that there is nothing left to hold, a waiter that there is nothing left to wait for.
    bells.announce(work=[actor_id], news=[actor_id])
    return done
