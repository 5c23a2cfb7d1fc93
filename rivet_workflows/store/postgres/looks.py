"""Reading queues, on PostgreSQL: one statement, so that the wakes deleted and the messages read are of one
snapshot and one "now". A message committed after it left its wake behind, and rings."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from rivet_workflows.crashpoints import crashpoint
from rivet_workflows.records import Look, Looked
from rivet_workflows.store import literals as lit
from rivet_workflows.store.base import Meanwhile
from rivet_workflows.store.merging import QueueRead, merge
from rivet_workflows.store.postgres.base import UNHURRIED, PostgresBase

_READ = (
    "CROSS JOIN LATERAL (SELECT m.id, m.queue, m.body, m.sent_at, m.wants_reply FROM rivet_message m"
    " WHERE m.actor_id = w.id AND m.queue = w.queue AND m.visible_at <= (SELECT at FROM n)"
    " AND m.holder_seq IS NULL ORDER BY m.id + 0 LIMIT w.lim) m"
)

#: Every queue of an actor that holds a message: from one to the next along the index, however long each is.
_QUEUES = (
    "CROSS JOIN LATERAL (WITH RECURSIVE q AS ((SELECT y.queue FROM rivet_message y WHERE y.actor_id = w.id"
    " ORDER BY y.queue LIMIT 1) UNION ALL SELECT (SELECT y.queue FROM rivet_message y WHERE y.actor_id = w.id"
    " AND y.queue > q.queue ORDER BY y.queue LIMIT 1) FROM q WHERE q.queue IS NOT NULL)"
    " SELECT q.queue FROM q WHERE q.queue IS NOT NULL) q"
)


@lru_cache(maxsize=16)
def statement(now: str, named: bool, unnamed: bool) -> str:
    """Rows ``(k, at, message …)``; one with k 0 tells the time even when there is no message."""
    reads = ["SELECT 0, n.at, NULL::bigint, NULL, NULL, NULL::bigint, NULL::bool FROM n"]
    if named:
        reads.append(
            "SELECT w.k, 0, m.* FROM unnest(%s::int[], %s::uuid[], %s::text[], %s::int[])"
            f" w(k, id, queue, lim) {_READ}"
        )
    if unnamed:
        reads.append(
            "SELECT w.k, 0, m.* FROM (SELECT w.*, q.queue FROM unnest(%s::int[], %s::uuid[], %s::int[])"
            f" w(k, id, lim) {_QUEUES}) w {_READ}"
        )
    return (
        f"WITH n AS MATERIALIZED (SELECT {now} AS at, {UNHURRIED}), x AS (DELETE FROM rivet_timer t USING"
        " (SELECT x.tid FROM unnest(%s::uuid[], %s::int[]) w(id, epoch) CROSS JOIN LATERAL"
        " (SELECT y.ctid AS tid FROM rivet_timer y WHERE y.actor_id = w.id AND y.due + 0 <= (SELECT at FROM n)"
        " AND (w.epoch IS NULL OR w.epoch = (SELECT r.epoch FROM rivet_run r WHERE r.actor_id = w.id))"
        f" FOR UPDATE SKIP LOCKED) x) z WHERE t.ctid = z.tid) {' UNION ALL '.join(reads)}"
    )


class PostgresLooks(PostgresBase):
    """The verb ``look``."""

    def look(self, looks: Sequence[Look], *, meanwhile: Meanwhile | None = None) -> list[Looked]:
        """What the queues hold for these actors, and their due wakes deleted, in one snapshot."""
        if not looks:
            return []
        crashpoint("before-look")
        named = [(k, look, name) for k, look in enumerate(looks, 1) for name in look.names or ()]
        unnamed = [(k, look) for k, look in enumerate(looks, 1) if look.names is None]
        actors = sorted({look.actor_id: look.epoch for look in looks}.items())
        values: list[Any] = [
            lit.uuid_array([a for a, _ in actors]),
            lit.optional_array([e for _, e in actors]),
        ]
        if named:
            values += [
                lit.int_array([k for k, _, _ in named]),
                lit.uuid_array([look.actor_id for _, look, _ in named]),
                lit.text_array([name for _, _, name in named]),
                lit.int_array([look.limit for _, look, _ in named]),
            ]
        if unnamed:
            values += [
                lit.int_array([k for k, _ in unnamed]),
                lit.uuid_array([look.actor_id for _, look in unnamed]),
                lit.int_array([look.limit for _, look in unnamed]),
            ]
        with self.guarded():
            rows = self.fast(statement(self.clock.sql, bool(named), bool(unnamed)), values, meanwhile)
        crashpoint("after-look")
        at = 0
        reads: list[QueueRead] = [{} for _ in looks]
        for k, time, *message in rows:
            if k == 0:
                at = time
            else:
                reads[k - 1].setdefault(message[1], []).append(message)
        return [merge(look, read, at) for look, read in zip(looks, reads, strict=True)]
