"""The store in dictionaries: the verbs that a worker uses, with the rules of the SQL ones and nothing underneath.

Used where a fleet of workers is driven in one thread. It can be told to fail, to answer "unknown", or to find a row
locked, at any call. Its rules are held to the SQL stores' by one contract suite.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from uuid import UUID

from rivet_workflows.records import (
    Blocked,
    Claimed,
    Commit,
    CommitItem,
    CommitResult,
    Entry,
    Lifecycle,
    Look,
    Looked,
    MessageRow,
    Release,
)


@dataclass
class Row:
    """Everything stored of one actor."""

    id: UUID
    name: str
    key: str
    created_at: int
    input: str | None = None
    owner: int | None = None
    epoch: int = 0
    commit_no: int = 0
    next_seq: int = 1
    event_seq: int = 0
    inflight: str = ""
    blocked: Blocked = Blocked.NO
    blocked_code: str = ""
    lifecycle: Lifecycle = Lifecycle.LIVE
    output: str | None = None
    error: str | None = None
    state: str = "null"
    state_version: int = 0
    history: dict[int, Entry] = field(default_factory=dict)
    messages: dict[int, MessageRow] = field(default_factory=dict)
    holders: dict[int, int] = field(default_factory=dict)
    events: list[tuple[int, str, str]] = field(default_factory=list)
    destroyed: bool = False
    locked: bool = False
    #: (worker, epoch, commit number) of every commit, for the checkers.
    audit: list[tuple[int | None, int, int]] = field(default_factory=list)


@dataclass
class Timer:
    actor_id: UUID
    due: int
    wake: bool


class MemoryStore:
    vendor = "memory"

    def __init__(self, now: Callable[[], int]) -> None:
        self.now = now
        self.rows: dict[UUID, Row] = {}
        self.timers: list[Timer] = []
        self.replies: dict[int, tuple[str, str | None]] = {}
        self.workers: dict[int, int] = {}
        self._next_message = 1
        self._next_worker = 1

    # -- clients -----------------------------------------------------------------------------------

    def create(
        self, actor_id: UUID, name: str, *, key: str = '["k"]', input: str | None = None, state: str = "null"
    ) -> Row:
        row = self.rows[actor_id] = Row(actor_id, name, key, self.now(), input, state=state)
        self._wake(actor_id)
        return row

    def send(
        self, actor_id: UUID, queue: str, body: str, *, wants_reply: bool = False, due: int | None = None
    ) -> int:
        number, self._next_message = self._next_message, self._next_message + 1
        row = self.rows[actor_id]
        row.messages[number] = MessageRow(
            number, queue, body, self.now() if due is None else due, wants_reply
        )
        self._wake(actor_id, due)
        return number

    def _wake(self, actor_id: UUID, due: int | None = None) -> None:
        self.timers.append(Timer(actor_id, self.now() if due is None else due, wake=True))

    def control(self, actor_id: UUID, change: Callable[[Row], None], *, wake: bool = True) -> None:
        """A control operation: write, raise the epoch, clear the owner (D-19)."""
        row = self.rows[actor_id]
        change(row)
        row.epoch += 1
        row.owner = None
        if wake:
            self._wake(actor_id)

    # -- workers -----------------------------------------------------------------------------------

    def register_worker(self) -> int:
        number, self._next_worker = self._next_worker, self._next_worker + 1
        self.workers[number] = self.now()
        return number

    def heartbeat(self, worker_id: int) -> int:
        if worker_id in self.workers:
            self.workers[worker_id] = self.now()
        return self.now()

    def dead_workers(self, lease: int) -> list[int]:
        late = [w for w, beat in self.workers.items() if beat + lease < self.now()]
        orphans = {row.owner for row in self.rows.values() if row.owner is not None} - self.workers.keys()
        return late + sorted(orphans)

    def forget_worker(self, worker_id: int) -> bool:
        if any(row.owner == worker_id for row in self.rows.values()):
            return False
        self.workers.pop(worker_id, None)
        return True

    def claim(self, worker_id: int, types: Mapping[str, str], limit: int) -> tuple[list[Claimed], bool]:
        due = sorted((t for t in self.timers if t.due <= self.now()), key=lambda t: t.due)
        found: list[Claimed] = []
        for timer in due:
            row = self.rows[timer.actor_id]
            if row.locked or row.name not in types or len(found) >= limit:
                continue
            if row.owner is not None:
                continue
            other_code = row.blocked is Blocked.DIVERGED and row.blocked_code != types[row.name]
            if row.destroyed or (row.blocked and not other_code):
                self.timers.remove(timer)
                continue
            row.owner, row.epoch = worker_id, row.epoch + 1
            row.blocked = Blocked.NO
            self.timers = [t for t in self.timers if t.actor_id != row.id or t.due > self.now()]
            found.append(self._claimed(row))
        return found, len(found) >= limit

    def take_over(
        self, worker_id: int, dead_worker_id: int, types: Mapping[str, str], limit: int
    ) -> list[Claimed]:
        found: list[Claimed] = []
        for row in self.rows.values():
            if row.owner == dead_worker_id and row.name in types and len(found) < limit:
                row.owner, row.epoch = worker_id, row.epoch + 1
                found.append(self._claimed(row))
        return found

    def load(self, worker_id: int, held: Sequence[tuple[UUID, int]]) -> list[Claimed]:
        rows = [(self.rows[a], epoch) for a, epoch in held]
        return [self._claimed(row) for row, epoch in rows if row.owner == worker_id and row.epoch == epoch]

    def _claimed(self, row: Row) -> Claimed:
        entries = [copy.copy(entry) for entry in sorted(row.history.values(), key=lambda e: e.seq)]
        return Claimed(
            row.id,
            row.name,
            row.key,
            row.input,
            row.created_at,
            row.epoch,
            row.commit_no,
            row.next_seq,
            row.inflight,
            entries,
        )

    def release(self, releases: Iterable[Release]) -> list[CommitResult]:
        results = []
        for release in releases:
            row = self.rows[release.actor_id]
            if row.locked:
                results.append(CommitResult(row.id, Commit.BUSY))
                continue
            if row.epoch == release.epoch and row.owner is not None:
                row.owner = None
                if release.inflight is not None:
                    row.inflight = release.inflight
                if release.due is not None:
                    self.timers.append(Timer(row.id, release.due, wake=False))
            results.append(CommitResult(row.id, Commit.OK))
        return results

    def look(self, looks: Iterable[Look]) -> list[Looked]:
        answers = []
        for look in looks:
            row = self.rows[look.actor_id]
            if look.epoch in (None, row.epoch):
                self.timers = [
                    t for t in self.timers if not (t.actor_id == row.id and t.wake and t.due <= self.now())
                ]
            found = [
                m
                for m in row.messages.values()
                if m.id not in row.holders
                and m.sent_at <= self.now()
                and (look.names is None or m.queue in look.names)
            ]
            found.sort(key=lambda m: m.id)
            answers.append(
                Looked(row.id, look.names, found[: look.limit], len(found) <= look.limit, self.now())
            )
        return answers

    def due_wakes_of_held(self, worker_id: int) -> list[UUID]:
        due = {t.actor_id for t in self.timers if t.wake and t.due <= self.now()}
        return [a for a in due if self.rows[a].owner == worker_id]

    def next_wake(self) -> int | None:
        free = [t.due for t in self.timers if self.rows[t.actor_id].owner is None]
        return min(free, default=None)

    def rollback_rows(self, actor_id: UUID, checkpoints: Sequence[tuple[int, str]]) -> list[Entry]:
        found = [
            copy.copy(e)
            for e in self.rows[actor_id].history.values()
            if e.rollback
            and e.rolled_back_at is None
            and e.error is None
            and any(e.seq > seq and e.scope.startswith(scope) for seq, scope in checkpoints)
        ]
        return sorted(found, key=lambda e: -(e.done_seq or 0))

    # -- commits -----------------------------------------------------------------------------------

    def commit_group(self, items: Sequence[CommitItem]) -> list[CommitResult]:
        return [self._commit(item) for item in items]

    def resolve(self, items: Sequence[CommitItem]) -> list[CommitResult]:
        results = []
        for item in items:
            row = self.rows[item.actor_id]
            if row.epoch == item.epoch and row.commit_no == item.commit_no:
                results.append(self._commit(item))
            else:
                done = row.epoch == item.epoch and row.commit_no == item.commit_no + 1
                results.append(CommitResult(item.actor_id, Commit.OK if done else Commit.STALE))
        return results

    def _commit(self, item: CommitItem) -> CommitResult:
        row = self.rows[item.actor_id]
        if row.locked:
            return CommitResult(row.id, Commit.BUSY)
        if row.destroyed or row.epoch != item.epoch or row.commit_no != item.commit_no:
            return CommitResult(row.id, Commit.STALE)
        if item.state is not None and item.state.version != row.state_version:
            return CommitResult(row.id, Commit.CONFLICT)
        if any(message not in row.messages for message in item.takes):
            return CommitResult(row.id, Commit.REFUSED, "a message is gone")
        if any(entry.seq in row.history for entry in item.rows):
            return CommitResult(row.id, Commit.REFUSED, "duplicate history row")
        row.audit.append((row.owner, row.epoch, row.commit_no))
        row.commit_no += 1
        row.next_seq, row.inflight = item.next_seq, item.inflight
        self._write(row, item)
        if item.finish is not None:
            row.lifecycle, row.output, row.error = (
                item.finish.lifecycle,
                item.finish.output,
                item.finish.error,
            )
            row.blocked, row.owner = Blocked.OVER, None
        if item.block is not None:
            row.blocked, row.blocked_code = item.block
            row.owner, row.lifecycle = None, Lifecycle.SET_ASIDE
        if item.destroy:
            row.destroyed, row.owner = True, None
        return CommitResult(row.id, Commit.OK)

    def _write(self, row: Row, item: CommitItem) -> None:
        for prune in item.prunes:
            row.history = {seq: entry for seq, entry in row.history.items() if not prune.covers(entry)}
        row.history |= {entry.seq: copy.copy(entry) for entry in item.rows}
        for seq, at in item.rolled_back:
            row.history[seq].rolled_back_at = at
        row.holders |= dict(item.holds)
        for message in item.unholds:
            row.holders.pop(message, None)
        for message in item.takes:
            del row.messages[message]
            row.holders.pop(message, None)
        for message, text in item.completes:
            if row.messages.pop(message, None) is not None:
                row.holders.pop(message, None)
                self.replies[message] = ("completed", text)
        for message in item.unanswered:
            self.replies[message] = ("failed", None)
        for send in item.sends:
            self.send(send.actor_id, send.queue, send.body, wants_reply=send.wants_reply)
        for name, payload in item.events:
            row.event_seq += 1
            row.events.append((row.event_seq, name, payload))
        if item.state is not None:
            row.state, row.state_version = item.state.body, row.state_version + 1
