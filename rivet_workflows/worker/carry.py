"""Carries out what the core orders, on the core's thread: looks, one commit group, starts, releases, merges, bells.

Every database verb goes through :class:`~rivet_workflows.worker.patience.Patience`; users' code goes to the runner.
Nothing is decided here: what an outcome means is the core's to say.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from uuid import UUID

from rivet_workflows import codec
from rivet_workflows.client.sending import check_size
from rivet_workflows.crashpoints import crashpoint
from rivet_workflows.records import Commit, CommitItem, CommitResult, Release, StateWrite
from rivet_workflows.registry import registry
from rivet_workflows.store.base import Meanwhile
from rivet_workflows.store.errors import UnknownOutcome
from rivet_workflows.worker import attempt
from rivet_workflows.worker.calls import CallJob
from rivet_workflows.worker.children import ChildNews, as_end, begin
from rivet_workflows.worker.context import StepEnvironment
from rivet_workflows.worker.failures import FailureTeller
from rivet_workflows.worker.guard import workflow_code
from rivet_workflows.worker.hookjobs import HookJob
from rivet_workflows.worker.hooks import Hooks
from rivet_workflows.worker.inbox import Inbox, wait_readable
from rivet_workflows.worker.orders import CallStart, ChildStart, Orders, StateChange, StepStart
from rivet_workflows.worker.patience import OUTAGES, Patience, describe, is_outage
from rivet_workflows.worker.ports import CoreLike, WorkerStore
from rivet_workflows.worker.runner import StepRunner
from rivet_workflows.worker.state import Conflict, prepare
from rivet_workflows.worker.vars import VarsTable

logger = logging.getLogger("rivet_workflows.worker")

#: Seconds between attempts of an errand while the database is away: nothing rings when it is back.
AWAY = 0.2
#: Ends of steps that the core is told while a commit is made, before it is seen whether that is done.
AT_A_TIME = 8
#: Groups that are committed before anything else is looked at.
IN_A_ROW = 4
#: Seconds that SQLite is left to others between two groups. Its busy waiting is not fair: with a worker that commits
#: back to back web writers got 23 to 43 writes in 4 s, with this pause 350 each. What the core does meanwhile counts.
SQLITE_REST = 0.002


class Carrier:
    """One worker id's hands. ``now`` is the database's time, ``ring`` tells whoever waits that something is there."""

    def __init__(
        self,
        core: CoreLike,
        worker_id: int,
        *,
        store: WorkerStore,
        runner: StepRunner,
        inbox: Inbox,
        env: StepEnvironment,
        vars: VarsTable,
        hooks: Hooks,
        patience: Patience,
        failures: FailureTeller,
        now: Callable[[], int],
        ring: Callable[[Sequence[CommitItem]], None],
        begin: Callable[[ChildStart], ChildNews] = begin,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._core = core
        self._worker_id = worker_id
        self._store = store
        self._runner = runner
        self._inbox = inbox
        self._env = env
        self._vars = vars
        self._hooks = hooks
        self._db = patience
        self._failures = failures
        self._now = now
        self._ring = ring
        self._begin = begin
        self._sleep = sleep
        self._rest = SQLITE_REST if store.vendor == "sqlite" else 0.0
        #: Until when the database is left to others, by its own time.
        self._rests_until = 0.0
        #: Steps whose starts are durable, to begin as soon as the next commit is on its way.
        self._to_start: list[StepStart] = []
        #: What went wrong while the server was at something.
        self._failed: Exception | None = None
        #: Actors whose rows were locked when they were to be given back.
        self.unreleased: list[Release] = []
        #: Actors whose ``on_sleep`` runs, and what gives them back after it; None: they are somebody else's, or over.
        self.sleeping: dict[tuple[UUID, int], Release | None] = {}
        #: Actors of which a call runs; and those of them that are to be let go after it.
        self._calling: set[tuple[UUID, int]] = set()
        self.calling_last: dict[tuple[UUID, int], Release | None] = {}

    def carry(self, orders: Orders) -> None:
        """Do all of it, in the order in which it is safe."""
        # First who waits with an open transaction: on SQLite nothing else can be written before it is over.
        self.answer_atomics(orders)
        # What is durable already does not wait for the next commit: it runs, and is heard of, while that is made.
        if self._store.works_apart and orders.commits and not (orders.rings or orders.looks):
            self._to_start = orders.starts
        else:
            self._start(orders.starts)
        if orders.rings:
            self._ring(orders.rings)
        if orders.looks:
            self._leave_to_others()
            answers = self._db(self._store.look, orders.looks, meanwhile=self.meanwhile())
            with workflow_code():
                self._core.looked(answers, self._now())
        if orders.commits:
            self._commit(orders.commits)
        for child in orders.children:
            self._begin_child(child)
        for actor_id, child_ids in orders.child_looks:
            ends = self._db(self._store.read_ends, actor_id, child_ids)
            with workflow_code():
                self._core.children_ended(actor_id, {c: as_end(e) for c, e in ends.items()}, self._now())
        if orders.call_looks:
            self._look_for_calls(orders.call_looks)
        for start in orders.calls:
            self._call(start)
        if orders.cancels:
            self._runner.cancel(orders.cancels)
        if orders.gone:
            self._let_go(orders)
        if orders.reloads:
            self._reload(orders.reloads)
        for actor_id, change in orders.remerges:
            self._remerge(actor_id, change)
        for actor_id, checkpoints in orders.rollbacks:
            self._roll_back(actor_id, checkpoints)
        for event in orders.errors:
            self._failures.tell(event)

    def _start(self, starts: list[StepStart]) -> None:
        if starts:
            crashpoint("before-start")
            self._runner.start(starts)
            crashpoint("after-start")

    def _let_go(self, orders: Orders) -> None:
        releases = {(release.actor_id, release.epoch): release for release in orders.releases}
        for held in orders.gone:
            self.let_go(held, releases.get(held))
        self.release()

    def let_go(self, held: tuple[UUID, int], release: Release | None) -> None:
        """Have ``on_sleep`` called, if there is one; after that ``release`` may be carried out. First, a call ends."""
        if held in self._calling:
            self.calling_last[held] = release
            return
        if not self._hooks.sleeps(held):
            self._vars.forget(*held)
            if release is not None:
                self.unreleased.append(release)
            return

        self.sleeping[held] = release
        self._runner.hook(
            HookJob(
                lambda wanted: self._hooks.sleep(held, wanted),
                lambda: self._inbox.slept(held),
                lambda: self._hooks.late(held),
            )
        )

    def _look_for_calls(self, held: list[tuple[UUID, int]]) -> None:
        answers = self._db(self._store.called, held)
        with workflow_code():
            self._core.called(answers, self._now())
        if not all(answer.held for answer in answers):
            self._inbox.poll()  # a control operation has freed it: it may be ours to claim again

    def _call(self, start: CallStart) -> None:
        held = start.actor_id, start.epoch
        self._calling.add(held)
        kind = registry.find(start.actor_name)
        self._runner.call(
            CallJob(
                start,
                self._worker_id,
                store=self._store,
                vars=lambda: self._vars.of(kind, held),  # type: ignore[arg-type]  # no class, no action
                now=self._now,
                ended=self._inbox.called,
            )
        )

    def called(self, ended: Sequence[CallStart]) -> None:
        """These calls are through."""
        for start in ended:
            held = start.actor_id, start.epoch
            self._calling.discard(held)
            if held in self.calling_last:
                self.let_go(held, self.calling_last.pop(held))
        self.release()

    def leave_calls(self) -> None:
        """Wait for no call any longer: what is to be let go is."""
        self._calling.clear()
        while self.calling_last:
            self.let_go(*self.calling_last.popitem())

    def slept(self, ended: Sequence[tuple[UUID, int]]) -> None:
        """Their ``on_sleep`` is through."""
        for held in ended:
            release = self.sleeping.pop(held, None)
            if release is not None:
                self.unreleased.append(release)
        self.release()

    def answer_atomics(self, orders: Orders) -> None:
        """Tell atomic steps what to commit in their transactions."""
        for token, item in orders.atomics:
            self._runner.commit_atomic(token, item)
        for token in orders.aborts:
            self._runner.abort_atomic(token)

    def release(self) -> None:
        """Give back what is to be given back. Rows that are locked stay for another time."""
        if not self.unreleased:
            return
        results = self._db(self._store.release, self.unreleased)
        busy = {result.actor_id for result in results if result.outcome == Commit.BUSY}
        self.unreleased = [release for release in self.unreleased if release.actor_id in busy]

    def _commit(self, items: list[CommitItem]) -> None:
        """This group, and some that are there by the time it is made: steps are best started while the server works."""
        for left in reversed(range(IN_A_ROW if self._store.works_apart else 1)):
            self._leave_to_others()
            results = self._committed(items)
            if self._rest:
                self._rests_until = self._now() + round(self._rest * 1e6)
            with workflow_code():
                self._core.committed(results, self._now())
                starts, items = self._core.take_starts(), self._core.take_commits() if left else []
            if not items:
                self._start(starts)
                return
            self._to_start = starts

    def _leave_to_others(self) -> None:
        if self._rest and (left := self._rests_until - self._now()) > 0:
            self._sleep(min(left / 1e6, self._rest))  # the clock may have been set back

    def _committed(self, items: list[CommitItem]) -> list[CommitResult]:
        """What became of the group, also where the answer to its COMMIT was lost."""
        try:
            with self._db.turn():
                results = self._store.commit_group(items, meanwhile=self.meanwhile())
        except (UnknownOutcome, *OUTAGES) as error:
            self._start_what_waits()
            self._db.recover(error)
            return self._db(self._store.resolve, items)
        self._db.succeeded()
        self._start_what_waits()
        return results

    def meanwhile(self) -> Meanwhile | None:
        """What to do while the server is at something; None where nothing can come up, as waiting for one thing is
        quicker."""
        return self._meanwhile if self._to_start or self._runner.running or not self._inbox.empty else None

    def _meanwhile(self, socket: int) -> None:
        """Start steps that waited for an earlier commit, and tell the core of some that have ended. What it orders
        comes later. An error of this is none of the statement's, and is raised once that is over."""
        if self._failed is not None:
            wait_readable(socket)
            return
        try:
            if self._to_start:
                self._start_what_waits()
            elif reports := self._inbox.take_reports(AT_A_TIME):
                core, now = self._core, self._now()
                with workflow_code():
                    for token, report in reports:
                        core.step_done(token, report, now)
            else:
                self._inbox.wait_for_reports(socket)
        except Exception as error:
            self._failed = error

    def raise_what_failed(self) -> None:
        """Raises what went wrong while the server was at something."""
        if self._failed is not None:
            raise self._failed

    def _start_what_waits(self) -> None:
        starts, self._to_start = self._to_start, []
        self._start(starts)

    def _reload(self, held: list[tuple[UUID, int]]) -> None:
        claimed = self._db(self._store.load, self._worker_id, held)
        found = {one.actor_id for one in claimed}
        with workflow_code():
            self._core.loaded(claimed, self._now())
            self._core.missing([one for one in held if one[0] not in found], self._now())

    def _roll_back(self, actor_id: UUID, checkpoints: list[tuple[int, str]]) -> None:
        rows = self._db(self._store.rollback_rows, actor_id, checkpoints)
        with workflow_code():
            self._core.rolled_back(actor_id, rows, self._now())

    def _begin_child(self, start: ChildStart) -> None:
        self._persist(lambda: self._inbox.child(self._begin(start)))

    def _persist(self, errand: Callable[[], None]) -> None:
        """Run it on an errand thread; while the database is away, again and again: the core waits for what it tells."""

        def run() -> None:
            try:
                errand()
            except OUTAGES as error:
                logger.warning(
                    "The database does not answer (%s); trying again until it does", describe(error)
                )
                self._sleep(AWAY)
                self._persist(errand)

        self._runner.errand(run)

    def _remerge(self, actor_id: UUID, change: StateChange) -> None:
        """On a thread of the runner's: update functions are users' code."""

        def merge() -> None:
            try:
                decode, encode = change.decode or codec.loads, change.encode or codec.dumps
                merged = prepare(change, lambda: self._env.load_state(actor_id), decode, encode)
                if isinstance(merged, StateWrite):
                    check_size(merged.body, "MAX_STATE", "the merged state")
            except BaseException as error:
                if is_outage(error):
                    raise
                logger.warning(
                    "The state of actor %s could not be merged: %s", actor_id, attempt.describe(error)
                )
                change.refusal = attempt.describe(error)
                self._inbox.remerged(actor_id, change, None)
                return
            if isinstance(merged, Conflict):
                logger.info("Actor %s: %s", actor_id, merged)
                self._inbox.remerged(actor_id, change, None)
            else:
                self._inbox.remerged(actor_id, change, merged)

        self._persist(merge)
