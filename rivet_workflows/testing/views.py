"""What a test looks at: events, messages, timers, and the history as a page of text. Reads through store and client."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from rivet_workflows import codec, keys
from rivet_workflows.client import Handle, HistoryEntry
from rivet_workflows.client.moments import from_micros
from rivet_workflows.models import Message, Schedule
from rivet_workflows.records import Kind, load_open
from rivet_workflows.store import get_store
from rivet_workflows.store.rows import ActorRow

__all__ = ["SeenEvent", "SeenMessage", "SeenTimer", "events", "history_text", "messages", "timers"]

#: Actors whose histories a failing test prints.
SHOWN_ACTORS = 10
SHOWN_ENTRIES = 200


@dataclass(frozen=True, slots=True)
class SeenEvent:
    """A broadcast, its payload decoded."""

    seq: int
    name: str
    payload: Any
    created_at: datetime


@dataclass(frozen=True, slots=True)
class SeenMessage:
    """A message that waits in a queue, its body decoded. ``name`` is the queue's."""

    id: int
    name: str
    body: Any
    created_at: datetime


@dataclass(frozen=True, slots=True)
class SeenTimer:
    """Something that happens at a time. ``kind``: ``sleep``, ``deadline`` (of a wait), ``backoff`` (of a step),
    ``message`` (sent with a delay), ``schedule``. ``name`` is the call's, queue's or action's."""

    kind: str
    due: datetime
    name: str = ""


def events(handle: Handle) -> list[SeenEvent]:
    """Everything the actor has broadcast."""
    rows: list[Any] = []
    while page := get_store().events(handle.actor_id, rows[-1].seq if rows else 0):
        rows += page
    return [
        SeenEvent(row.seq, row.name, codec.loads(row.payload), from_micros(row.created_at)) for row in rows
    ]


def messages(handle: Handle) -> list[SeenMessage]:
    """What lies in the actor's queues, queue by queue; delayed messages too."""
    rows = get_store().messages(handle.actor_id, 10_000)
    return [SeenMessage(row.id, row.queue, codec.loads(row.body), from_micros(row.sent_at)) for row in rows]


def timers(handle: Handle) -> list[SeenTimer]:
    """What will happen to the actor by itself, the next first."""
    store = get_store()
    now = store.clock.now()
    run = store.position(handle.actor_id)
    found: list[tuple[int, str, str]] = []
    for rec in load_open(run.inflight)["e"] if run is not None else ():
        if "b" in rec:
            found.append((rec["b"], "backoff", rec["n"]))
        elif rec.get("d") is not None:
            found.append((rec["d"], "sleep" if rec["k"] == Kind.SLEEP else "deadline", rec["n"]))
    delayed = Message.objects.using(store.alias).filter(actor_id=handle.actor_id, visible_at__gt=now)
    found += [(at, "message", queue) for at, queue in delayed.values_list("visible_at", "queue")]
    scheduled = Schedule.objects.using(store.alias).filter(actor_id=handle.actor_id)
    found += [
        (at, "schedule", name or action)
        for at, name, action in scheduled.values_list("next_at", "name", "action")
        if at is not None
    ]
    return [SeenTimer(kind, from_micros(due), name) for due, kind, name in sorted(found)]


def history_text() -> str:
    """The histories of the actors there are, for a person who wonders why a test failed."""
    rows = get_store().list_actors(limit=SHOWN_ACTORS + 1)
    parts = [_actor_text(row) for row in rows[:SHOWN_ACTORS]]
    if len(rows) > SHOWN_ACTORS:
        parts.append("… and more actors")
    return "\n\n".join(parts) or "there are no actors"


def _actor_text(row: ActorRow) -> str:
    from rivet_workflows import client

    handle = client.default.get_for_id(row.id)
    status = handle.status()
    head = f'{row.name} "{keys.readable(row.key)}": {status}'
    if status.reason:
        head += f", {status.reason}"
    if status.waiting_for is not None:
        head += f", waits for {', '.join(status.waiting_for) or 'any queue'}"
    if status.wake_at is not None:
        head += f", wakes at {status.wake_at.isoformat()}"
    lines = [head]
    if status.error is not None:
        lines.append(f"  {status.error.type}: {status.error.message}")
    return "\n".join(lines + list(_entry_lines(handle.history())))


def _entry_lines(entries: list[HistoryEntry]) -> Iterable[str]:
    if len(entries) > SHOWN_ENTRIES:
        yield f"  … {len(entries) - SHOWN_ENTRIES} entries before"
    for entry in entries[-SHOWN_ENTRIES:]:
        line = f"  {entry.seq:>4}  {entry.kind:<8} {entry.location}  {entry.status}"
        if entry.output_text is not None:
            line += f"  -> {_short(entry.output_text)}"
        if entry.error is not None:
            line += f"  {entry.error.type}: {_short(entry.error.message)}"
        if len(entry.attempts) > 1:
            line += f"  ({len(entry.attempts)} attempts)"
        yield line


def _short(text: str) -> str:
    return text if len(text) <= 120 else f"{text[:120]}…"
