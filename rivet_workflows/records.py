"""The records that travel between the rooms: what a history entry is, what one commit of one actor holds.

A leaf: pure data, no behaviour beyond reading and writing its own text form. The engine produces these, the
worker groups them, the store writes them, the client shows them; none of them needs to know another for it.

Conventions, everywhere below the public surface:

* points in time are ``int`` microseconds since the Unix epoch, UTC (``*_at``, ``due``, ``deadline``): exact
  up to year 9999 and beyond, the same in three databases, indifferent to ``USE_TZ``;
* values are *texts*, encoded by the codec (ASCII JSON), opaque here; errors are texts of ``ErrorInfo.to_dict``;
* a *scope* is where a call was made: ``""`` for the workflow function itself, else the enclosing scope followed by
  the ``seq`` of the entry that opened it and the number of the iteration or branch. Each number is its hex digits
  after one more hex digit that says how many they are (less one), so that numbers sort by their size, under every
  collation, no separator is needed, no name can collide, and all that lies inside an iteration, nested content
  included, is one range. A level costs four to eight characters in most histories.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any, NamedTuple
from uuid import UUID

from rivet_workflows import jsontext

#: Characters of a scope: what an index on MariaDB can hold beside the actor. More than 90 levels of loops, branches
#: and blocks within each other, in a history of some thousand entries.
MAX_SCOPE = 720
#: Characters of an entry's name.
MAX_NAME = 255
#: Sorts behind every hex digit: ``[scope, scope + SCOPE_END)`` is the scope and all that lies inside it.
SCOPE_END = "g"


class Kind(IntEnum):
    """What a history entry records. ``label`` is the public name (R-REM-01, and ``send map child``)."""

    STEP = 1
    LOOP = 2
    SLEEP = 3
    MESSAGE = 4
    ROLLBACK_CHECKPOINT = 5
    JOIN = 6
    RACE = 7
    REMOVED = 8
    VERSION_CHECK = 9
    SEND = 10
    MAP = 11
    CHILD = 12
    #: Opens the scope of a ``try_block``; not shown in histories (R-LOC-07).
    TRY = 13

    @property
    def label(self) -> str:
        return _LABELS[self]


_LABELS = {kind: kind.name.lower() for kind in Kind}
#: Kinds of entries that code can declare removed (R-REM-01).
REMOVABLE = frozenset(_LABELS.values())


class EntryStatus(IntEnum):
    RUNNING = 1
    RETRYING = 2
    COMPLETED = 3
    FAILED = 4
    CANCELLED = 5
    REMOVED = 6

    @property
    def label(self) -> str:
        return self.name.lower()


class Lifecycle(IntEnum):
    """The slow part of an actor's status, on its cold row (``client.list(status=…)``)."""

    LIVE = 1
    COMPLETED = 2
    FAILED = 3
    CANCELLED = 4
    SET_ASIDE = 5

    @property
    def label(self) -> str:
        return self.name.lower()


class Blocked(IntEnum):
    """Why no worker may take an actor up; on its hot row. 0 is free."""

    NO = 0
    #: ``run`` is over, or there is none: nothing to do until a control operation.
    OVER = 1
    PAUSED = 2
    #: The history does not fit the code whose hash is in ``blocked_code``; a worker with other code may try.
    DIVERGED = 3
    #: Took its process down too often.
    POISONED = 4
    #: Its rows cannot be decoded.
    UNREADABLE = 5
    #: A rollback handler keeps failing.
    ROLLBACK_FAILED = 6

    @property
    def reason(self) -> str | None:
        """``ActorStatus.reason``: set for the blocks that mean trouble."""
        return self.name.lower() if self >= Blocked.DIVERGED else None


class TimerKind(IntEnum):
    """Why a wake row exists. All are claimed alike; the kind is for the inspector."""

    WAKE = 1
    DEADLINE = 2
    SCHEDULE = 3
    CONTROL = 4


class ScheduleKind(IntEnum):
    """How often a schedule fires. ``label`` is ``ScheduledFire.kind``."""

    AT = 1
    EVERY = 2
    CRON = 3

    @property
    def label(self) -> str:
        return self.name.lower()


class FireResult(IntEnum):
    """What became of one fire of a recurring schedule."""

    RUNNING = 1
    OK = 2
    ERROR = 3
    SKIPPED = 4

    @property
    def label(self) -> str:
        return self.name.lower()


class CallStatus(IntEnum):
    """Where a call for a worker stands. FAILED without an answer: its worker went away in the middle of it."""

    WAITING = 1
    RUNNING = 2
    DONE = 3
    FAILED = 4


def child_scope(scope: str, seq: int, index: int) -> str:
    """The scope of iteration or branch ``index`` of the entry ``seq`` that was made in ``scope``."""
    number = f"{index:x}"
    return f"{opened_by(scope, seq)}{len(number) - 1:x}{number}"


def opened_by(scope: str, seq: int) -> str:
    """What every scope begins with that the entry ``seq``, made in ``scope``, opens."""
    number = f"{seq:x}"
    return f"{scope}{len(number) - 1:x}{number}"


def scope_steps(scope: str) -> Iterator[tuple[int, int, str]]:
    """``(seq of the opener, iteration or branch, the scope so far)`` of all that a scope lies in, outermost first.

    Raises ValueError where the text is no scope.
    """
    at = 0
    while at < len(scope):
        seq, at = _number(scope, at)
        index, at = _number(scope, at)
        yield seq, index, scope[:at]


def _number(scope: str, at: int) -> tuple[int, int]:
    end = at + 2 + int(scope[at : at + 1], 16)
    if end > len(scope):
        raise ValueError(f"the scope {scope!r} is cut off")
    return int(scope[at + 1 : end], 16), end


@dataclass(slots=True)
class Entry:
    """One record of the history. Finished entries are rows; open ones live in the run row's ``inflight`` text."""

    seq: int
    scope: str
    name: str
    kind: Kind
    occurrence: int = 1
    status: EntryStatus = EntryStatus.RUNNING
    started_at: int = 0
    done_seq: int | None = None
    done_at: int | None = None
    #: What the call was made with (cut at 8 KiB), and a hash of the whole (D-02).
    input: str | None = None
    input_hash: str | None = None
    output: str | None = None
    error: str | None = None
    #: JSON list of ``[started_at, done_at, error dict or null]`` of the attempts that ended.
    attempts: str | None = None
    #: Dotted path of the rollback handler (D-14).
    rollback: str | None = None
    rolled_back_at: int | None = None

    @property
    def location_key(self) -> tuple[str, int]:
        return self.name, self.occurrence


@dataclass(slots=True, frozen=True)
class Prune:
    """Delete the history whose scope is in ``[first, end)``. ``keep_handlers``: an enclosing checkpoint is still
    open, so rows with a rollback handler that has not run stay (D-14)."""

    first: str
    end: str
    keep_handlers: bool = False

    def covers(self, row: Entry) -> bool:
        """Whether it deletes this row."""
        if not self.first <= row.scope < self.end:
            return False
        return not (self.keep_handlers and row.rollback is not None and row.rolled_back_at is None)


@dataclass(slots=True, frozen=True)
class MessageRow:
    """A message as it lies in the queue."""

    id: int
    queue: str
    body: str
    sent_at: int
    wants_reply: bool = False


@dataclass(slots=True, frozen=True)
class Outgoing:
    """A message to put into a queue. ``actor_id`` is the receiver; ``visible_at`` None is at once."""

    actor_id: UUID
    queue: str
    body: str
    visible_at: int | None = None
    wants_reply: bool = False
    #: Hash of the dedupe key, and until when it is kept.
    dedupe_hash: str | None = None
    dedupe_until: int | None = None
    max_queue_size: int | None = None


@dataclass(slots=True, frozen=True)
class ScheduleWrite:
    """A schedule to store. One with a name takes the place of the actor's schedule of that name."""

    id: UUID
    #: The actor's registered name: a worker fires those that it has code for.
    actor_name: str
    kind: ScheduleKind
    action: str
    #: Encoded list of positional arguments.
    args: str
    #: When it fires first; of a recurring one that keeps its cadence, the stored time stays.
    next_at: int
    name: str | None = None
    #: Microseconds as text (EVERY), or the five fields (CRON).
    rule: str = ""
    timezone: str = ""
    max_history: int = 0


@dataclass(slots=True, frozen=True)
class ScheduleDrop:
    """A schedule to remove: a one-shot by ``id``, a recurring one by ``name``, with its history."""

    id: UUID | None = None
    name: str | None = None


ScheduleOp = ScheduleWrite | ScheduleDrop


@dataclass(slots=True, frozen=True)
class StateWrite:
    """The new encoded state, valid only while the stored one still has ``version`` (optimistic; D-13)."""

    version: int
    body: str


@dataclass(slots=True, frozen=True)
class Finish:
    """The run is over."""

    lifecycle: Lifecycle
    at: int
    output: str | None = None
    error: str | None = None


@dataclass(slots=True)
class CommitItem:
    """All that one actor writes in one commit: whole, or (fence refused) not at all.

    The fence is ``(actor_id, epoch, commit_no)``: the stored ``commit_no`` must equal the one given and is raised
    by one, so a repeated or stale item writes nothing.
    """

    actor_id: UUID
    epoch: int
    commit_no: int
    next_seq: int
    inflight: str
    rows: list[Entry] = field(default_factory=list)
    #: ``(seq, at)`` of entries whose rollback handler has run.
    rolled_back: list[tuple[int, int]] = field(default_factory=list)
    prunes: list[Prune] = field(default_factory=list)
    #: Messages consumed: deleted. Fewer found than asked refuses the item.
    takes: list[int] = field(default_factory=list)
    #: ``(message id, seq of the holding entry)``: hidden from other receivers until completed (D-16).
    holds: list[tuple[int, int]] = field(default_factory=list)
    #: Held messages that become visible again at their old place.
    unholds: list[int] = field(default_factory=list)
    #: ``(message id, response text)``: deleted, and the response stored for the waiting sender. Gone ids are fine.
    completes: list[tuple[int, str]] = field(default_factory=list)
    #: Messages that ended without being completed, whose senders may be waiting: answered ``failed``.
    unanswered: list[int] = field(default_factory=list)
    sends: list[Outgoing] = field(default_factory=list)
    #: ``(name, payload text)``; numbered under the row's lock, so commit order is ``seq`` order.
    events: list[tuple[str, str]] = field(default_factory=list)
    #: Schedules set and removed, in this order.
    schedules: list[ScheduleOp] = field(default_factory=list)
    state: StateWrite | None = None
    finish: Finish | None = None
    #: Set aside: ``(reason, hash of the refusing code)``. The owner is cleared with it.
    block: tuple[Blocked, str] | None = None
    #: Why, as a failure record: what the inspector shows, with the entry and the mend.
    block_error: str | None = None
    destroy: bool = False

    def is_empty(self) -> bool:
        """Nothing but the position would be written."""
        lists = (
            self.rows,
            self.rolled_back,
            self.prunes,
            self.takes,
            self.holds,
            self.unholds,
            self.completes,
            self.schedules,
        )
        more = (self.unanswered, self.sends, self.events, self.state, self.finish, self.block, self.destroy)
        return not any(lists) and not any(more)

    def is_news(self) -> bool:
        """Clients may wait for something that it writes."""
        return bool(self.finish or self.events or self.completes or self.unanswered or self.destroy)

    def size(self) -> int:
        """Rough bytes, to bound a group."""
        size = len(self.inflight)
        for row in self.rows:
            size += len(row.input or "") + len(row.output or "") + len(row.error or "") + 200
        for send in self.sends:
            size += len(send.body)
        for _, payload in self.events:
            size += len(payload)
        for op in self.schedules:
            size += len(op.args) if isinstance(op, ScheduleWrite) else 0
        return size if self.state is None else size + len(self.state.body)


class Commit(IntEnum):
    """What became of an item. Everything but OK wrote nothing for that actor."""

    OK = 1
    #: Its row is locked by somebody (an action): offer it again with a later group.
    BUSY = 2
    #: Another owner, epoch or commit number: this worker's actor is over.
    STALE = 3
    #: The state has another version: merge again.
    CONFLICT = 4
    #: The database refused the content (or a message was gone); ``CommitResult.error`` says why.
    REFUSED = 5


class CommitResult(NamedTuple):
    actor_id: UUID
    outcome: Commit
    error: str = ""


@dataclass(slots=True)
class Claimed:
    """An actor as a worker takes it up: its position and the history that a replay needs."""

    actor_id: UUID
    name: str
    key: str
    input: str | None
    created_at: int
    epoch: int
    commit_no: int
    next_seq: int
    inflight: str
    entries: list[Entry] = field(default_factory=list)
    #: Set when its rows could not be read; it is set aside alone.
    unreadable: str = ""
    #: Held for its actions alone: its workflow is over, paused or set aside, or there is none.
    guest: bool = False


@dataclass(slots=True, frozen=True)
class WorkerCall:
    """An action that a caller wants run where the actor is held. ``args`` and ``user`` are encoded."""

    actor_id: UUID
    action: str
    args: str
    #: It must be answered by then.
    until: int
    user: str | None = None
    #: The caller waits for the answer.
    waits: bool = True
    #: Hash of the key under which it happens once.
    once: str | None = None
    #: 0: not stored yet.
    id: int = 0


@dataclass(slots=True, frozen=True)
class Called:
    """The calls that wait for one held actor, the first first. ``held``: it is still held in that epoch; if not, the
    calls are somebody else's."""

    actor_id: UUID
    epoch: int
    held: bool
    calls: Sequence[WorkerCall] = ()


@dataclass(slots=True, frozen=True)
class Release:
    """Give an actor back. ``due``: when it must be taken up again by itself (None: only a message will)."""

    actor_id: UUID
    epoch: int
    due: int | None = None
    #: The position to store with it where a hand-back changes it (steps that were not run to an end).
    inflight: str | None = None


@dataclass(slots=True, frozen=True)
class Look:
    """Which messages an actor's open waits want; ``names`` None is any."""

    actor_id: UUID
    names: tuple[str, ...] | None
    limit: int = 20
    #: The holder's epoch: one that has lost the actor meanwhile must not take away the wakes of the next.
    epoch: int | None = None


@dataclass(slots=True, frozen=True)
class Looked:
    """The answer to a :class:`Look`: what was visible at ``at``, in arrival order. ``complete``: there is no more."""

    actor_id: UUID
    names: tuple[str, ...] | None
    messages: Sequence[MessageRow]
    complete: bool
    at: int


def dump_open(entries: Sequence[dict[str, Any]], **extra: Any) -> str:
    """The ``inflight`` text: ``{"e": [open entries], …}``, compact ASCII."""
    return jsontext.encode({"e": entries, **extra})


def load_open(text: str) -> dict[str, Any]:
    """The reverse of :func:`dump_open`; an empty text is an actor that has never run."""
    data = jsontext.decode(text) if text else {}
    if not isinstance(data, dict):
        raise ValueError("inflight is not a JSON object")
    data.setdefault("e", [])
    return data
