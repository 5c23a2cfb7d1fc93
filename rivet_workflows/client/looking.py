"""What the inspector, REST and the WebSocket read of one actor beside what a handle offers. Values in JSON form."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from rivet_workflows.client import sending
from rivet_workflows.client.handles import Handle
from rivet_workflows.client.moments import from_micros
from rivet_workflows.client.results import ActorStatus, status_of
from rivet_workflows.codec import plain_text
from rivet_workflows.conf import settings
from rivet_workflows.exceptions import ActorBusy, ActorNotFound, ValidationFailed
from rivet_workflows.records import Lifecycle
from rivet_workflows.registry import registry
from rivet_workflows.store import get_store
from rivet_workflows.store.rows import ActorRow

__all__ = [
    "PAGE",
    "EventPage",
    "StoredEvent",
    "StoredMessage",
    "events",
    "events_of",
    "last_events",
    "messages",
    "plain_state",
    "queue_limit",
    "queue_size",
    "replace_state",
    "statuses",
]


@dataclass(frozen=True, slots=True)
class StoredEvent:
    """An event as it was broadcast; ``payload`` is plain JSON data."""

    seq: int
    name: str
    payload: Any
    created_at: datetime


@dataclass(frozen=True, slots=True)
class EventPage:
    """Events in order, and the range of ``seq`` that came before them and is no longer kept."""

    events: list[StoredEvent]
    gap: tuple[int, int] | None = None


@dataclass(frozen=True, slots=True)
class StoredMessage:
    """A message that waits, or that the actor has received and not completed yet."""

    id: int
    queue: str
    body: Any
    sent_at: datetime


#: Events that one read gives at most.
PAGE = 500


def events(handle: Handle, *, after: int = 0, limit: int = PAGE) -> EventPage:
    """The actor's events from the one behind ``after`` on. Raises ``ActorNotFound``."""
    return events_of(handle.actor_id, after=after, limit=limit)


def events_of(actor_id: UUID, *, after: int = 0, limit: int = PAGE) -> EventPage:
    """:func:`events` by the actor's id."""
    run = get_store().position(actor_id)
    if run is None:
        raise ActorNotFound(f"the actor {actor_id} was destroyed", metadata={"id": str(actor_id)})
    found = [
        StoredEvent(row.seq, row.name, plain_text(row.payload), from_micros(row.created_at))
        for row in get_store().events(actor_id, after, limit)
    ]
    # Numbers have no holes (they are given under a lock): what is missing in front was kept no longer.
    first = found[0].seq if found else run.event_seq + 1
    return EventPage(found, (after + 1, first - 1) if first > after + 1 else None)


def last_events(actor_ids: Sequence[UUID]) -> dict[UUID, int]:
    """The newest event's ``seq`` of each of these actors that exists; 0 where there was none yet. Two queries per
    500."""
    from rivet_workflows.models import Actor, Run

    alias, found = settings.DATABASE, {}
    for start in range(0, len(actor_ids), PAGE):
        some = actor_ids[start : start + PAGE]
        live = set(
            Actor.objects.using(alias)
            .filter(id__in=some, live_hash__isnull=False)
            .values_list("id", flat=True)
        )
        runs = Run.objects.using(alias).filter(actor_id__in=live).values_list("actor_id", "event_seq")
        found.update(dict(runs))
    return found


def statuses(handles: Sequence[Handle]) -> dict[UUID, ActorStatus]:
    """The status of each of these actors that exists, for listings: two queries per 500."""
    from rivet_workflows.models import Actor, Run
    from rivet_workflows.store.reads import run_row

    alias, found = settings.DATABASE, {}
    for start in range(0, len(handles), PAGE):
        some = [handle.actor_id for handle in handles[start : start + PAGE]]
        actors = Actor.objects.using(alias).filter(id__in=some, live_hash__isnull=False).in_bulk()
        for run in Run.objects.using(alias).filter(actor_id__in=actors):
            actor = actors[run.actor_id]
            row = ActorRow(
                actor.id,
                actor.name,
                actor.key,
                Lifecycle(actor.lifecycle),
                actor.created_at,
                actor.finished_at,
                error=actor.error,
            )
            found[run.actor_id] = status_of(run_row(run, actor.name, actor.lifecycle), row)
    return found


def messages(handle: Handle, *, limit: int = 100) -> list[StoredMessage]:
    """What lies in the actor's queues, queue by queue, oldest first."""
    return [
        StoredMessage(row.id, row.queue, plain_text(row.body), from_micros(row.sent_at))
        for row in get_store().messages(handle.actor_id, limit)
    ]


def queue_size(handle: Handle) -> int:
    """How many messages lie in the actor's queues, counted up to the most that fit."""
    return get_store().queue_size(handle.actor_id, queue_limit(handle) + 1)


def queue_limit(handle: Handle) -> int:
    """How many messages may lie in the actor's queues, together."""
    actor_type = registry.find(handle.name)
    own = actor_type.options.max_queue_size if actor_type is not None else None
    return own or settings.MAX_QUEUE_SIZE


def plain_state(handle: Handle) -> Any:
    """The stored state as JSON data; readable also where its class is gone."""
    return plain_text(get_store().load_state(handle.actor_id)[1])


def replace_state(handle: Handle, value: Any) -> None:
    """Store ``value`` as the state, as an instance of its declared type. Steps that hold an older one conflict.

    Raises ``ValidationFailed``, ``ActorBusy``, ``PayloadTooLarge``.
    """
    actor_type = registry.get(handle.name)
    if not actor_type.state_enabled:
        raise ValidationFailed(f"{handle.name} has no state")
    text = sending.encoded(actor_type.validate_state(value), "MAX_STATE", f"state of {handle.name}")
    store = get_store()
    with store.atomic():
        version, _ = store.lock_state(handle.actor_id, settings.ACTION_LOCK_TIMEOUT)
        if not store.save_state(handle.actor_id, version, text):
            raise ActorBusy(f"the state of {handle.name} was changed meanwhile; try again")
