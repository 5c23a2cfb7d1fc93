"""The writes of a group whose items have all been found good: one ``executemany`` per kind."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from rivet_workflows.records import Blocked, CommitItem, Lifecycle, Outgoing, TimerKind
from rivet_workflows.store.base import chunks, marks, to_uuid
from rivet_workflows.store.children import ChildVerbs
from rivet_workflows.store.deduping import KeyVerbs
from rivet_workflows.store.grouping import REPLY_KEPT, Group
from rivet_workflows.store.portable.base import PortableBase
from rivet_workflows.store.rows import ENTRY_COLUMNS, ReplyStatus, entry_values, lifecycle_of_block
from rivet_workflows.store.schedules import ScheduleVerbs

_RUN = "UPDATE rivet_run SET commit_no = commit_no + 1, next_seq = %s, inflight = %s WHERE actor_id = %s"
_END = "UPDATE rivet_run SET owner_id = NULL, blocked = %s, blocked_code = %s WHERE actor_id = %s"
_ROW = (
    f"INSERT INTO rivet_history (actor_id, {', '.join(ENTRY_COLUMNS)})"
    f" VALUES (%s, {', '.join(['%s'] * len(ENTRY_COLUMNS))})"
)
_PRUNE = "DELETE FROM rivet_history WHERE actor_id = %s AND scope >= %s AND scope < %s"
_MESSAGE = (
    "INSERT INTO rivet_message (actor_id, queue, body, sent_at, visible_at, wants_reply)"
    " VALUES (%s, %s, %s, %s, %s, %s)"
)
_WAKE = "INSERT INTO rivet_timer (type_id, actor_id, kind, due, priority) VALUES (%s, %s, %s, %s, 0)"
_REPLY = (
    "INSERT INTO rivet_reply (message_id, actor_id, status, body, expires_at) VALUES (%s, %s, %s, %s, %s)"
)


class PortableWrites(ChildVerbs, KeyVerbs, ScheduleVerbs, PortableBase):
    """Writing a :class:`Group`."""

    def _write(self, g: Group) -> None:
        ids = [self.uid(item.actor_id) for item in g.items]
        self.execute_many(
            _RUN, [(item.next_seq, item.inflight, i) for item, i in zip(g.items, ids, strict=True)]
        )
        self.execute_many(_ROW, [(ids[k - 1], *entry_values(row)) for k, row in g.rows])
        self.execute_many(
            "UPDATE rivet_history SET rolled_back_at = %s WHERE actor_id = %s AND seq = %s",
            [(at, ids[k - 1], seq) for k, seq, at in g.rolled_back],
        )
        for k, prune in g.prunes:
            keep = " AND (rollback IS NULL OR rolled_back_at IS NOT NULL)" if prune.keep_handlers else ""
            self.execute(_PRUNE + keep, [ids[k - 1], prune.first, prune.end])
        if g.deletions or g.unanswered or g.holds:
            self._write_messages(g, ids)
        if g.sends:
            self._write_sends([s for _, s in g.sends])
        if g.events:
            self._write_events(g, ids)
        self.execute_many(
            "UPDATE rivet_state SET version = version + 1, body = %s WHERE actor_id = %s",
            [(i.state.body, uid) for i, uid in zip(g.items, ids, strict=True) if i.state is not None],
        )
        if g.ends:
            self._write_ends(g, ids)
        self.set_schedules_of([item for item in g.items if item.schedules])

    def _write_messages(self, g: Group, ids: list[Any]) -> None:
        asked = [d.message_id for d in g.deletions if d.replies] + [m for _, m in g.unanswered]
        wants: dict[int, bool] = {}
        for some in chunks(asked):
            wants |= dict(
                self.query(
                    f"SELECT id, wants_reply FROM rivet_message WHERE id IN ({marks(some)})", list(some)
                )
            )
        expires = self.clock.now() + REPLY_KEPT
        replies: dict[int, tuple[Any, ...]] = {
            m: (m, ids[k - 1], int(ReplyStatus.FAILED), None, expires)
            for k, m in g.unanswered
            if wants.get(m, True)
        }
        completed = [d for d in g.deletions if d.replies and wants.get(d.message_id)]
        answered = {m for some in chunks(list(replies)) for m in self._answered(some)}
        rows = [row for m, row in replies.items() if m not in answered]
        for some in chunks([d.message_id for d in completed]):
            self.execute(f"DELETE FROM rivet_reply WHERE message_id IN ({marks(some)})", list(some))
        rows += [
            (d.message_id, ids[d.k - 1], int(ReplyStatus.COMPLETED), d.reply, expires) for d in completed
        ]
        self.execute_many(_REPLY, rows)
        self.execute_many(
            "DELETE FROM rivet_message WHERE id = %s AND actor_id = %s",
            [(d.message_id, ids[d.k - 1]) for d in g.deletions],
        )
        self.execute_many(
            "UPDATE rivet_message SET holder_seq = %s WHERE id = %s AND actor_id = %s",
            [(holder, m, ids[k - 1]) for k, m, holder in g.holds],
        )

    def _answered(self, message_ids: Any) -> list[int]:
        rows = self.query(
            f"SELECT message_id FROM rivet_reply WHERE message_id IN ({marks(message_ids)})",
            list(message_ids),
        )
        return [row[0] for row in rows]

    def _write_sends(self, sends: list[Outgoing]) -> None:
        """Messages to actors that are gone meanwhile are dropped."""
        now = self.clock.now()
        types = self._live_types(sorted({s.actor_id for s in sends}))
        sends = [s for s in sends if s.actor_id in types]
        if all(s.dedupe_hash is None for s in sends):
            self.execute_many(_MESSAGE, [self._message(s, now) for s in sends])
        else:
            sends = [s for s in sends if self._send_in_order(s, now)]
        self.execute_many(
            _WAKE,
            [
                (types[s.actor_id], message[0], int(TimerKind.WAKE), message[4])
                for s in sends
                for message in (self._message(s, now),)
            ],
        )

    def _send_in_order(self, s: Outgoing, now: int) -> bool:
        """One message of a group with dedupe keys in it. False: its key was sent before."""
        if s.dedupe_hash is not None and not self.claim_key(s):
            return False
        with self.connection.cursor() as cursor:
            cursor.execute(_MESSAGE, self._message(s, now))
            message_id = cursor.lastrowid
        if s.dedupe_hash is not None:
            self.execute(
                "UPDATE rivet_dedupe SET message_id = %s WHERE actor_id = %s AND key_hash = %s",
                [message_id, self.uid(s.actor_id), s.dedupe_hash],
            )
        return True

    def _message(self, s: Outgoing, now: int) -> tuple[Any, ...]:
        visible = now if s.visible_at is None else s.visible_at
        return self.uid(s.actor_id), s.queue, s.body, now, visible, s.wants_reply

    def _live_types(self, actor_ids: list[UUID]) -> dict[UUID, int]:
        found: dict[UUID, int] = {}
        for some in chunks(actor_ids):
            rows = self.query(
                "SELECT r.actor_id, r.type_id FROM rivet_run r JOIN rivet_actor a ON a.id = r.actor_id"
                f" WHERE r.actor_id IN ({marks(some)}) AND a.live_hash IS NOT NULL",
                self.uids(some),
            )
            found |= {to_uuid(row[0]): row[1] for row in rows}
        return found

    def _write_events(self, g: Group, ids: list[Any]) -> None:
        now = self.clock.now()
        talkers = [(item, i) for item, i in zip(g.items, ids, strict=True) if item.events]
        self.execute_many(
            "UPDATE rivet_run SET event_seq = event_seq + %s WHERE actor_id = %s",
            [(len(item.events), i) for item, i in talkers],
        )
        last = self.by_actor(
            "SELECT actor_id, event_seq FROM rivet_run WHERE actor_id", [item.actor_id for item, _ in talkers]
        )
        self.execute_many(
            "INSERT INTO rivet_event (actor_id, seq, name, payload, created_at) VALUES (%s, %s, %s, %s, %s)",
            [
                (ids[k - 1], last[item.actor_id][0] - len(item.events) + n, name, payload, now)
                for k, n, name, payload in g.events
                for item in (g.items[k - 1],)
            ],
        )

    def _write_ends(self, g: Group, ids: list[Any]) -> None:
        runs = [(int(Blocked.OVER), "", ids[k - 1]) for k in g.finishes + g.destroys]
        for k in g.blocks:
            block = g.items[k - 1].block
            assert block is not None
            runs.append((int(block[0]), block[1], ids[k - 1]))
        self.execute_many(_END, runs)
        for k in g.finishes + g.destroys + g.blocks:
            self._write_end(g.items[k - 1], ids[k - 1])
        over = [g.items[k - 1].actor_id for k in g.finishes + g.destroys]
        for some in chunks(over):
            if self.query(
                f"SELECT 1 FROM rivet_waiter WHERE child_id IN ({marks(some)}) LIMIT 1", self.uids(some)
            ):
                self.wake_waiters(some)

    def _write_end(self, item: CommitItem, uid: Any) -> None:
        changes: dict[str, Any] = {}
        if item.finish is not None:
            at = item.finish.at
            changes |= {"lifecycle": int(item.finish.lifecycle), "finished_at": at, "unpruned_since": at}
            changes |= {"output": item.finish.output, "error": item.finish.error}
        if item.destroy:
            changes.setdefault("lifecycle", int(Lifecycle.CANCELLED))
            now = self.clock.now()
            changes.setdefault("unpruned_since", now)
            changes |= {"live_hash": None, "destroyed_at": now}
        elif item.finish is None and item.block is not None:
            lifecycle = lifecycle_of_block(item.block[0])
            if lifecycle is not None:
                changes["lifecycle"] = lifecycle
            if item.block_error is not None:
                changes["error"] = item.block_error
        if changes:
            sets = ", ".join(f"{column} = %s" for column in changes)
            self.execute(f"UPDATE rivet_actor SET {sets} WHERE id = %s", [*changes.values(), uid])
