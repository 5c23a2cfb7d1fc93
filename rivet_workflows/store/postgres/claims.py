"""Taking actors up and giving them back, on PostgreSQL.

A claim is one statement; what is done to the candidates finds its rows by ``LATERAL`` and ``ctid``, never by a join: as
a CTE whose DELETE joined the SELECT it took 17 s for 200 of 3,000 wakes, because such tables are analysed while empty.
Histories are read after it. Nobody else writes to an actor that is claimed, and should the claimer hear nothing of its
claim, it finds by its own id what it holds.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from uuid import UUID

from django.db import DatabaseError, OperationalError

from rivet_workflows.crashpoints import crashpoint
from rivet_workflows.records import Claimed, Commit, CommitResult, Lifecycle, Release, TimerKind
from rivet_workflows.store import literals as lit
from rivet_workflows.store.base import Meanwhile
from rivet_workflows.store.errors import Trouble, classify
from rivet_workflows.store.postgres.base import PostgresBase
from rivet_workflows.store.rows import ENTRY_COLUMNS, claimed_from_rows, type_id

#: Histories are read again at once when a strict isolation level refuses, this often.
REPEATS = 3

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

#: Takes the rows of ``w``, and deletes the wakes of those it got: the due ones, and the deadlines, which the holder now
#: keeps. These are found by the actor alone: ``due + 0`` keeps the index by time out, along which a plan made of an
#: empty table went through them all. Those that were set aside live again.
_TAKEN = (
    "k AS (UPDATE rivet_run r SET owner_id = %s, epoch = r.epoch + 1, blocked = 0, blocked_code = '',"
    " code = x.code, format = %s FROM (SELECT w.code, a.tid, a.blocked, c.* FROM {wanted}"
    " CROSS JOIN LATERAL (SELECT a.ctid AS tid, a.blocked FROM rivet_run a WHERE a.actor_id = w.id"
    f" AND {{which}} FOR NO KEY UPDATE SKIP LOCKED) a{_COLD}) x WHERE r.ctid = x.tid RETURNING r.actor_id, r.type_id,"
    " r.epoch, r.commit_no, r.next_seq, r.inflight, x.blocked, x.name, x.key, x.input, x.created_at),"
    " d AS (DELETE FROM rivet_timer t USING (SELECT x.tid FROM k CROSS JOIN LATERAL"
    " (SELECT y.ctid AS tid FROM rivet_timer y WHERE y.actor_id = k.actor_id"
    f" AND (y.due + 0 <= {{now}} OR y.kind = {int(TimerKind.DEADLINE)}) FOR UPDATE SKIP LOCKED) x) z"
    " WHERE t.ctid = z.tid),"
    f" v AS (UPDATE rivet_actor a SET lifecycle = {int(Lifecycle.LIVE)}, error = NULL"
    " FROM (SELECT x.tid FROM (SELECT k.actor_id FROM k WHERE k.blocked <> 0 OFFSET 0) k CROSS JOIN LATERAL"
    " (SELECT y.ctid AS tid FROM rivet_actor y WHERE y.id = k.actor_id FOR NO KEY UPDATE) x) z WHERE a.ctid = z.tid)"
)
FREE = "a.owner_id IS NULL AND (a.blocked = 0 OR a.blocked = 3 AND a.blocked_code <> w.code)"

#: Each wake that was met, and what was taken of its actor. The full join keeps to one pass over each side.
CLAIM = (
    f"WITH c AS MATERIALIZED (SELECT t.* FROM ({CANDIDATES}) t ORDER BY t.due, t.id LIMIT %s),"
    " w AS MATERIALIZED (SELECT DISTINCT c.actor_id AS id, x.code FROM c, unnest(%s::bigint[], %s::text[])"
    f" x(type_id, code) WHERE x.type_id = c.type_id ORDER BY c.actor_id), {_TAKEN}"
    f" SELECT c.id, c.actor_id, c.type_id, k.* FROM c FULL JOIN k ON k.actor_id = c.actor_id"
)
TAKE = f"WITH {_TAKEN} SELECT * FROM k"

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

    def claim(
        self, worker_id: int, types: dict[str, str], limit: int, *, meanwhile: Meanwhile | None = None
    ) -> tuple[list[Claimed], bool]:
        """Take up to ``limit`` actors of ``types`` (name to the hash of this worker's code) that are due and
        free.

        The second value says to go on: the wakes met filled the limit and some of them went away. The worker
        looks at the messages of each claimed actor, as the wakes that announced them are deleted here. ``meanwhile``
        may have this thread while the server is at it.
        """
        crashpoint("before-claim")
        codes = {type_id(name): code for name, code in types.items()}
        share = limit if len(codes) <= 8 else max(20, 8 * limit // len(codes))
        kinds = lit.int_array(codes)
        with self.guarded():
            found = self.fast(
                CLAIM.format(now=self.clock.sql, wanted="w", which=FREE),
                [
                    kinds,
                    self.format,
                    share,
                    limit,
                    kinds,
                    lit.text_array(codes.values()),
                    worker_id,
                    self.format,
                ],
                meanwhile,
            )
        crashpoint("after-claim")
        if not found:
            return [], False
        taken = {row[3]: row[3:] for row in found if row[3] is not None}
        left = [row for row in found if row[3] is None]
        deleted = self._drop_idle([(row[0], row[1], codes[row[2]]) for row in left])
        claimed = self._load_claimed(list(taken.values()))
        return claimed, len(found) >= min(limit, share) and bool(claimed or deleted)

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
            taken = self._take(worker_id, wanted) if wanted else []
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

    def _take(self, worker_id: int, codes: dict[UUID, str]) -> list[tuple[Any, ...]]:
        values = [worker_id, self.format, lit.uuid_array(codes), lit.text_array(codes.values())]
        wanted = "unnest(%s::uuid[], %s::text[]) w(id, code)"
        return self.fast(TAKE.format(wanted=wanted, which="true", now=self.clock.sql), values)

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

    def _load_claimed(self, taken: list[tuple[Any, ...]]) -> list[Claimed]:
        """What is claimed must not be forgotten for an error of the moment. Raises ``OperationalError`` as for a lost
        connection, after which a worker asks what it holds."""
        for _ in range(REPEATS):
            try:
                with self.guarded():
                    return self._load(taken)
            except DatabaseError as error:
                if classify(error) is not Trouble.AGAIN:
                    raise
        raise OperationalError("the histories of claimed actors could not be read")

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
