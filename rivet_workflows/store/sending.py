"""Sends from a caller's transaction: a message and a wake, and no touch of the receiver's rows.

Visible, and waking the receiver, when that transaction commits; gone when it does not. Outside a transaction a send is
one statement on PostgreSQL, which also rings.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any

from rivet_workflows.exceptions import ActorNotFound, QueueFull
from rivet_workflows.models import Dedupe
from rivet_workflows.records import Outgoing, TimerKind
from rivet_workflows.store import bells
from rivet_workflows.store.base import StoreBase
from rivet_workflows.store.deduping import KeyVerbs
from rivet_workflows.store.rows import SentRow

#: The receiver must be alive in the very statement that inserts, and below its limit, if it has one.
_LIVE = (
    " WHERE r.actor_id = %s AND (SELECT a.live_hash FROM rivet_actor a WHERE a.id = r.actor_id) IS NOT NULL"
)
_ROOM = " AND (SELECT count(*) FROM (SELECT 1 FROM rivet_message y WHERE y.actor_id = %s LIMIT %s) y) < %s"
_ROOM_FOR = _ROOM.replace(") < %s", ") + %s <= %s")
#: Many to one receiver: the identities go up in the order of the messages, and a wake for each time is enough.
_SEND_ALL_POSTGRES = (
    "WITH n AS MATERIALIZED (SELECT {now} AS at), r AS MATERIALIZED (SELECT r.actor_id, r.type_id"
    " FROM rivet_run r{live}), m AS (INSERT INTO rivet_message"
    " (actor_id, queue, body, sent_at, visible_at, wants_reply)"
    " SELECT r.actor_id, w.queue, w.body, n.at, coalesce(w.visible, n.at), w.wants FROM n, r,"
    " unnest(%s::text[], %s::text[], %s::bigint[], %s::bool[]) WITH ORDINALITY w(queue, body, visible, wants, k)"
    " ORDER BY w.k RETURNING visible_at),"
    " t AS (INSERT INTO rivet_timer (type_id, actor_id, kind, due, priority)"
    " SELECT r.type_id, r.actor_id, %s, d.at, 0 FROM r, (SELECT DISTINCT visible_at AS at FROM m) d)"
    " SELECT count(*) FROM m"
)
_INSERT = (
    "INSERT INTO rivet_message (actor_id, queue, body, sent_at, visible_at, wants_reply)"
    " VALUES (%s, %s, %s, %s, %s, %s)"
)
_SEND_POSTGRES = (
    "WITH n AS MATERIALIZED (SELECT {now} AS at), r AS MATERIALIZED (SELECT r.actor_id, r.type_id, r.owner_id"
    " FROM rivet_run r{live}), m AS (INSERT INTO rivet_message"
    " (actor_id, queue, body, sent_at, visible_at, wants_reply)"
    " SELECT r.actor_id, %s, %s, n.at, coalesce(%s::bigint, n.at), %s FROM n, r RETURNING id, visible_at),"
    " t AS (INSERT INTO rivet_timer (type_id, actor_id, kind, due, priority)"
    " SELECT r.type_id, r.actor_id, %s, m.visible_at, 0 FROM r, m) SELECT m.id{bell} FROM m, r"
)
_SEND = (
    "INSERT INTO rivet_message (actor_id, queue, body, sent_at, visible_at, wants_reply)"
    " SELECT r.actor_id, %s, %s, %s, %s, %s FROM rivet_run r{live}"
)
_WAKE = (
    "INSERT INTO rivet_timer (type_id, actor_id, kind, due, priority)"
    " SELECT r.type_id, r.actor_id, %s, %s, 0 FROM rivet_run r WHERE r.actor_id = %s"
)


class SendVerbs(KeyVerbs, StoreBase):
    """The verbs ``send`` and ``send_all``."""

    def send(self, messages: Sequence[Outgoing]) -> list[SentRow]:
        """Queue messages, in order, and ring for their receivers. All or, raising ``ActorNotFound`` or ``QueueFull``,
        none."""
        with self.atomic() if len(messages) > 1 else nullcontext():
            return [
                self._send_once(message) if message.dedupe_hash is not None else SentRow(self._send(message))
                for message in messages
            ]

    def send_all(self, messages: Sequence[Outgoing]) -> None:
        """As :meth:`send` for one receiver, in one statement however many they are; their ids are not told."""
        first = messages[0]
        if len(messages) == 1 or any(
            m.dedupe_hash is not None or m.actor_id != first.actor_id for m in messages
        ):
            self.send(messages)
            return
        receiver = self.uid(first.actor_id)
        live, condition = _LIVE, [receiver]
        if first.max_queue_size is not None:
            live += _ROOM_FOR
            condition += [receiver, first.max_queue_size, len(messages), first.max_queue_size]
        if self.vendor == "postgresql":
            sent = self._send_all_postgres(messages, live, condition)
        else:
            sent = self._send_all_portably(messages, live, condition)
        if not sent:
            raise self._refusal(first)
        bells.ring(self.alias, work=[first.actor_id])

    def _send_all_postgres(self, messages: Sequence[Outgoing], live: str, condition: list[Any]) -> bool:
        columns = [
            [m.queue for m in messages],
            [m.body for m in messages],
            [m.visible_at for m in messages],
            [m.wants_reply for m in messages],
        ]
        sql = _SEND_ALL_POSTGRES.format(now=self.clock.sql, live=live)
        return bool(self.query(sql, [*condition, *columns, int(TimerKind.WAKE)])[0][0])

    def _send_all_portably(self, messages: Sequence[Outgoing], live: str, condition: list[Any]) -> bool:
        now = self.clock.now()
        receiver = condition[0]
        with self.atomic():
            found = self.query(f"SELECT r.type_id FROM rivet_run r{live}", condition)
            if not found:
                return False
            seen = [(m, now if m.visible_at is None else m.visible_at) for m in messages]
            self.execute_many(
                _INSERT, [(receiver, m.queue, m.body, now, visible, m.wants_reply) for m, visible in seen]
            )
            times = sorted({visible for _, visible in seen})
            self.execute_many(
                "INSERT INTO rivet_timer (type_id, actor_id, kind, due, priority) VALUES (%s, %s, %s, %s, 0)",
                [(found[0][0], receiver, int(TimerKind.WAKE), at) for at in times],
            )
        return True

    def _send_once(self, message: Outgoing) -> SentRow:
        with self.atomic():
            if not self.claim_key(message):
                return SentRow(self.sent_under(message.actor_id, message.dedupe_hash), duplicate=True)
            message_id = self._send(message)
            Dedupe.objects.using(self.alias).filter(
                actor_id=message.actor_id, key_hash=message.dedupe_hash
            ).update(message_id=message_id)
            return SentRow(message_id)

    def _send(self, message: Outgoing) -> int:
        receiver = self.uid(message.actor_id)
        live, condition = _LIVE, [receiver]
        if message.max_queue_size is not None:
            live += _ROOM
            condition += [receiver, message.max_queue_size, message.max_queue_size]
        rings = bells.in_statement(self.connection)
        if self.vendor == "postgresql":
            rows = self.query_often(
                _SEND_POSTGRES.format(
                    now=self.clock.sql, live=live, bell=f", {bells.TO_HOLDER}" if rings else ""
                ),
                [
                    *condition, message.queue, message.body, message.visible_at, message.wants_reply,
                    int(TimerKind.WAKE),
                ],
            )  # fmt: skip
            message_id = rows[0][0] if rows else None
        else:
            message_id = self._send_portably(message, live, condition)
        if message_id is None:
            raise self._refusal(message)
        if not rings:
            bells.ring(self.alias, work=[message.actor_id])
        return int(message_id)

    def _send_portably(self, message: Outgoing, live: str, condition: list[Any]) -> int | None:
        now = self.clock.now()
        visible = now if message.visible_at is None else message.visible_at
        values = [message.queue, message.body, now, visible, message.wants_reply, *condition]
        with self.atomic(), self.connection.cursor() as cursor:
            cursor.execute(_SEND.format(live=live), values)
            if cursor.rowcount != 1:
                return None
            message_id = int(cursor.lastrowid)
            cursor.execute(_WAKE, [int(TimerKind.WAKE), visible, self.uid(message.actor_id)])
        return message_id

    def _refusal(self, message: Outgoing) -> Exception:
        live = self.query(
            "SELECT 1 FROM rivet_actor a WHERE a.id = %s AND a.live_hash IS NOT NULL",
            [self.uid(message.actor_id)],
        )
        if not live:
            return ActorNotFound(f"there is no actor {message.actor_id}, or it was destroyed")
        return QueueFull(
            f"the actor holds {message.max_queue_size} messages already", metadata={"queue": message.queue}
        )
