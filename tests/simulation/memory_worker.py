"""The second half of the store in dictionaries: the verbs with which workers take actors up, commit and look."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from uuid import UUID

from rivet_workflows.records import (
    Blocked,
    Claimed,
    Commit,
    CommitItem,
    CommitResult,
    Entry,
    EntryStatus,
    Lifecycle,
    Look,
    Looked,
    Release,
    TimerKind,
)
from rivet_workflows.store.grouping import Group, group
from rivet_workflows.store.merging import QueueRead, merge
from rivet_workflows.store.rows import lifecycle_of_block

from .memory import MemoryRows, Row


class MemoryStore(MemoryRows):
    """See :mod:`tests.simulation.memory`."""

    # -- taking up and giving back

    def claim(self, worker_id: int, types: Mapping[str, str], limit: int) -> tuple[list[Claimed], bool]:
        wakes = [timer for timer in self.timers if timer.due <= self.now()]
        wakes = [timer for timer in wakes if self._may_claim(timer.actor_id, types)]
        wakes = sorted(wakes, key=lambda timer: (timer.due, timer.id))[:limit]
        found: list[Claimed] = []
        deleted = 0
        for timer in wakes:
            row = self.rows.get(timer.actor_id)
            if row is None or not (row.owner == worker_id or row.locked or self._is_free(row, types)):
                self.timers.remove(timer)
                deleted += 1
            elif row.owner is None and not row.locked:
                found.append(self._take(row, worker_id))
        return found, len(wakes) >= limit and bool(found or deleted)

    def _may_claim(self, actor_id: UUID, types: Mapping[str, str]) -> bool:
        row = self.rows.get(actor_id)
        return row is None or (row.owner is None and row.name in types)

    def _is_free(self, row: Row, types: Mapping[str, str]) -> bool:
        other_code = row.blocked is Blocked.DIVERGED and row.blocked_code != types[row.name]
        return row.blocked is Blocked.NO or other_code

    def _take(self, row: Row, worker_id: int) -> Claimed:
        if row.blocked:
            row.lifecycle, row.error = Lifecycle.LIVE, None
        row.owner, row.epoch, row.blocked, row.blocked_code = worker_id, row.epoch + 1, Blocked.NO, ""
        self.timers = [
            timer
            for timer in self.timers
            if timer.actor_id != row.id or not (timer.due <= self.now() or timer.kind is TimerKind.DEADLINE)
        ]
        return self._claimed(row)

    def take_over(
        self, worker_id: int, dead_worker_id: int, types: Mapping[str, str], limit: int
    ) -> list[Claimed]:
        rows = [row for row in self.rows.values() if row.owner == dead_worker_id and row.name in types]
        return [self._take(row, worker_id) for row in [row for row in rows if not row.locked][:limit]]

    def load(self, worker_id: int, held: Sequence[tuple[UUID, int]]) -> list[Claimed]:
        rows = [(self.rows[a], epoch) for a, epoch in held]
        return [self._claimed(row) for row, epoch in rows if (row.owner, row.epoch) == (worker_id, epoch)]

    def _claimed(self, row: Row) -> Claimed:
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
            self.history(row.id),
        )

    def release(self, releases: Sequence[Release]) -> list[CommitResult]:
        return [CommitResult(release.actor_id, self._release(release)) for release in releases]

    def _release(self, release: Release) -> Commit:
        row = self.rows[release.actor_id]
        if row.epoch != release.epoch:
            return Commit.STALE
        if row.locked:
            return Commit.BUSY
        row.owner, row.epoch = None, row.epoch + 1
        if release.inflight is not None:
            row.inflight = release.inflight
        if release.due is not None:
            self.wake_row(row.id, release.due, TimerKind.DEADLINE)
        return Commit.OK

    def due_wakes_of_held(self, worker_id: int, types: Mapping[str, str] | None = None) -> list[UUID]:
        due = dict.fromkeys(timer.actor_id for timer in self.timers if timer.due <= self.now())
        return [a for a in due if a in self.rows and self.rows[a].owner == worker_id]

    def next_wake(self, types: Mapping[str, str]) -> int | None:
        later = [timer for timer in self.timers if timer.due > self.now() and timer.actor_id in self.rows]
        rows = [(timer.due, self.rows[timer.actor_id]) for timer in later]
        return min((due for due, row in rows if row.name in types and not row.blocked), default=None)

    # -- looking

    def look(self, looks: Sequence[Look]) -> list[Looked]:
        for look in looks:
            row = self.rows[look.actor_id]
            if look.epoch in (None, row.epoch):
                self.timers = [t for t in self.timers if t.actor_id != row.id or t.due > self.now()]
        return [self._look(look) for look in looks]

    def _look(self, look: Look) -> Looked:
        row, read = self.rows[look.actor_id], QueueRead()
        for m in sorted(row.messages.values(), key=lambda m: m.id):
            there = m.id not in row.holders and row.visible.get(m.id, 0) <= self.now()
            if there and (look.names is None or m.queue in look.names):
                lines = read.setdefault(m.queue, [])
                if len(lines) < look.limit:
                    lines.append((m.id, m.queue, m.body, m.sent_at, m.wants_reply))
        return merge(look, read, self.now())

    def rollback_rows(self, actor_id: UUID, checkpoints: Sequence[tuple[int, str]]) -> list[Entry]:
        found = [
            entry
            for entry in self.history(actor_id)
            if entry.rollback
            and entry.rolled_back_at is None
            and entry.status is EntryStatus.COMPLETED
            and any(entry.seq > seq and entry.scope.startswith(scope) for seq, scope in checkpoints)
        ]
        return sorted(found, key=lambda e: -(e.done_seq or 0))

    # -- committing

    def commit_group(self, items: Sequence[CommitItem], *, wait: bool = False) -> list[CommitResult]:
        return [self._commit(item) for item in items]

    def resolve(self, items: Sequence[CommitItem]) -> list[CommitResult]:
        results = []
        for item in items:
            row = self.rows[item.actor_id]
            ahead = row.commit_no - item.commit_no if row.epoch == item.epoch else -1
            outcome = {0: Commit.BUSY, 1: Commit.OK}.get(ahead, Commit.STALE)
            results.append(CommitResult(item.actor_id, outcome))
        return results

    def _commit(self, item: CommitItem) -> CommitResult:
        row, g = self.rows[item.actor_id], group([item])
        outcome, why = self._judge(row, item, g)
        if outcome is Commit.OK:
            row.commit_no += 1
            row.next_seq, row.inflight = item.next_seq, item.inflight
            self._write(row, item, g)
            self._write_end(row, item)
        return CommitResult(row.id, outcome, why)

    def _judge(self, row: Row, item: CommitItem, g: Group) -> tuple[Commit, str]:
        if (row.epoch, row.commit_no) != (item.epoch, item.commit_no):
            return Commit.STALE, ""
        if item.state is not None and item.state.version != row.state_version:
            return Commit.CONFLICT, ""
        if row.locked:
            return Commit.BUSY, ""
        needed = [*item.takes, *(message for message, _ in item.holds)]
        if any(message not in row.messages for message in needed):
            return Commit.REFUSED, "a message to take or to hold is gone"
        seqs = [entry.seq for _, entry in g.rows]
        if len(set(seqs)) < len(seqs) or not row.history.keys().isdisjoint(seqs):
            return Commit.REFUSED, "two history rows of one seq"
        if not item.inflight.isascii():
            return Commit.REFUSED, "the position is not ASCII"
        return Commit.OK, ""

    def _write(self, row: Row, item: CommitItem, g: Group) -> None:
        for _, prune in g.prunes:
            row.history = {seq: entry for seq, entry in row.history.items() if not prune.covers(entry)}
        row.history |= {entry.seq: replace(entry) for _, entry in g.rows}
        for _, seq, at in g.rolled_back:
            if seq in row.history:
                row.history[seq].rolled_back_at = at
        for _, message, holder in g.holds:
            if holder is not None:
                row.holders[message] = holder
            else:
                row.holders.pop(message, None)
        for _, message in g.unanswered:
            there = row.messages.get(message)
            if there is None or there.wants_reply:
                self.replies.setdefault(message, ("failed", None))
        for deletion in g.deletions:
            there = row.messages.pop(deletion.message_id, None)
            row.holders.pop(deletion.message_id, None)
            if there is not None and deletion.replies and there.wants_reply:
                self.replies[deletion.message_id] = ("completed", deletion.reply)
        alive = [send for send in item.sends if send.actor_id in self.rows]
        self.send([send for send in alive if not self.rows[send.actor_id].destroyed])
        if item.events:
            self.add_events(row.id, item.events)
        if item.state is not None:
            row.state, row.state_version = item.state.body, row.state_version + 1

    def _write_end(self, row: Row, item: CommitItem) -> None:
        if item.finish is not None:
            finish = item.finish
            row.lifecycle, row.output, row.error = finish.lifecycle, finish.output, finish.error
            row.finished_at = finish.at
        elif item.destroy:
            row.lifecycle = Lifecycle.CANCELLED
        elif item.block is not None:
            lifecycle = lifecycle_of_block(item.block[0])
            row.lifecycle = row.lifecycle if lifecycle is None else Lifecycle(lifecycle)
            row.error = item.block_error or row.error
            row.blocked, row.blocked_code, row.owner = item.block[0], item.block[1], None
        if item.finish is not None or item.destroy:
            row.blocked, row.owner = Blocked.OVER, None
            self.wake_waiters(row)
        if item.destroy:
            self.forget_key(row)
