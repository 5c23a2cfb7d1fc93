"""From a value in a caller's hand to a message in an actor's queue, and to the answer that comes back.

Checks at the sender: the queue is declared, the body fits its type, can be stored and is not too large (D-17). A send
joins the transaction that is open; it inserts a message and a wake, and touches no row of the actor.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from datetime import timedelta
from typing import Any
from uuid import UUID

from rivet_workflows import codec
from rivet_workflows.client.results import Sent
from rivet_workflows.conf import settings
from rivet_workflows.engine.options import micros
from rivet_workflows.exceptions import PayloadTooLarge, QueueNotFound
from rivet_workflows.markers import Event, Queue
from rivet_workflows.names import RULE, is_name
from rivet_workflows.records import Outgoing
from rivet_workflows.registry import registry
from rivet_workflows.store import get_store

__all__ = ["check_size", "dedupe_hash", "encoded", "outgoing", "read_reply"]

#: Longest dedupe key, in characters.
MAX_DEDUPE_KEY = 1024


def encoded(value: Any, limit: str, what: str) -> str:
    """``value`` as text. ``SerializationError`` with the path to what cannot be stored, ``PayloadTooLarge`` when the
    text has more bytes than the setting ``limit`` allows; ``what`` names the value in both."""
    return check_size(codec.dumps(value, what=what), limit, what)


def check_size(text: str, limit: str, what: str) -> str:
    """``text``, or ``PayloadTooLarge``, as above."""
    allowed: int = getattr(settings, limit)
    if len(text) > allowed:
        raise PayloadTooLarge(
            f"{what} has {len(text):,} bytes encoded; {limit} allows {allowed:,}. "
            "Store it elsewhere and pass a key to it.",
            metadata={"size": len(text), "limit": allowed},
        )
    return text


def outgoing(
    actor_id: UUID,
    actor_name: str,
    queue: str | Queue[Any, Any],
    body: Any,
    *,
    delay: float | timedelta | None = None,
    dedupe_key: str | None = None,
    wait: bool = False,
    now: Callable[[], int] | None = None,
) -> Outgoing:
    """The checked message. ``now`` gives the database's time where it may not be asked here.

    Raises ``QueueNotFound``, ``ValidationFailed``, ``SerializationError``, ``PayloadTooLarge``; ``TypeError`` and
    ``ValueError`` for a delay that is no duration.
    """
    actor_type = registry.get(actor_name)
    declared = actor_type.queue(queue)
    name = declared.name if declared is not None else _free_name(queue)
    if declared is not None:
        body = declared.validate_body(body)
    text = encoded(body, "MAX_MESSAGE_SIZE", f'body of queue "{name}"')
    clock = get_store().clock.now if now is None else now
    at = clock() if delay is not None or dedupe_key is not None else 0
    wait_for = 0 if delay is None else micros(delay, "delay")
    return Outgoing(
        actor_id=actor_id,
        queue=name,
        body=text,
        visible_at=at + wait_for if wait_for else None,
        wants_reply=wait,
        dedupe_hash=None if dedupe_key is None else dedupe_hash(name, dedupe_key),
        dedupe_until=None if dedupe_key is None else at + round(settings.DEDUPE_PERIOD * 1_000_000),
        max_queue_size=actor_type.options.max_queue_size or settings.MAX_QUEUE_SIZE,
    )


def _free_name(queue: str | Queue[Any, Any]) -> str:
    name = queue.name if isinstance(queue, Queue) else queue
    if not isinstance(name, str):
        raise TypeError(
            f"a queue is named by a str or by the actor's Queue attribute, not {type(name).__name__}"
        )
    if not is_name(name):
        raise QueueNotFound(f"a queue's name has {RULE}", metadata={"queue": name})
    return str.__str__(name)  # what is also an enum may say its own name for it


def event_name(event: str | Event[Any]) -> str:
    """What an event is called. TypeError for what is no event, ValueError for a name that none may have."""
    name = event.name if isinstance(event, Event) else event
    if not isinstance(name, str):
        raise TypeError(
            f"an event is named by a str or by the actor's Event attribute, not {type(name).__name__}"
        )
    if not is_name(name):
        raise ValueError(f"an event's name has {RULE}, which {name[:40]!r} does not")
    return name


def dedupe_hash(queue: str, key: str) -> str:
    """Per queue: one key may be used on two queues of an actor."""
    if not isinstance(key, str):
        raise TypeError(f"dedupe_key must be a str, not {type(key).__name__}")
    if not 0 < len(key) <= MAX_DEDUPE_KEY:
        raise ValueError(f"dedupe_key must have 1 to {MAX_DEDUPE_KEY} characters, not {len(key)}")
    text = f"{len(queue)}:{queue}{key}"
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def read_reply(message_id: int, duplicate: bool) -> Sent[Any] | None:
    """The answer to a waiting send, or None while there is none."""
    reply = get_store().reply(message_id)
    if reply is None:
        return None
    status, body = reply
    return Sent(message_id, status, None if body is None else codec.loads(body), duplicate)
