"""Taking actors up and giving them back, on SQLite and MariaDB."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from uuid import UUID

from rivet_workflows.crashpoints import crashpoint
from rivet_workflows.records import Blocked, Claimed, Commit, CommitResult, Lifecycle, Release, TimerKind
from rivet_workflows.store.base import Meanwhile, chunks, marks, to_uuid
from rivet_workflows.store.portable.base import PortableBase
from rivet_workflows.store.rows import ENTRY_COLUMNS, claimed_from_rows, type_id

#: Wakes that are due, without those of actors somebody holds or of a newer format; see the PostgreSQL form.
_CANDIDATES = (
    "SELECT t.id, t.actor_id, t.type_id, t.due FROM rivet_timer t WHERE t.type_id = %s AND t.due <= %s"
    " AND coalesce((SELECT r.owner_id IS NULL AND r.format <= %s FROM rivet_run r WHERE r.actor_id = t.actor_id), 1)"
    " ORDER BY t.due, t.id LIMIT %s"
)
_RUN = "SELECT actor_id, type_id, epoch, commit_no, next_seq, inflight, owner_id, blocked, blocked_code FROM rivet_run"
_TAKE = (
    "UPDATE rivet_run SET owner_id = %s, epoch = epoch + 1, blocked = 0, blocked_code = '', code = %s, format = %s"
    " WHERE actor_id = %s"
)
_COLD = "SELECT a.id, a.name, a.key, a.input, a.created_at FROM rivet_actor a WHERE a.id"
_HISTORY = (
    f"SELECT actor_id, {', '.join(ENTRY_COLUMNS)} FROM rivet_history"
    " WHERE actor_id IN ({marks}) ORDER BY actor_id, seq"
)
_RELEASE = (
    "UPDATE rivet_run SET owner_id = NULL, epoch = epoch + 1, inflight = coalesce(%s, inflight)"
    " WHERE actor_id = %s"
)
_WAKE = "INSERT INTO rivet_timer (type_id, actor_id, kind, due, priority) VALUES (%s, %s, %s, %s, 0)"
_DUE_OF_HELD = (
    "SELECT t.actor_id FROM rivet_timer t WHERE t.type_id = %s AND t.due <= %s"
    " AND (SELECT r.owner_id FROM rivet_run r WHERE r.actor_id = t.actor_id) = %s ORDER BY t.due LIMIT %s"
)


class PortableClaims(PortableBase):
    """The verbs ``claim``, ``take_over``, ``load``, ``release`` and ``due_wakes_of_held``."""

    def claim(
        self,
        worker_id: int,
        types: dict[str, str],
        limit: int,
        *,
        meanwhile: Meanwhile | None = None,
    ) -> tuple[list[Claimed], bool]:
        """Take up to ``limit`` due and free actors; whether to go on. See the PostgreSQL form."""
        crashpoint("before-claim")
        codes = {type_id(name): code for name, code in types.items()}
        with self.writing():
            now = self.clock.now()
            found: list[tuple[Any, ...]] = []
            full = False
            for kind in codes:
                rows = self.query(_CANDIDATES + self.lock(), [kind, now, self.format, limit])
                full = full or len(rows) >= limit
                found += rows
            if not found:
                return [], False
            found.sort(key=lambda row: (row[3], row[0]))
            full = full or len(found) >= limit
            wanted = sorted({to_uuid(row[1]) for row in found[:limit]})
            runs = self._runs(wanted)
            taken = [run for run in runs.values() if self._is_free(run, codes)]
            self._take(worker_id, taken, codes, now)
            deleted = self._drop_idle(found[:limit], runs, {run[0] for run in taken}, codes)
            claimed = self._load(taken, raised=True)
        crashpoint("after-claim")
        return claimed, full and bool(claimed or deleted)

    def take_over(
        self, worker_id: int, dead_worker_id: int, types: dict[str, str], limit: int
    ) -> list[Claimed]:
        """Take up to ``limit`` actors that a dead worker held. An empty list: there are no more to be had
        now."""
        crashpoint("before-take-over")
        codes = {type_id(name): code for name, code in types.items()}
        with self.writing():
            rows = self.query(
                f"{_RUN} WHERE owner_id = %s AND format <= %s AND blocked = 0 AND type_id IN ({marks(list(codes))})"
                f" LIMIT %s{self.lock()}",
                [dead_worker_id, self.format, *codes, limit],
            )
            taken = sorted((to_uuid(row[0]), *row[1:]) for row in rows)
            self._take(worker_id, taken, codes, self.clock.now())
            claimed = self._load(taken, raised=True)
        crashpoint("after-take-over")
        return claimed

    def load(self, worker_id: int, held: Sequence[tuple[UUID, int]]) -> list[Claimed]:
        """Read actors again that this worker holds in these epochs; those it no longer holds, or holds as guests
        only, are left out."""
        with self.atomic():
            runs = self._runs([actor_id for actor_id, _ in held], lock=False)
            mine = [
                runs[a]
                for a, epoch in held
                if a in runs and (runs[a][2], runs[a][6], runs[a][7]) == (epoch, worker_id, Blocked.NO)
            ]
            return self._load(mine)

    def release(self, releases: Sequence[Release]) -> list[CommitResult]:
        """Give actors back, each with a wake at the time it must be taken up by itself. OK, STALE, or
        BUSY."""
        crashpoint("before-release")
        ids = sorted(release.actor_id for release in releases)
        with self.writing():
            runs = self._runs(ids)
            good = [r for r in releases if r.actor_id in runs and runs[r.actor_id][2] == r.epoch]
            self.execute_many(_RELEASE, [(r.inflight, self.uid(r.actor_id)) for r in good])
            self.execute_many(
                _WAKE,
                [
                    (runs[r.actor_id][1], self.uid(r.actor_id), int(TimerKind.DEADLINE), r.due)
                    for r in good
                    if r.due is not None
                ],
            )
        crashpoint("after-release")
        given = {r.actor_id for r in good}
        locked = self._runs([i for i in ids if i not in runs], lock=False)
        results = []
        for r in releases:
            outcome = Commit.OK if r.actor_id in given else Commit.STALE
            if r.actor_id in locked and locked[r.actor_id][2] == r.epoch:
                outcome = Commit.BUSY
            results.append(CommitResult(r.actor_id, outcome))
        return results

    def due_wakes_of_held(
        self, worker_id: int, types: Sequence[str] | dict[str, str], limit: int = 2_000
    ) -> list[UUID]:
        """Actors that this worker holds and that have due wakes: the safety net for bells that were lost."""
        now = self.clock.now()
        return list(
            dict.fromkeys(
                to_uuid(row[0])
                for name in types
                for row in self.query(_DUE_OF_HELD, [type_id(name), now, worker_id, limit])
            )
        )

    def _runs(self, ids: Sequence[UUID], lock: bool = True) -> dict[UUID, tuple[Any, ...]]:
        """Run rows by id, locked; without those that somebody else has locked."""
        end = self.lock() if lock else ""
        return {i: (i, *row) for i, row in self.by_actor(f"{_RUN} WHERE actor_id", ids, end).items()}

    def _is_free(self, run: tuple[Any, ...], codes: dict[int, str]) -> bool:
        owner, blocked, code = run[6:]
        return owner is None and (
            blocked == Blocked.NO or (blocked == Blocked.DIVERGED and code != codes[run[1]])
        )

    def _take(self, worker_id: int, runs: list[tuple[Any, ...]], codes: dict[int, str], now: int) -> None:
        self.execute_many(_TAKE, [(worker_id, codes[run[1]], self.format, self.uid(run[0])) for run in runs])
        self.drop_wakes(dict.fromkeys(run[0] for run in runs), now, deadlines=True)
        self.execute_many(
            "UPDATE rivet_actor SET lifecycle = %s, error = NULL WHERE id = %s",
            [(int(Lifecycle.LIVE), self.uid(run[0])) for run in runs if run[7]],
        )

    def _drop_idle(
        self,
        found: list[tuple[Any, ...]],
        runs: dict[UUID, tuple[Any, ...]],
        taken: set[UUID],
        codes: dict[int, str],
    ) -> int:
        """Delete the wakes met whose actors this code cannot take up: blocked, or gone."""
        left = {to_uuid(row[1]) for row in found} - taken
        known = runs if self._is_sqlite else self._runs(sorted(left), lock=False)
        idle = {
            i for i in left if i not in known or (known[i][6] is None and not self._is_free(known[i], codes))
        }
        ids = [(row[0],) for row in found if to_uuid(row[1]) in idle]
        self.execute_many("DELETE FROM rivet_timer WHERE id = %s", ids)
        return len(ids)

    def _load(self, runs: list[tuple[Any, ...]], raised: bool = False) -> list[Claimed]:
        """``raised``: the rows were read before their epoch was raised."""
        cold = self.by_actor(_COLD, [run[0] for run in runs])
        history: dict[UUID, list[tuple[Any, ...]]] = {}
        for some in chunks([run[0] for run in runs if run[4] > 1]):
            for row in self.query(_HISTORY.format(marks=marks(some)), self.uids(some)):
                history.setdefault(to_uuid(row[0]), []).append(row[1:])
        return [
            claimed_from_rows((run[0], run[2] + raised, *run[3:6]), cold[run[0]], history.get(run[0], ()))
            for run in runs
            if run[0] in cold
        ]
