"""From an actor's declaration to what the engine is handed. Knows the registry and the settings, no I/O."""

from __future__ import annotations

import functools
import logging
import sys
from collections.abc import Callable
from typing import Any
from uuid import UUID

from rivet_workflows import codec, keys
from rivet_workflows.engine import Limits, Program
from rivet_workflows.exceptions import QueueNotFound
from rivet_workflows.markers import Queue
from rivet_workflows.names import RULE, is_name
from rivet_workflows.registry import ActorType, registry

logger = logging.getLogger("rivet_workflows.workflow")


def make_program(actor_type: ActorType, actor_id: UUID, key: str | tuple[str, ...]) -> Program:
    """The workflow of one actor as a :class:`Program`. The type must have a ``run``."""
    actor = actor_type.bind(actor_id, key)
    run = actor_type.run
    if run is None:
        raise LookupError(f"{actor_type.name} has no workflow: its class defines no run")
    options = actor_type.options
    return Program(
        run=functools.partial(run, actor),
        owner=actor_type.cls,
        code=actor_type.code,
        unique_names=options.unique_names,
        strict_args=options.strict_args,
        removed=options.removed,
        step_defaults=actor_type.step_options,
        queue_name=functools.partial(_queue_name, actor_type),
        actor_name=_actor_name,
        actor_key=keys.encode,
        check_body=functools.partial(_check_body, actor_type),
        handler_path=handler_path,
        find_handler=functools.partial(_find_handler, actor),
        serves=actor_type.serves,
        log=logging.LoggerAdapter(logger, {"actor": actor_type.name, "key": key, "actor_id": str(actor_id)}),
    )


def engine_limits(settings: Any) -> Limits:
    """The engine's bounds from the project's settings."""
    return Limits(
        max_scope_entries=settings.MAX_SCOPE_ENTRIES,
        max_starts=settings.MAX_STARTS,
        max_value=settings.MAX_PAYLOAD,
    )


def _actor_name(actor: Any) -> str:
    found = registry.get(actor)
    if found.run is None:
        raise TypeError(
            f"{found.name} has no workflow to wait for: its class defines no run. Call it from a step"
        )
    return found.name


def _queue_name(actor_type: ActorType, queue: Any) -> str:
    if isinstance(queue, Queue):
        queue = queue.name
    if not isinstance(queue, str) or not queue:
        raise TypeError(f"a queue is named by a str or by the actor's Queue attribute, not {queue!r}")
    if not is_name(queue):
        raise QueueNotFound(f"a queue's name has {RULE}", metadata={"queue": queue})
    actor_type.queue(queue)
    return queue


def _check_body(actor_type: ActorType, name: str, body: Any) -> Any:
    queue = actor_type.queue(name)
    return body if queue is None else queue.validate_body(body)


# -- rollback handlers (D-14) --------------------------------------------------------------------------


@functools.lru_cache(maxsize=4096)
def _path_of(function: Any) -> str:
    path = f"{function.__module__}:{function.__qualname__}"
    try:
        found = _resolve(path)
    except LookupError as exc:
        raise TypeError(
            f"rollback={function.__qualname__} must be a function at the top of its module, or a method of the actor: "
            "it is found again by its path after a restart"
        ) from exc
    if getattr(found, "__func__", found) is not function:
        raise TypeError(f"rollback={path} is not what its path leads to: is the name used twice?")
    return path


def handler_path(handler: Callable[..., Any]) -> str:
    """``module:qualname`` of a rollback handler. Raises TypeError when the path would not lead back to it."""
    return _path_of(getattr(handler, "__func__", handler))


def _resolve(path: str) -> Any:
    path = codec.current_name(path)
    module, _, qualname = path.partition(":")
    if not qualname:  # renamed: the new name has dots only
        parts = path.split(".")
        heads = (".".join(parts[:n]) for n in range(len(parts) - 1, 0, -1))
        module = next((head for head in heads if head in sys.modules), path)
        qualname = path[len(module) + 1 :]
    found: Any = sys.modules.get(module)
    if found is None:
        raise LookupError(
            f"rollback handler {path}: module {module!r} is not loaded; map it in RENAMED if it moved"
        )
    for part in qualname.split("."):
        try:
            found = getattr(found, part)
        except AttributeError:
            raise LookupError(
                f"rollback handler {path} does not exist; map it in RENAMED if it moved"
            ) from None
    return found


def _find_handler(actor: Any, path: str) -> Callable[..., Any]:
    """The function at ``path``; a method of the actor's class comes bound to this actor."""
    found = _resolve(path)
    name = getattr(found, "__name__", "")
    if "." in getattr(found, "__qualname__", "") and getattr(type(actor), name, None) is found:
        bound: Callable[..., Any] = getattr(actor, name)
        return bound
    return found  # type: ignore[no-any-return]
