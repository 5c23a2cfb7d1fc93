"""What the store hands to its callers beside the records: rows of actors, runs, sends and events, and how a
history row becomes an ``Entry``."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from hashlib import sha256
from typing import Any
from uuid import UUID

from rivet_workflows.records import (
    Blocked,
    Claimed,
    Entry,
    EntryStatus,
    FireResult,
    Kind,
    Lifecycle,
    MessageRow,
    Prune,
    ScheduleKind,
)

#: Columns of a history row after ``actor_id``, in the order of ``Entry``'s fields.
ENTRY_COLUMNS = (
    "seq",
    "scope",
    "name",
    "kind",
    "occurrence",
    "status",
    "started_at",
    "done_seq",
    "done_at",
    "input",
    "input_hash",
    "output",
    "error",
    "attempts",
    "rollback",
    "rolled_back_at",
)


class ReplyStatus(IntEnum):
    """How a message with a waiting sender ended; ``label`` is ``Sent.status``."""

    COMPLETED = 1
    FAILED = 2

    @property
    def label(self) -> str:
        return self.name.lower()


def live_hash(name: str, key: str) -> str:
    """The unique mark of a live actor, from its name and its key's JSON text."""
    return sha256(f"{name}\0{key}".encode()).hexdigest()


def type_id(name: str) -> int:
    """The number that stands for an actor's name in runs and wakes: 63 bits of its hash, never 0.

    A hash and not a row's id: there is no row to make first (in a caller's transaction that may roll back,
    while others wait for it), and nothing to remember that a flushed table could make wrong. Two of 1,000
    names are alike with a probability of 5e-14.
    """
    return (int.from_bytes(sha256(name.encode()).digest()[:8], "big") >> 1) or 1


def entry_from_row(row: Sequence[Any]) -> Entry:
    """The entry in a row of ``ENTRY_COLUMNS``. Raises ValueError for what this version cannot read."""
    entry = Entry(*row)
    entry.kind = Kind(entry.kind)
    entry.status = EntryStatus(entry.status)
    return entry


def entry_values(entry: Entry) -> tuple[Any, ...]:
    """The reverse: plain values, in the order of ``ENTRY_COLUMNS``."""
    return (
        entry.seq,
        entry.scope,
        entry.name,
        int(entry.kind),
        entry.occurrence,
        int(entry.status),
        entry.started_at,
        entry.done_seq,
        entry.done_at,
        entry.input,
        entry.input_hash,
        entry.output,
        entry.error,
        entry.attempts,
        entry.rollback,
        entry.rolled_back_at,
    )


@dataclass(slots=True, frozen=True)
class ActorRow:
    """Who an actor is, and how its run ended."""

    id: UUID
    name: str
    key: str
    lifecycle: Lifecycle
    created_at: int
    finished_at: int | None = None
    input: str | None = None
    output: str | None = None
    error: str | None = None
    parent_id: UUID | None = None


@dataclass(slots=True, frozen=True)
class RunRow:
    """Where an actor's run stands."""

    actor_id: UUID
    owner_id: int | None
    epoch: int
    commit_no: int
    next_seq: int
    event_seq: int
    inflight: str
    blocked: Blocked
    blocked_code: str
    code: str
    format: int
    #: From the cold row.
    name: str
    lifecycle: Lifecycle
    #: The earliest wake that is waiting, if any.
    wake_at: int | None = None


@dataclass(slots=True, frozen=True)
class SentRow:
    """A message as it was queued; ``duplicate``: its key had been sent before, this is that message's id."""

    id: int
    duplicate: bool = False


@dataclass(slots=True, frozen=True)
class EventRow:
    seq: int
    name: str
    payload: str
    created_at: int


@dataclass(slots=True)
class Edit:
    """What a control operation changes in a run. The epoch is raised, the owner cleared and (unless ``wake``
    is False) a wake inserted in any case, so the holder is fenced by the one rule."""

    inflight: str | None = None
    next_seq: int | None = None
    #: Delete the history from this ``seq`` on.
    delete_from: int | None = None
    delete_seqs: Iterable[int] = ()
    delete_scopes: Iterable[Prune] = ()
    #: Finished entries to insert; a row of the same ``seq`` is replaced.
    rows: list[Entry] = field(default_factory=list)
    #: Held messages become visible again: those of holders from this ``seq`` on (0: all).
    unhold_from: int | None = None
    unholds: Iterable[int] = ()
    #: ``(message id, seq of the holder)``: messages that are hidden from others again, where they are still there.
    holds: Iterable[tuple[int, int]] = ()
    #: Consumed messages to put back into their queues, under their old ids.
    give_back: Iterable[MessageRow] = ()
    blocked: Blocked | None = None
    lifecycle: Lifecycle | None = None
    #: Forget output, error and the time of the end (or, with ``finished_at``, set that).
    clear_result: bool = False
    finished_at: int | None = None
    error: str | None = None
    wake: bool = True


def claimed_from_rows(run: Sequence[Any], cold: Sequence[Any], history: Iterable[Sequence[Any]]) -> Claimed:
    """A claimed actor from ``(id, epoch, commit_no, next_seq, inflight)``, ``(name, key, input, created_at)``
    and its history. What cannot be read marks it ``unreadable`` and harms no other."""
    actor_id, epoch, commit_no, next_seq, inflight = run
    name, key, text, created_at = cold
    # One name for all actors of a type, however many are held.
    claimed = Claimed(actor_id, sys.intern(name), key, text, created_at, epoch, commit_no, next_seq, inflight)
    try:
        claimed.entries = [entry_from_row(row) for row in history]
    except ValueError as error:
        claimed.unreadable = str(error)
    return claimed


def lifecycle_of_block(reason: Blocked) -> int | None:
    """The lifecycle that goes with a block; None leaves it. A failing rollback is still rolling back."""
    if reason in (Blocked.DIVERGED, Blocked.POISONED, Blocked.UNREADABLE):
        return int(Lifecycle.SET_ASIDE)
    return None


@dataclass(frozen=True, slots=True)
class ScheduleRow:
    """A schedule as it is stored."""

    id: UUID
    actor_id: UUID
    name: str | None
    kind: ScheduleKind
    action: str
    args: str
    rule: str
    timezone: str
    next_at: int | None
    last_at: int | None
    max_history: int


@dataclass(frozen=True, slots=True)
class FireRow:
    """One fire of a recurring schedule. ``error`` is the text of an ``ErrorInfo``."""

    action: str
    scheduled_at: int
    fired_at: int
    finished_at: int | None
    result: FireResult
    error: str | None
