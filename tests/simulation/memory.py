"""The store in dictionaries: the verbs that workers and clients use, by the rules of the SQL ones and with nothing
underneath. Used where a fleet of workers is driven in one thread.

``test_contract.py`` holds it to the tests of the SQL stores. Control operations are the product's own, which are pure
but for the edit of a run; here that edit is made to a :class:`Row`.
"""

from __future__ import annotations

import copy
import itertools
import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any
from uuid import UUID

from rivet_workflows.exceptions import ActorBusy, ActorNotFound
from rivet_workflows.records import Blocked, Entry, Lifecycle, MessageRow, Outgoing, TimerKind
from rivet_workflows.store.children import Ending
from rivet_workflows.store.control import Change, ControlVerbs
from rivet_workflows.store.errors import WorkerForgotten
from rivet_workflows.store.rows import ActorRow, Edit, EventRow, RunRow, SentRow

_OVER = (Lifecycle.COMPLETED, Lifecycle.FAILED, Lifecycle.CANCELLED)


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
    inflight: str = ""
    blocked: Blocked = Blocked.NO
    blocked_code: str = ""
    lifecycle: Lifecycle = Lifecycle.LIVE
    finished_at: int | None = None
    output: str | None = None
    error: str | None = None
    state: str | None = "null"
    state_version: int = 1
    history: dict[int, Entry] = field(default_factory=dict)
    messages: dict[int, MessageRow] = field(default_factory=dict)
    #: From when a message is there, if that is not at once; and who holds it.
    visible: dict[int, int] = field(default_factory=dict)
    holders: dict[int, int] = field(default_factory=dict)
    events: list[EventRow] = field(default_factory=list)
    #: Hashes of dedupe keys, with message id and end.
    keys: dict[str, tuple[int, int]] = field(default_factory=dict)
    #: Parents that wait for its end.
    waiters: set[UUID] = field(default_factory=set)
    destroyed: bool = False
    #: Somebody's transaction has its rows.
    locked: bool = False


@dataclass
class Timer:
    id: int
    actor_id: UUID
    due: int
    kind: TimerKind


class MemoryRows:
    """The tables, and the verbs of clients."""

    vendor = alias = "memory"
    # The rules of these are the product's; they end in ``edit_run``.
    cancel, pause, resume = ControlVerbs.cancel, ControlVerbs.pause, ControlVerbs.resume
    recover, replay_from = ControlVerbs.recover, ControlVerbs.replay_from

    def __init__(self, now: Callable[[], int]) -> None:
        self.clock = SimpleNamespace(now=now)
        self.now = now
        self.rows: dict[UUID, Row] = {}
        self.live: dict[tuple[str, str], UUID] = {}
        self.timers: list[Timer] = []
        self.replies: dict[int, tuple[str, str | None]] = {}
        self.workers: dict[int, int] = {}
        self.codes: dict[int, Mapping[str, str]] = {}
        self._numbers = itertools.count(1)

    def atomic(self) -> AbstractContextManager[Any]:
        """There is one thread, and nothing is undone."""
        return nullcontext()

    # -- actors

    def create(
        self, actor_id: UUID, name: str, *, key: str = '["k"]', input: str | None = None, state: str = "null"
    ) -> Row:
        """An actor whose id is given."""
        row = self.rows[actor_id] = Row(actor_id, name, key, self.now(), input, state=state)
        self.live[name, key] = actor_id
        self.wake_row(actor_id)
        return row

    def create_actor(
        self,
        name: str,
        key: str,
        *,
        input: str | None = None,
        state: str | None = None,
        runs: bool = True,
        actor_id: UUID | None = None,
    ) -> tuple[ActorRow, bool]:
        found = self.find(name, key)
        if found is not None:
            return found, False
        # By birth, as the product's ids are, so that groups come in one order.
        actor_id = actor_id or uuid.UUID(int=next(self._numbers))
        self.rows[actor_id] = Row(actor_id, name, key, self.now(), input, state=state)
        self.live[name, key] = actor_id
        if runs:
            self.wake_row(actor_id)
        else:
            self.rows[actor_id].blocked = Blocked.OVER
        return self._cold(self.rows[actor_id]), True

    def find(self, name: str, key: str) -> ActorRow | None:
        actor_id = self.live.get((name, key))
        return None if actor_id is None else self._cold(self.rows[actor_id])

    def get(self, actor_id: UUID) -> ActorRow | None:
        row = self.rows.get(actor_id)
        return None if row is None or row.destroyed else self._cold(row)

    def position(self, actor_id: UUID) -> RunRow | None:
        row = self.rows.get(actor_id)
        return None if row is None or row.destroyed else self._run(row)

    def history(self, actor_id: UUID, after_seq: int = 0, limit: int | None = None) -> list[Entry]:
        entries = sorted(self.rows[actor_id].history.values(), key=lambda entry: entry.seq)
        return [copy.copy(entry) for entry in entries if entry.seq > after_seq][:limit]

    def events(self, actor_id: UUID, after: int = 0, limit: int = 100) -> list[EventRow]:
        return [event for event in self.rows[actor_id].events if event.seq > after][:limit]

    def messages(self, actor_id: UUID, limit: int = 100) -> list[MessageRow]:
        return sorted(self.rows[actor_id].messages.values(), key=lambda m: (m.queue, m.id))[:limit]

    def queue_size(self, actor_id: UUID) -> int:
        return len(self.rows[actor_id].messages)

    def reply(self, message_id: int) -> tuple[str, str | None] | None:
        return self.replies.get(message_id)

    def _cold(self, row: Row) -> ActorRow:
        return ActorRow(
            row.id,
            row.name,
            row.key,
            row.lifecycle,
            row.created_at,
            row.finished_at,
            row.input,
            row.output,
            row.error,
        )

    def _run(self, row: Row) -> RunRow:
        wakes = [timer.due for timer in self.timers if timer.actor_id == row.id]
        return RunRow(
            row.id,
            row.owner,
            row.epoch,
            row.commit_no,
            row.next_seq,
            len(row.events),
            row.inflight,
            row.blocked,
            row.blocked_code,
            "",
            1,
            row.name,
            row.lifecycle,
            min(wakes, default=None),
        )

    # -- sends, state, events

    def put(self, actor_id: UUID, queue: str, body: str, **more: Any) -> int:
        """Send one message."""
        return self.send([Outgoing(actor_id, queue, body, **more)])[0].id

    def send(self, messages: Sequence[Outgoing]) -> list[SentRow]:
        return [self._send_once(message) for message in messages]

    def _send_once(self, message: Outgoing) -> SentRow:
        row = self.rows.get(message.actor_id)
        if row is None or row.destroyed:
            raise ActorNotFound(f"there is no actor {message.actor_id}")
        known = row.keys.get(message.dedupe_hash or "")
        if known is not None and known[1] > self.now():
            return SentRow(known[0], duplicate=True)
        number = next(self._numbers)
        row.messages[number] = MessageRow(
            number, message.queue, message.body, self.now(), message.wants_reply
        )
        if message.dedupe_hash is not None:
            row.keys[message.dedupe_hash] = number, message.dedupe_until or 0
        if message.visible_at is not None:
            row.visible[number] = message.visible_at
        self.wake_row(row.id, message.visible_at)
        return SentRow(number)

    def wake_row(self, actor_id: UUID, due: int | None = None, kind: TimerKind = TimerKind.WAKE) -> None:
        """Insert a wake."""
        self.timers.append(Timer(next(self._numbers), actor_id, self.now() if due is None else due, kind))

    def load_state(self, actor_id: UUID) -> tuple[int, str | None]:
        row = self.rows[actor_id]
        return row.state_version, row.state

    lock_state = load_state

    def save_state(self, actor_id: UUID, version: int, body: str | None) -> bool:
        row = self.rows[actor_id]
        if row.state_version != version:
            return False
        row.state, row.state_version = body, version + 1
        return True

    def add_events(self, actor_id: UUID, events: Sequence[tuple[str, str]]) -> int:
        row = self.rows[actor_id]
        first = len(row.events) + 1
        row.events += [
            EventRow(first + n, name, payload, self.now()) for n, (name, payload) in enumerate(events)
        ]
        return first

    # -- control

    def edit_run(self, actor_id: UUID, change: Change, timeout: float = 0.0) -> bool:
        row = self.rows.get(actor_id)
        if row is None or row.destroyed:
            raise ActorNotFound(f"the actor {actor_id} was destroyed")
        if row.locked:
            raise ActorBusy(f"the actor {actor_id} was locked")
        edit = change(self._run(row))
        if edit is not None:
            self._apply(row, edit)
        return edit is not None

    def destroy(self, actor_id: UUID) -> bool:
        row = self.rows[actor_id]
        ended = row.lifecycle in _OVER
        done = self.edit_run(
            actor_id,
            lambda run: Edit(
                blocked=Blocked.OVER, lifecycle=run.lifecycle if ended else Lifecycle.CANCELLED, wake=False
            ),
        )
        self.forget_key(row)
        return done

    def wake(self, actor_id: UUID) -> bool:
        row = self.rows[actor_id]
        if row.blocked is Blocked.NO:
            self.wake_row(actor_id, kind=TimerKind.CONTROL)
            return True
        return self.edit_run(
            actor_id,
            lambda run: (
                Edit(blocked=Blocked.NO, lifecycle=Lifecycle.LIVE, clear_result=True)
                if run.blocked is Blocked.DIVERGED
                else None
            ),
        )

    def wake_diverged(self, types: Mapping[str, str]) -> int:
        due = {timer.actor_id for timer in self.timers if timer.due <= self.now()}
        found = [
            row
            for row in self.rows.values()
            if row.blocked is Blocked.DIVERGED
            and row.name in types
            and row.blocked_code != types[row.name]
            and row.id not in due
        ]
        for row in found:
            self.wake_row(row.id, kind=TimerKind.CONTROL)
        return len(found)

    def forget_key(self, row: Row) -> None:
        """It is destroyed: its key is free, its id unknown."""
        row.destroyed = True
        self.live.pop((row.name, row.key), None)

    def _apply(self, row: Row, edit: Edit) -> None:
        row.epoch, row.owner = row.epoch + 1, None
        if edit.inflight is not None:
            row.inflight = edit.inflight
        if edit.next_seq is not None:
            row.next_seq = edit.next_seq
        if edit.blocked is not None:
            row.blocked, row.blocked_code = edit.blocked, ""
        for message in edit.give_back:
            row.messages.setdefault(message.id, message)
        held, unholds = edit.unhold_from, set(edit.unholds)
        row.holders = {
            message: seq
            for message, seq in row.holders.items()
            if message not in unholds and (held is None or seq < held)
        }
        gone = {*edit.delete_seqs}
        row.history = {
            seq: entry
            for seq, entry in row.history.items()
            if seq not in gone
            and (edit.delete_from is None or seq < edit.delete_from)
            and not any(prune.covers(entry) for prune in edit.delete_scopes)
        } | {entry.seq: entry for entry in edit.rows}
        if edit.lifecycle is not None:
            row.lifecycle = edit.lifecycle
        if edit.clear_result:
            row.output = row.error = row.finished_at = None
        if edit.finished_at is not None:
            row.finished_at = edit.finished_at
        row.error = edit.error if edit.error is not None else row.error
        if edit.blocked is Blocked.OVER:
            self.wake_waiters(row)
        if edit.wake:
            self.wake_row(row.id, kind=TimerKind.CONTROL)

    # -- children

    def watch(self, parent_id: UUID, child_id: UUID) -> Ending | None:
        child = self.rows.get(child_id)
        if child is None:
            return Ending(Lifecycle.CANCELLED, gone=True)
        ended = self.endings([child_id]).get(child_id)
        if ended is None:
            child.waiters.add(parent_id)
        return ended

    def endings(self, child_ids: Sequence[UUID]) -> dict[UUID, Ending]:
        found = {}
        for child_id in child_ids:
            row = self.rows.get(child_id)
            if row is None:
                found[child_id] = Ending(Lifecycle.CANCELLED, gone=True)
            elif row.lifecycle in _OVER:
                found[child_id] = Ending(row.lifecycle, row.output, row.error, gone=row.destroyed)
        return found

    def read_ends(self, parent_id: UUID, child_ids: Sequence[UUID]) -> dict[UUID, Ending]:
        for child_id in child_ids:
            self.watch(parent_id, child_id)
        return self.endings(child_ids)

    def wake_waiters(self, row: Row) -> None:
        """Its end is written."""
        for parent_id in sorted(row.waiters):
            self.wake_row(parent_id)
        row.waiters.clear()

    # -- workers' rows, and what is no longer kept

    def register_worker(self, host: str = "", pid: int = 0, codes: Mapping[str, str] | None = None) -> int:
        number = next(self._numbers)
        self.workers[number], self.codes[number] = self.now(), codes or {}
        return number

    def heartbeat(self, worker_id: int) -> int:
        if worker_id not in self.workers:
            raise WorkerForgotten(f"worker {worker_id} was taken for dead")
        self.workers[worker_id] = self.now()
        return self.now()

    def drain(self, worker_id: int) -> None:
        self.codes.pop(worker_id, None)

    def live_codes(self) -> dict[str, set[str]]:
        pairs = [pair for codes in self.codes.values() for pair in codes.items()]
        return {name: {code for other, code in pairs if other == name} for name, _ in pairs}

    def held(self, worker_id: int) -> dict[UUID, int]:
        return {row.id: row.epoch for row in self.rows.values() if row.owner == worker_id}

    def dead_workers(self, lease: int) -> list[int]:
        late = {w for w, beat in self.workers.items() if beat < self.now() - lease}
        owners = {row.owner for row in self.rows.values() if row.owner is not None}
        return sorted(late | (owners - self.workers.keys()))

    def forget_worker(self, worker_id: int, batch: int = 0) -> bool:
        for row in self.rows.values():
            if row.owner == worker_id and not row.locked:
                row.owner, row.epoch = None, row.epoch + 1
                self.wake_row(row.id)
        if any(row.owner == worker_id for row in self.rows.values()):
            return False
        self.workers.pop(worker_id, None)
        self.drain(worker_id)
        return True

    def prune(self, now: int | None = None, *, retention: int) -> int:
        """History, messages and events of what ended ``retention`` microseconds ago, or was destroyed."""
        before, done = (self.now() if now is None else now) - retention, 0
        for row in self.rows.values():
            if row.destroyed:
                self.timers = [timer for timer in self.timers if timer.actor_id != row.id]
            if row.destroyed or (row.finished_at is not None and row.finished_at <= before):
                done += len(row.history) + len(row.messages) + len(row.events)
                row.history, row.messages, row.events = {}, {}, []
        return done
