"""Taking actors up and giving them back, on PostgreSQL.

A claim is a few statements in one transaction. The candidates are never joined with what is done to them: as a CTE
whose DELETE joined the SELECT it took 17 s for 200 of 3,000 wakes, because such tables are analysed while empty.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from uuid import UUID

from rivet_workflows.crashpoints import crashpoint
from rivet_workflows.records import Claimed, Commit, CommitResult, Lifecycle, Release, TimerKind
from rivet_workflows.store import literals as lit
from rivet_workflows.store.postgres.base import PostgresBase
from rivet_workflows.store.rows import ENTRY_COLUMNS, claimed_from_rows, type_id

#: Wakes that are due, oldest first, per type; without those of actors somebody holds, or of a newer format.
#: An actor without a run row is gone: its wake is met here, and deleted.
CANDIDATES = (
    "SELECT t.id, t.actor_id, t.type_id, t.due FROM unnest(%s::bigint[]) ty(id) CROSS JOIN LATERAL ("
    "SELECT t.id, t.actor_id, t.type_id, t.due FROM rivet_timer t WHERE t.type_id = ty.id AND t.due <= {now}"
    " AND (SELECT r.owner_id IS NULL AND r.format <= %s FROM rivet_run r WHERE r.actor_id = t.actor_id) IS NOT FALSE"
    " ORDER BY t.due, t.id LIMIT %s FOR UPDATE SKIP LOCKED) t"
)

#: The cold row of ``w.id``, read along.
_COLD = (
    " LEFT JOIN LATERAL (SELECT y.name, y.key, y.input, y.created_at FROM rivet_actor y WHERE y.id = w.id OFFSET 0) c"
    " ON true"
)

#: Takes the rows, and deletes the wakes of those it got: the due ones, and the deadlines, which the holder now
#: keeps. These are found by the actor alone: ``due + 0`` keeps the index by time out, along which a plan made of an
#: empty table went through them all.
TAKE = (
    "WITH k AS (UPDATE rivet_run r SET owner_id = %s, epoch = r.epoch + 1, blocked = 0, blocked_code = '',"
    " code = x.code, format = %s FROM (SELECT w.code, a.tid, a.blocked, c.* FROM unnest(%s::uuid[], %s::text[])"
    " w(id, code) CROSS JOIN LATERAL (SELECT a.ctid AS tid, a.blocked FROM rivet_run a WHERE a.actor_id = w.id"
    f" AND {{which}} FOR NO KEY UPDATE SKIP LOCKED) a{_COLD}) x WHERE r.ctid = x.tid RETURNING r.actor_id, r.type_id,"
    " r.epoch, r.commit_no, r.next_seq, r.inflight, x.blocked, x.name, x.key, x.input, x.created_at),"
    " d AS (DELETE FROM rivet_timer t USING (SELECT x.tid FROM k CROSS JOIN LATERAL"
    " (SELECT y.ctid AS tid FROM rivet_timer y WHERE y.actor_id = k.actor_id"
    f" AND (y.due + 0 <= {{now}} OR y.kind = {int(TimerKind.DEADLINE)}) FOR UPDATE SKIP LOCKED) x) z"
    " WHERE t.ctid = z.tid) SELECT * FROM k"
)
FREE = "a.owner_id IS NULL AND (a.blocked = 0 OR a.blocked = 3 AND a.blocked_code <> w.code)"

OWNED = (
    "SELECT a.actor_id, a.type_id FROM rivet_run a WHERE a.owner_id = %s AND a.type_id = ANY(%s::bigint[])"
    " AND a.format <= %s AND a.blocked = 0 LIMIT %s FOR NO KEY UPDATE SKIP LOCKED"
)

#: Which of these actors this code cannot take up: gone, or held by nobody and blocked.
IDLE = (
    "SELECT w.id FROM unnest(%s::uuid[], %s::text[]) w(id, code) LEFT JOIN LATERAL"
    " (SELECT * FROM rivet_run a WHERE a.actor_id = w.id OFFSET 0) r ON true WHERE r.owner_id IS NULL"
    " AND (r.actor_id IS NULL OR r.blocked NOT IN (0, 3) OR r.blocked = 3 AND r.blocked_code = w.code)"
)

REVIVE = (
    "UPDATE rivet_actor a SET lifecycle = %s, error = NULL"
    " FROM (SELECT x.tid FROM unnest(%s::uuid[]) w(id) CROSS JOIN LATERAL"
    " (SELECT y.ctid AS tid FROM rivet_actor y WHERE y.id = w.id FOR NO KEY UPDATE) x) z WHERE a.ctid = z.tid"
)

HISTORY = (
    f"SELECT w.id, {', '.join('y.' + c for c in ENTRY_COLUMNS)} FROM unnest(%s::uuid[]) w(id) CROSS JOIN LATERAL"
    " (SELECT * FROM rivet_history h WHERE h.actor_id = w.id ORDER BY h.seq OFFSET 0) y"
)

HELD_AGAIN = (
    "SELECT r.actor_id, r.type_id, r.epoch, r.commit_no, r.next_seq, r.inflight, r.blocked, c.*"
    " FROM unnest(%s::uuid[], %s::int[]) w(id, epoch) CROSS JOIN LATERAL"
    f" (SELECT * FROM rivet_run a WHERE a.actor_id = w.id OFFSET 0) r{_COLD}"
    " WHERE r.owner_id = %s AND r.epoch = w.epoch AND r.blocked = 0"
)

RELEASE = (
    "UPDATE rivet_run r SET owner_id = NULL, epoch = r.epoch + 1, inflight = coalesce(x.fl, r.inflight)"
    " FROM (SELECT w.fl, w.due, a.tid FROM unnest(%s::uuid[], %s::int[], %s::bigint[], %s::text[])"
    " w(id, epoch, due, fl) CROSS JOIN LATERAL (SELECT a.ctid AS tid FROM rivet_run a WHERE a.actor_id = w.id"
    " AND a.epoch = w.epoch FOR NO KEY UPDATE SKIP LOCKED) a) x WHERE r.ctid = x.tid"
    " RETURNING r.actor_id, r.type_id, x.due"
)
RELEASE_ALL = (
    f"WITH f AS ({RELEASE}), t AS (INSERT INTO rivet_timer (type_id, actor_id, kind, due, priority)"
    f" SELECT type_id, actor_id, {int(TimerKind.DEADLINE)}, due, 0 FROM f WHERE due IS NOT NULL)"
    " SELECT actor_id FROM f"
)

DUE_OF_HELD = (
    "SELECT DISTINCT t.actor_id FROM unnest(%s::bigint[]) ty(id) CROSS JOIN LATERAL (SELECT y.actor_id FROM ("
    "SELECT t.actor_id FROM rivet_timer t WHERE t.type_id = ty.id AND t.due <= {now} ORDER BY t.due, t.id LIMIT %s) y"
    " WHERE (SELECT r.owner_id FROM rivet_run r WHERE r.actor_id = y.actor_id) = %s) t"
)

EPOCHS = (
    "SELECT w.id, r.epoch FROM unnest(%s::uuid[]) w(id) CROSS JOIN LATERAL"
    " (SELECT a.epoch FROM rivet_run a WHERE a.actor_id = w.id OFFSET 0) r"
)


class PostgresClaims(PostgresBase):
    """The verbs ``claim``, ``take_over``, ``load``, ``release`` and ``due_wakes_of_held``."""

    def claim(self, worker_id: int, types: dict[str, str], limit: int) -> tuple[list[Claimed], bool]:
        """Take up to ``limit`` actors of ``types`` (name to the hash of this worker's code) that are due and
        free.

        The second value says to go on: the wakes met filled the limit and some of them went away. The worker
        looks at the messages of each claimed actor, as the wakes that announced them are deleted here.
        """
        crashpoint("before-claim")
        codes = {type_id(name): code for name, code in types.items()}
        share = limit if len(codes) <= 8 else max(20, 8 * limit // len(codes))
        with self.atomic():
            found = self.fast(
                CANDIDATES.format(now=self.clock.sql), [lit.int_array(codes), self.format, share]
            )
            if not found:
                return [], False
            full = len(found) >= limit or len(found) >= share
            found.sort(key=lambda row: (row[3], row[0]))
            wanted = dict(sorted({row[1]: codes[row[2]] for row in found[:limit]}.items()))
            taken = self._take(worker_id, wanted, FREE)
            held = {row[0] for row in taken}
            deleted = self._drop_idle(
                [(row[0], row[1], codes[row[2]]) for row in found if row[1] not in held]
            )
            claimed = self._load(taken)
        crashpoint("after-claim")
        return claimed, full and bool(claimed or deleted)

    def take_over(
        self, worker_id: int, dead_worker_id: int, types: dict[str, str], limit: int
    ) -> list[Claimed]:
        """Take up to ``limit`` actors that a dead worker held. An empty list: there are no more to be had
        now."""
        crashpoint("before-take-over")
        codes = {type_id(name): code for name, code in types.items()}
        with self.atomic():
            owned = self.fast(OWNED, [dead_worker_id, lit.int_array(codes), self.format, limit])
            wanted = dict(sorted((actor_id, codes[kind]) for actor_id, kind in owned))
            taken = self._take(worker_id, wanted, "true") if wanted else []
            claimed = self._load(taken)
        crashpoint("after-take-over")
        return claimed

    def load(self, worker_id: int, held: Sequence[tuple[UUID, int]]) -> list[Claimed]:
        """Read actors again that this worker holds in these epochs; those it no longer holds, or holds as guests
        only, are left out."""
        values = [lit.uuid_array([a for a, _ in held]), lit.int_array([e for _, e in held]), worker_id]
        with self.atomic():
            return self._load(self.fast(HELD_AGAIN, values))

    def release(self, releases: Sequence[Release]) -> list[CommitResult]:
        """Give actors back, each with a wake at the time it must be taken up by itself. OK, STALE, or BUSY:
        its row is locked, give it back later."""
        crashpoint("before-release")
        given = sorted(releases, key=lambda r: r.actor_id)
        with self.guarded():
            done = self.fast(
                RELEASE_ALL,
                [
                    lit.uuid_array([r.actor_id for r in given]),
                    lit.int_array([r.epoch for r in given]),
                    lit.optional_array([r.due for r in given]),
                    lit.optional_text_array([r.inflight for r in given]),
                ],
            )
        crashpoint("after-release")
        gone = {row[0] for row in done}
        left = [r.actor_id for r in given if r.actor_id not in gone]
        epochs = dict(self.fast(EPOCHS, [lit.uuid_array(left)])) if left else {}
        return [
            CommitResult(
                r.actor_id,
                Commit.OK
                if r.actor_id in gone
                else Commit.BUSY
                if epochs.get(r.actor_id) == r.epoch
                else Commit.STALE,
            )
            for r in releases
        ]

    def due_wakes_of_held(
        self, worker_id: int, types: Sequence[str] | dict[str, str], limit: int = 2_000
    ) -> list[UUID]:
        """Actors that this worker holds and that have due wakes: the safety net for bells that were lost."""
        values = [lit.int_array(map(type_id, types)), limit, worker_id]
        return [row[0] for row in self.fast(DUE_OF_HELD.format(now=self.clock.sql), values)]

    def _take(self, worker_id: int, codes: dict[UUID, str], which: str) -> list[tuple[Any, ...]]:
        values = [worker_id, self.format, lit.uuid_array(codes), lit.text_array(codes.values())]
        taken = self.fast(TAKE.format(which=which, now=self.clock.sql), values)
        revived = [row[0] for row in taken if row[6]]
        if revived:
            self.fast(REVIVE, [int(Lifecycle.LIVE), lit.uuid_array(revived)])
        return taken

    def _drop_idle(self, left: list[tuple[int, UUID, str]]) -> int:
        """Delete the wakes met, ``(id, actor, code)``, whose actors this code cannot take up. Sound, since
        whoever unblocks one inserts a wake of its own after this read, and only wakes seen before it are
        deleted."""
        if not left:
            return 0
        codes = {actor_id: code for _, actor_id, code in left}
        idle = {row[0] for row in self.fast(IDLE, [lit.uuid_array(codes), lit.text_array(codes.values())])}
        ids = [row[0] for row in left if row[1] in idle]
        if ids:
            self.fast("DELETE FROM rivet_timer WHERE id = ANY(%s::bigint[])", [lit.int_array(ids)])
        return len(ids)

    def _load(self, runs: list[tuple[Any, ...]]) -> list[Claimed]:
        """Actors from rows of ``TAKE``, with their histories; an actor that has never run has none."""
        started = [row[0] for row in runs if row[4] > 1]
        history: dict[UUID, list[tuple[Any, ...]]] = {}
        if started:
            for row in self.fast(HISTORY, [lit.uuid_array(started)]):
                history.setdefault(row[0], []).append(row[1:])
        return [
            claimed_from_rows(row[:1] + row[2:6], row[7:], history.get(row[0], ()))
            for row in runs
            if row[7] is not None
        ]
