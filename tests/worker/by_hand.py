"""A core driven by hand: the real core and engine over a store in memory, its orders carried out in place.

What the threaded shell does with threads, this does with a list of attempts that the test finishes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from uuid import UUID

from rivet_workflows import codec
from rivet_workflows.engine import Program
from rivet_workflows.records import Claimed, Commit, CommitItem, CommitResult, Release, StateWrite
from rivet_workflows.worker.core import Core, CoreLimits
from rivet_workflows.worker.orders import ChildStart, ErrorEvent, StateChange, StepReport, StepStart
from rivet_workflows.worker.state import Conflict, prepare
from tests.simulation.memory_worker import MemoryStore
from tests.simulation.steps import SimStep, run

Runs = Callable[[Claimed], Program]


class HandWorker:
    """One worker of a test; see the module."""

    def __init__(
        self, store: MemoryStore, programs: Runs, types: dict[str, str], limits: CoreLimits | None = None
    ) -> None:
        self.store = store
        self.types = types
        self.id = store.register_worker()
        self.core = Core(self.id, programs, codec, limits)
        #: Attempts that were started and have not ended.
        self.attempts: list[StepStart] = []
        self.errors: list[ErrorEvent] = []
        self.cancelled: list[Any] = []
        self.calls: list[tuple[UUID, str]] = []
        self.unreleased: list[Release] = []
        #: Merges that were ordered, for a worker whose errands take their time (``slow_merges``).
        self.merges: list[tuple[UUID, StateChange]] = []
        self.slow_merges = False
        #: Orders about children, for tests to answer.
        self.children: list[ChildStart] = []
        self.child_looks: list[tuple[UUID, list[UUID]]] = []

    def claim(self) -> int:
        claimed, _ = self.store.claim(self.id, self.types, self.core.room)
        self.core.loaded(claimed, self.store.now())
        return len(claimed)

    def take_over(self, dead: int) -> int:
        claimed = self.store.take_over(self.id, dead, self.types, 1_000)
        self.core.loaded(claimed, self.store.now())
        return len(claimed)

    def carry(self) -> bool:
        """One round of orders; False when there was nothing to do."""
        core, store = self.core, self.store
        core.tick(store.now())
        orders = core.orders()
        self.release()
        if not orders:
            return False
        if orders.looks:
            core.looked(store.look(orders.looks), store.now())
        if orders.commits:
            core.committed(self.commit(orders.commits), store.now())
        for token, item in orders.atomics:
            core.atomic_committed(token, self.commit([item])[0], store.now())
        self.attempts += orders.starts
        self.children += orders.children
        self.child_looks += orders.child_looks
        self.cancelled += orders.cancels
        gone = set(orders.cancels)
        self.attempts = [start for start in self.attempts if start.token not in gone]
        self.unreleased += orders.releases
        if orders.reloads:
            claimed = store.load(self.id, orders.reloads)
            core.loaded(claimed, store.now())
            found = {one.actor_id for one in claimed}
            core.missing([held for held in orders.reloads if held[0] not in found], store.now())
        self.merges += orders.remerges
        while self.merges and not self.slow_merges:
            self.merge()
        for actor_id, checkpoints in orders.rollbacks:
            core.rolled_back(actor_id, store.rollback_rows(actor_id, checkpoints), store.now())
        self.errors += orders.errors
        self.release()
        return True

    def release(self) -> None:
        """Give back; rows that are locked stay for another time."""
        busy = {r.actor_id for r in self.store.release(self.unreleased) if r.outcome is Commit.BUSY}
        self.unreleased = [release for release in self.unreleased if release.actor_id in busy]

    def commit(self, items: list[CommitItem]) -> list[CommitResult]:
        return self.store.commit_group(items)

    def settle(self) -> bool:
        """Rounds of orders until there are none; False when there were none at all."""
        moved = False
        while self.carry():
            moved = True
        return moved

    def merge(self, which: int = 0) -> None:
        """Carry out one of the merges that were ordered."""
        actor_id, change = self.merges.pop(which)
        self.core.remerged(actor_id, change, self._merge(actor_id, change), self.store.now())

    def _merge(self, actor_id: UUID, change: StateChange) -> StateWrite | None:
        merged = prepare(change, lambda: self.store.load_state(actor_id), codec.loads, codec.dumps)
        return None if isinstance(merged, Conflict) else merged

    def finish(self, start: StepStart, *, error: BaseException | None = None, **flags: Any) -> None:
        """Run a started attempt to its end and report."""
        self.attempts.remove(start)
        self.core.step_done(start.token, self.run(start, error, **flags), self.store.now())

    def run(self, start: StepStart, error: BaseException | None = None, **flags: Any) -> StepReport:
        self.calls.append((start.token.actor_id, start.name))
        return run(SimStep(self.store, start), error, **flags)

    def until_idle(self, limit: int = 10_000) -> None:
        """Claim, run and commit until nothing can go on without time or messages."""
        for _ in range(limit):
            ids = self.store.due_wakes_of_held(self.id)
            if ids:
                self.core.rung(ids, self.store.now())
            moved = self.claim() > 0
            moved = self.carry() or moved
            if self.attempts:
                self.finish(self.attempts[0])
                moved = True
            if not moved:
                return
        raise AssertionError("the worker does not come to rest")
