"""The commit of a group on SQLite and MariaDB: read and lock what the items stand on, decide about each, then
write those that may be written in bulk, one statement per kind of write."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from uuid import UUID

from rivet_workflows.crashpoints import crashpoint
from rivet_workflows.records import Commit, CommitItem, CommitResult
from rivet_workflows.store.base import Meanwhile, chunks, marks, to_uuid
from rivet_workflows.store.errors import Trouble, UnknownOutcome, classify
from rivet_workflows.store.grouping import commit_in_halves, group
from rivet_workflows.store.portable.base import PortableBase
from rivet_workflows.store.portable.writes import PortableWrites

REPEATS = 3


class PortableCommits(PortableWrites, PortableBase):
    """The verbs ``commit_group`` and ``resolve``."""

    def commit_group(
        self,
        items: Sequence[CommitItem],
        *,
        wait: bool = False,
        meanwhile: Meanwhile | None = None,
    ) -> list[CommitResult]:
        """Commit each item whole or not at all; results in the order of ``items``. See the PostgreSQL
        form. Here there is no meanwhile."""
        crashpoint("before-commit")
        results = commit_in_halves(items, lambda some: self._attempt(some, wait))
        crashpoint("after-commit")
        return results

    def _attempt(self, items: Sequence[CommitItem], wait: bool) -> list[CommitResult] | str:
        for _ in range(REPEATS):
            try:
                with self.writing():
                    return self._commit(items, wait)
            except Exception as error:
                trouble = classify(error)
                if trouble is Trouble.AGAIN:
                    self.again(error)
                    continue
                if trouble is Trouble.LOCKED:
                    break  # the whole database, or a row waited for: nothing was written
                if trouble is Trouble.CONTENT:
                    return f"{type(error).__name__}: {error}"
                if trouble is Trouble.LOST:
                    raise UnknownOutcome(str(error)) from error
                raise
        return [CommitResult(item.actor_id, Commit.BUSY) for item in items]

    def _commit(self, items: Sequence[CommitItem], wait: bool) -> list[CommitResult]:
        results = self._decide(items, wait)
        good = [item for item, result in zip(items, results, strict=True) if result.outcome is Commit.OK]
        if good:
            self._write(group(good))
        return results

    def _decide(self, items: Sequence[CommitItem], wait: bool) -> list[CommitResult]:
        ids = [item.actor_id for item in items]
        end = self.lock(wait)
        runs = self.by_actor("SELECT actor_id, epoch, commit_no FROM rivet_run WHERE actor_id", ids, end)
        with_state = [item.actor_id for item in items if item.state is not None]
        states = self.by_actor("SELECT actor_id, version FROM rivet_state WHERE actor_id", with_state, end)
        needed = [m for item in items for m in (*item.takes, *(h[0] for h in item.holds))]
        there: set[tuple[UUID, int]] = set()
        for some in chunks(needed):
            rows = self.query(
                f"SELECT actor_id, id FROM rivet_message WHERE id IN ({marks(some)})", list(some)
            )
            there |= {(to_uuid(row[0]), row[1]) for row in rows}
        if not self._is_sqlite:
            self._add_locked(runs, states, ids, with_state)
        return [self._judge(item, runs, states, there) for item in items]

    def _add_locked(
        self,
        runs: dict[UUID, tuple[Any, ...]],
        states: dict[UUID, tuple[Any, ...]],
        ids: list[UUID],
        with_state: list[UUID],
    ) -> None:
        """Rows passed over because somebody has locked them, as they are now, marked by a further column."""
        missing = [i for i in ids if i not in runs]
        found = self.by_actor("SELECT actor_id, epoch, commit_no FROM rivet_run WHERE actor_id", missing)
        runs |= {i: (*row, "locked") for i, row in found.items()}
        missing = [i for i in with_state if i not in states]
        found = self.by_actor("SELECT actor_id, version FROM rivet_state WHERE actor_id", missing)
        states |= {i: (*row, "locked") for i, row in found.items()}

    def _judge(
        self,
        item: CommitItem,
        runs: dict[UUID, tuple[Any, ...]],
        states: dict[UUID, tuple[Any, ...]],
        there: set[tuple[UUID, int]],
    ) -> CommitResult:
        run = runs.get(item.actor_id, ())
        if run[:2] != (item.epoch, item.commit_no):
            return CommitResult(item.actor_id, Commit.STALE)
        state: tuple[Any, ...] = ()
        if item.state is not None:
            state = states.get(item.actor_id, (None,))
            if state[0] != item.state.version:
                return CommitResult(item.actor_id, Commit.CONFLICT)
        if "locked" in run or "locked" in state:
            return CommitResult(item.actor_id, Commit.BUSY)
        needed = [*item.takes, *(message_id for message_id, _ in item.holds)]
        if any((item.actor_id, message_id) not in there for message_id in needed):
            return CommitResult(item.actor_id, Commit.REFUSED, "a message to take or to hold is gone")
        return CommitResult(item.actor_id, Commit.OK)

    def resolve(self, items: Sequence[CommitItem]) -> list[CommitResult]:
        """After :class:`UnknownOutcome`: OK where the commit is there, BUSY where it may be offered again,
        STALE where the actor is another's by now."""
        with self.writing():
            runs = self.by_actor(
                "SELECT actor_id, epoch, commit_no FROM rivet_run WHERE actor_id",
                [item.actor_id for item in items],
                self.lock(wait=True),
            )
        results = []
        for item in items:
            position = runs.get(item.actor_id)
            if position == (item.epoch, item.commit_no + 1):
                outcome = Commit.OK
            elif position == (item.epoch, item.commit_no):
                outcome = Commit.BUSY
            else:
                outcome = Commit.STALE
            results.append(CommitResult(item.actor_id, outcome))
        return results
