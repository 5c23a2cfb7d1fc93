"""The scheduler of a worker, sans-IO: happenings in, :class:`Orders` out.

Holds the actors that this worker has claimed, drives their machines, groups what they want committed, and says what
to run, look up, release and claim. It does no I/O, knows no thread, no clock and no connection: the shell, the
testing kit and the simulation all drive this one. Not thread safe; one thread owns it.

A worker restarts nothing in place: an actor whose commit was refused is dropped, or made again from what is stored.
"""

from __future__ import annotations

import heapq
import json
import logging
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any
from uuid import UUID

from rivet_workflows.engine import Limits, Machine, Turn
from rivet_workflows.engine.program import Codec, Program
from rivet_workflows.exceptions import ErrorInfo, RivetError
from rivet_workflows.records import (
    Blocked,
    Called,
    Claimed,
    Commit,
    CommitItem,
    CommitResult,
    Entry,
    Look,
    Looked,
    Release,
    StateWrite,
)
from rivet_workflows.worker.holding import Holding, Pending
from rivet_workflows.worker.orders import (
    CallStart,
    ChildEnd,
    ChildStart,
    ErrorEvent,
    Orders,
    StateChange,
    StepReport,
    StepStart,
    StepToken,
)
from rivet_workflows.worker.trials import SUSPICIOUS, Trials

logger = logging.getLogger("rivet_workflows.worker")

Programs = Callable[[Claimed], Program]

_BUSY_FIRST, _BUSY_MOST = 2_000, 200_000
#: Times that an atomic step may be rolled back and run again before the others make way and it locks the state (D-13).
_RERUNS = 5
#: Changes of a state that are compared with the stored one before anything runs ahead, after one that was lost: what
#: has run ahead is thrown away in a conflict, and the actor's whole history read again.
_CAUTIOUS = 100


@dataclass(frozen=True, slots=True)
class CoreLimits:
    """Bounds of one worker. Times are microseconds, sizes bytes."""

    engine: Limits = field(default_factory=Limits)
    #: Actors in one commit group; 200 was measured as right, larger brings nothing.
    group_size: int = 200
    group_bytes: int = 1_048_576
    #: Waiting actors kept in memory; those longest at rest are let go first.
    max_parked: int = 1_000
    #: An actor at rest for this long is let go.
    evict_after: int = 60_000_000
    #: Actors with something to do that are held at one time.
    max_active: int = 500


class Core:
    """See the module. Every method that is told something takes ``now``, the database's time."""

    def __init__(
        self, worker_id: int, programs: Programs, codec: Codec, limits: CoreLimits | None = None
    ) -> None:
        self.worker_id = worker_id
        self.programs = programs
        self.codec = codec
        self.limits = limits or CoreLimits()
        self.now = 0
        self._held: dict[UUID, Holding] = {}
        self._number = 0
        #: Actors with a commit to make, in the order in which they asked.
        self._to_commit: dict[Holding, None] = {}
        self._in_flight: dict[UUID, Holding] = {}
        #: Actors whose commit is made inside an atomic step's transaction; nobody else waits for that.
        self._atomics: dict[UUID, Holding] = {}
        self._due: list[tuple[int, UUID]] = []
        #: Actors at rest and since when, longest first.
        self._resting: OrderedDict[Holding, int] = OrderedDict()
        #: Actors whose step went down with its worker more than once.
        self._trials = Trials()
        self._orders = Orders()
        self.stopping = False

    # -- what the shell asks ---------------------------------------------------------------------------

    @property
    def held(self) -> int:
        return len(self._held) + len(self._trials)

    @property
    def running(self) -> int:
        """Attempts, and actions for callers, that run now."""
        return sum(
            len(holding.active) + (holding.callers.running is not None) for holding in self._held.values()
        )

    @property
    def room(self) -> int:
        """How many more actors may be claimed."""
        return 0 if self.stopping else max(0, self.limits.max_active - (len(self._held) - len(self._resting)))

    @property
    def idle(self) -> bool:
        """Nothing runs, nothing is ordered or waits to be committed; at most there are actors at rest."""
        busy = self._to_commit or self._in_flight or self._trials or self._orders
        return not busy and len(self._held) == len(self._resting)

    @property
    def next_timer(self) -> int | None:
        """When the first timer of a held actor fires: a sleep, a deadline, a retry."""
        while self._due and not self._is_current(*self._due[0]):
            heapq.heappop(self._due)
        return self._due[0][0] if self._due else None

    @property
    def next_due(self) -> int | None:
        """When :meth:`tick` must be called at the latest."""
        timer = self.next_timer
        times = [] if timer is None else [timer]
        if self._resting:
            times.append(next(iter(self._resting.values())) + self.limits.evict_after)
        times += [holding.busy_until for holding in self._to_commit if holding.busy_until > self.now]
        return min(times, default=None)

    def holds(self, actor_id: UUID) -> bool:
        return actor_id in self._held or actor_id in self._trials

    @property
    def giving_back(self) -> set[UUID]:
        """Actors that were let go of and that the database still calls ours, as nobody has fetched the order."""
        return {release.actor_id for release in self._orders.releases}

    # -- actors come -----------------------------------------------------------------------------------

    def loaded(self, claimed: Iterable[Claimed], now: int) -> None:
        """Actors that were claimed, taken over, or loaded again as :attr:`Orders.reloads` asked."""
        self._at(now)
        for one in claimed:
            before = self._held.get(one.actor_id)
            if before is not None and before.claimed.epoch == one.epoch and before.reloading:
                self._again(before, one)
            else:
                if before is not None:
                    self._drop(before)
                self._trials.forget(one.actor_id)
                if not self._trials.admit(one):
                    self._take(one)
        self._try_next()

    def _try_next(self) -> None:
        """Take up the next actor that is tried apart, if none is."""
        if self.stopping:
            for waiting in self._trials.give_up():
                self._orders.releases.append(Release(waiting.actor_id, waiting.epoch, self.now))
            return
        claimed = self._trials.next()
        if claimed is not None:
            self._take(claimed)
            if claimed.actor_id not in self._held:
                self._trials.current = None
                self._try_next()

    def _tried(self, holding: Holding) -> None:
        """Has the actor that is tried apart come through?"""
        if self._trials.current != holding.claimed.actor_id:
            return
        machine = holding.machine
        if not holding.gone and any(
            machine.open[seq].get("z", 0) > SUSPICIOUS for seq in machine.running if seq in machine.open
        ):
            return
        self._trials.current = None
        self._try_next()

    def missing(self, actor_ids: Iterable[UUID], now: int) -> None:
        """Actors that a reload did not find any more: they belong to somebody else."""
        self._at(now)
        for actor_id in actor_ids:
            holding = self._held.get(actor_id)
            if holding is not None:
                logger.info("%s %s belongs to somebody else now", holding.claimed.name, holding.claimed.key)
                self._drop(holding)

    def _take(self, claimed: Claimed) -> None:
        self._number += 1
        holding = self._make(claimed, self._number)
        if holding is not None:
            self._held[claimed.actor_id] = holding
            self._look_for_calls(holding)
            self._begin(holding)

    def _make(self, claimed: Claimed, number: int) -> Holding | None:
        if claimed.guest:
            machine = Machine(_nothing(), claimed, self.codec, self.limits.engine)
            machine.dispose()
            return Holding(claimed, machine, "", number)
        try:
            if claimed.unreadable:
                raise ValueError(claimed.unreadable)
            program = self.programs(claimed)
            machine = Machine(program, claimed, self.codec, self.limits.engine)
        except Exception as exc:
            self._unreadable(claimed, number, exc)
            return None
        return Holding(claimed, machine, program.code, number)

    def _unreadable(self, claimed: Claimed, number: int, exc: BaseException) -> None:
        """Its rows cannot be understood: set aside alone, the others go on."""
        empty = replace(claimed, key='[""]', inflight="", entries=[])
        holding = Holding(claimed, Machine(_nothing(), empty, self.codec, self.limits.engine), "", number)
        holding.next_item().item.block = (Blocked.UNREADABLE, "")
        holding.machine.keep_stored(claimed.inflight)
        error = ErrorInfo.from_exception(exc)
        holding.next_item().item.block_error = json.dumps({"error": error.to_dict()})
        self._orders.errors.append(self._unreadable_event(claimed, error))
        self._held[claimed.actor_id] = holding
        self._must_commit(holding)

    def _unreadable_event(self, claimed: Claimed, error: ErrorInfo) -> ErrorEvent:
        event = ErrorEvent(claimed.actor_id, claimed.name, claimed.key, "workflow", error)
        event.set_aside = Blocked.UNREADABLE.reason
        return event

    def _begin(self, holding: Holding) -> None:
        if holding.claimed.guest:
            self._settle(holding)
        else:
            self._feed(holding, lambda machine: machine.start(self.now))

    def _again(self, holding: Holding, claimed: Claimed) -> None:
        """The machine of an actor whose commit was refused, made again from what is stored."""
        holding.machine.dispose()
        holding.gone = True
        self._to_commit.pop(holding, None)
        self._resting.pop(holding, None)
        fresh = self._make(claimed, holding.number)
        if fresh is None:
            return
        fresh.active, fresh.started = holding.active, holding.started
        fresh.refusals, fresh.alone, fresh.cautious = holding.refusals, holding.alone, holding.cautious
        fresh.callers = holding.callers
        reports = [*holding.after_reload, *holding.deferred]
        self._held[claimed.actor_id] = fresh
        done = {(token.seq, token.attempt) for token, _ in reports}
        known = done | fresh.active.keys()
        self._feed(fresh, lambda machine: machine.start(self.now), known=known)
        # They are not started once more: that was the replay's view only.
        for seq in {seq for seq, _ in known} | (fresh.machine.running if self.stopping else set()):
            rec = fresh.machine.open.get(seq)
            if rec is not None and rec.get("z", 0) > 1:
                rec["z"] -= 1
        for token in holding.restarts:
            if not fresh.gone and token.seq in fresh.machine.running:
                self._run_again(fresh, token)
        for token, report in reports:
            # One that is stored already, though it was said not to be, would have its effects twice.
            if not fresh.gone and (fresh.machine.rollback or fresh.machine.runs(token.seq, token.attempt)):
                if report.output is not None:
                    # The coroutine that was dropped had this very object, and may have changed it.
                    report.value = self.codec.loads(report.output)
                fresh.active[token.seq, token.attempt] = token
                self.step_done(token, report, self.now)

    # -- happenings ------------------------------------------------------------------------------------

    def step_done(self, token: StepToken, report: StepReport, now: int) -> None:
        """An attempt ended."""
        self._at(now)
        holding = self._held.get(token.actor_id)
        if holding is None or not holding.is_active(token):
            if report.atomic:
                self._orders.aborts.append(token)
            return
        if report.atomic:
            self._atomic_done(holding, token, report)
            return
        if holding.reloading:
            holding.after_reload.append((token, report))
            return
        if report.abandoned:
            self._hand_back(holding, token)
            return
        if report.lost:
            self._run_again(holding, token)
            return
        change = report.effects.state if report.effects else None
        if change is not None and (holding.change_in_way or holding.deferred or holding.favoured is not None):
            holding.deferred.append((token, report))
            return
        if change is not None and (change.prepared is None or holding.cautious):
            holding.change_waits = (token, report)
            self._orders.remerges.append((token.actor_id, change))
            return
        self._tell(holding, token, report)

    def _atomic_done(self, holding: Holding, token: StepToken, report: StepReport) -> None:
        """An atomic step's function has returned; everything the actor has pending goes out in its transaction."""
        change = report.effects.state if report.effects else None
        if (
            holding.reloading
            or holding.sent is not None
            or (change is not None and holding.change_in_way)
            or (holding.favoured not in (None, token))
        ):
            self._orders.aborts.append(token)
            self._run_again(holding, token)
            return
        self._tell(holding, token, report)
        if holding.gone or holding.pending is None:
            self._orders.aborts.append(token)
            return
        holding.atomic = token
        self._to_commit.pop(holding, None)
        self._atomics[token.actor_id] = holding
        self._orders.atomics.append((token, holding.send_off()))

    def _run_again(self, holding: Holding, token: StepToken) -> None:
        """Have an atomic attempt that is rolled back run once more, which counts as no attempt; when its turn comes."""
        holding.active[token.seq, token.attempt] = token
        start = holding.started[token.seq, token.attempt]
        if start.reruns + 1 >= _RERUNS and holding.favoured is None:
            holding.alone = token
        if not holding.reloading and holding.may_run_again(token):
            start.reruns += 1
            start.lock_state = holding.alone == token
            self._orders.starts.append(start)
        else:
            holding.restarts.append(token)

    def _atomic_refused(self, holding: Holding, sent: Pending, result: CommitResult) -> None:
        """The transaction of an atomic step was rolled back: what ran ahead is thrown away, the step runs again."""
        token = holding.atomic
        assert token is not None
        holding.atomic = None
        refused = result.outcome is Commit.REFUSED
        # What the database does not take (a constraint of the user's, say) is this attempt's failure.
        failure = StepReport(False, error=ErrorInfo("django.db.DatabaseError", result.error))
        sent.reports = [(t, failure if t == token else r) for t, r in sent.reports if refused or t != token]
        self._put_back(holding, sent)
        self._reload(holding)
        if not refused:
            self._run_again(holding, token)

    def _next_changes(self, holding: Holding) -> None:
        """Nothing is in the way any more: whose turn is it to change the state?"""
        waiting, holding.restarts = holding.restarts, []
        for token in waiting:
            if holding.is_active(token):
                self._run_again(holding, token)
        while holding.deferred and not holding.change_in_way and holding.favoured is None:
            token, report = holding.deferred.popleft()
            if not holding.is_active(token):
                continue
            assert report.effects is not None
            assert report.effects.state is not None
            # What was prepared before the other change was committed does not hold any more.
            holding.change_waits = (token, report)
            self._orders.remerges.append((token.actor_id, report.effects.state))

    def _tell(self, holding: Holding, token: StepToken, report: StepReport) -> None:
        holding.active.pop((token.seq, token.attempt), None)
        started = holding.started.get((token.seq, token.attempt))
        if started is not None:
            report.reruns = started.reruns
        effects = report.effects
        if effects is not None and effects.completes:
            holding.machine.completed_in_step([message for message, _ in effects.completes])

        def feed(machine: Machine) -> Turn:
            return machine.step_done(token.seq, token.attempt, report, self.now)

        pending = holding.next_item()
        pending.reports.append((token, report))
        if effects is not None:
            pending.add_effects(effects)
            if (
                (effects.events or effects.sends or effects.completes or effects.schedules)
                or effects.destroy
                or effects.state
            ):
                pending.must = True
        self._feed(holding, feed)
        if holding.pending is pending and not pending.must and pending.item.is_empty():
            holding.pending = None  # a late report that changed nothing
            self._settle(holding)

    def remerged(self, actor_id: UUID, change: StateChange, write: StateWrite | None, now: int) -> None:
        """The answer to :attr:`Orders.remerges`; None: both sides changed the same field.

        A change may be ordered to be merged twice, and be committed by the first answer: the second, made of a state
        that has the change already, is nobody's.
        """
        self._at(now)
        holding = self._held.get(actor_id)
        if holding is None or holding.reloading:
            return
        if holding.change_waits is not None:
            token, report = holding.change_waits
            assert report.effects is not None
            if report.effects.state is not change:
                return
            holding.change_waits = None
            holding.cautious = _CAUTIOUS if write is None else max(0, holding.cautious - 1)
            if holding.is_active(token):
                change.prepared = write
                self._tell(holding, token, _conflict(report) if write is None else report)
            self._settle(holding)
        elif holding.pending is not None and holding.pending.change is change:
            if write is None:
                holding.cautious = _CAUTIOUS
                self._reload(holding, conflict=True)
                return
            holding.pending.item.state = change.prepared = write
            self._must_commit(holding)

    def looked(self, answers: Iterable[Looked], now: int) -> None:
        """Messages, as :attr:`Orders.looks` asked."""
        self._at(now)
        for answer in answers:
            holding = self._held.get(answer.actor_id)
            if holding is None or not holding.looking:
                continue
            holding.looking = False
            self._feed(
                holding,
                lambda m, a=answer: m.messages(a.messages, a.names, a.complete, a.at, self.now),  # type: ignore[misc]
            )

    def child_begun(self, start: ChildStart, child_id: UUID | None, end: ChildEnd | None, now: int) -> None:
        """A child is there and waited for, or has ended already (or could not be created)."""
        self._at(now)
        holding = self._held.get(start.actor_id)
        if holding is None or holding.number != start.holding or not holding.children.knows(start.seq):
            return
        if end is not None:
            self._child_done(holding, start.seq, end)
        elif child_id is not None:
            self._read_ends(holding, holding.children.begun(start.seq, child_id))
            self._settle(holding)

    def children_ended(self, actor_id: UUID, ends: Mapping[UUID, ChildEnd], now: int) -> None:
        """Those of an actor's children that are over, as :attr:`Orders.child_looks` asked."""
        self._at(now)
        holding = self._held.get(actor_id)
        if holding is None or holding.reloading:
            return
        holding.children.read()
        for seq, child_id in holding.children.of(ends):
            if not holding.gone:
                self._child_done(holding, seq, ends[child_id])
        self._settle(holding)

    def _read_ends(self, holding: Holding, child_ids: list[UUID]) -> None:
        if child_ids:
            holding.children.reading()
            self._resting.pop(holding, None)
            self._orders.child_looks.append((holding.claimed.actor_id, child_ids))

    def _child_done(self, holding: Holding, seq: int, end: ChildEnd) -> None:
        holding.children.ended(seq)
        self._feed(holding, lambda machine: machine.child_done(seq, end.ok, end.output, end.error, self.now))

    def called(self, answers: Iterable[Called], now: int) -> None:
        """The calls for held actors, as :attr:`Orders.call_looks` asked."""
        self._at(now)
        for answer in answers:
            holding = self._held.get(answer.actor_id)
            if holding is None or holding.claimed.epoch != answer.epoch:
                continue
            holding.callers.looking = False
            if not answer.held:
                self._drop(holding)
                continue
            if not self.stopping:
                holding.callers.add(answer.calls)
                self._next_call(holding)
            self._settle(holding)

    def call_done(self, actor_id: UUID, epoch: int, call_id: int, now: int) -> None:
        """A call has ended, whatever became of it."""
        self._at(now)
        holding = self._held.get(actor_id)
        if holding is None or holding.claimed.epoch != epoch:
            return
        if holding.callers.done(call_id):
            self._look_for_calls(holding)
        self._next_call(holding)
        self._settle(holding)

    def leave_calls(self, now: int) -> None:
        """The worker cannot wait any longer for calls to end."""
        self._at(now)
        for holding in list(self._held.values()):
            if holding.callers:
                holding.callers.forget(running=True)
                self._settle(holding)

    def _next_call(self, holding: Holding) -> None:
        call = holding.callers.next()
        if call is not None:
            claimed = holding.claimed
            self._orders.calls.append(
                CallStart(claimed.actor_id, claimed.epoch, claimed.name, claimed.key, call)
            )

    def _look_for_calls(self, holding: Holding) -> None:
        held = holding.claimed.actor_id, holding.claimed.epoch
        if holding.callers.serves and not self.stopping and held not in self._orders.call_looks:
            holding.callers.looking = True
            self._orders.call_looks.append(held)

    def rolled_back(self, actor_id: UUID, entries: Sequence[Entry], now: int) -> None:
        """The rows to compensate, as :attr:`Orders.rollbacks` asked."""
        self._at(now)
        holding = self._held.get(actor_id)
        if holding is not None:
            self._feed(holding, lambda machine: machine.rollback_rows(entries, self.now))

    def rung(self, actor_ids: Iterable[UUID] | None, now: int) -> None:
        """There may be new messages for these actors; None: for any, every wait must look again."""
        self._at(now)
        for actor_id in list(self._held) if actor_ids is None else actor_ids:
            holding = self._held.get(actor_id)
            if holding is not None and not holding.reloading:
                self._feed(holding, lambda machine: machine.bell(self.now))
                here = not holding.gone
                if here and not holding.looking and (holding.children or holding.callers.serves):
                    self._look(holding, (), 0)
                self._look_for_calls(holding)

    def tick(self, now: int) -> None:
        """Time has passed."""
        self._at(now)
        while self._due and self._due[0][0] <= self.now:
            due, actor_id = heapq.heappop(self._due)
            holding = self._held.get(actor_id)
            if holding is None or holding.due != due or holding.reloading:
                continue
            holding.due = None
            self._feed(holding, lambda machine: machine.time(self.now))
        self._evict()

    def stop(self, now: int) -> None:
        """Start nothing more; what is at rest, and what comes to rest, is handed back."""
        self._at(now)
        self.stopping = True
        # Ordered and not fetched: they are not begun either. Where the lease is lost, somebody else may have run them.
        for start in self._orders.starts:
            holding = self._held.get(start.token.actor_id)
            if holding is not None and holding.is_active(start.token):
                del holding.active[start.token.seq, start.token.attempt]
        self._orders.starts.clear()
        self._try_next()
        for holding in list(self._held.values()):
            holding.callers.forget()
            self._settle(holding)

    # -- commits ---------------------------------------------------------------------------------------

    def committed(self, results: Iterable[CommitResult], now: int) -> None:
        """What became of the group that was ordered."""
        self._at(now)
        for result in results:
            holding = self._in_flight.pop(result.actor_id, None)
            if holding is not None:
                self._outcome(holding, result)

    def atomic_committed(self, token: StepToken, result: CommitResult, now: int) -> None:
        """What became of the transaction of an atomic step, as :attr:`Orders.atomics` asked."""
        self._at(now)
        holding = self._atomics.get(token.actor_id)
        if holding is not None and holding.atomic == token:
            del self._atomics[token.actor_id]
            self._outcome(holding, result)

    def _outcome(self, holding: Holding, result: CommitResult) -> None:
        if holding.gone or holding.sent is None:
            return
        sent, holding.sent = holding.sent, None
        if holding.atomic is not None and result.outcome is not Commit.OK:
            self._atomic_refused(holding, sent, result)
            return
        holding.atomic = None
        match result.outcome:
            case Commit.OK:
                self._acknowledged(holding, sent)
            case Commit.BUSY:
                holding.busy_wait = min(_BUSY_MOST, holding.busy_wait * 2 or _BUSY_FIRST)
                holding.busy_until = self.now + holding.busy_wait
                self._put_back(holding, sent)
                self._must_commit(holding)
            case Commit.CONFLICT:
                self._put_back(holding, sent)
                if sent.change is None:
                    self._refused(holding, result.error or "the state has another version")
                else:
                    self._orders.remerges.append((result.actor_id, sent.change))
            case Commit.STALE:
                # It belongs to somebody else, or moved on as nobody here has heard: whatever is stored tells.
                self._put_back(holding, sent)
                self._reload(holding)
            case Commit.REFUSED:
                self._put_back(holding, sent)
                self._refused(holding, result.error)

    def _put_back(self, holding: Holding, sent: Pending) -> None:
        if holding.pending is not None:
            sent.follow(holding.pending)
        holding.pending = sent

    def _acknowledged(self, holding: Holding, sent: Pending) -> None:
        item = sent.item
        holding.commit_no += 1
        for token, _ in sent.reports:
            holding.started.pop((token.seq, token.attempt), None)
        holding.busy_wait = holding.refusals = 0
        if item.takes or item.holds:
            holding.machine.committed([*item.takes, *(message for message, _ in item.holds)])
        if item.sends or item.schedules or item.is_news():
            self._orders.rings.append(item)
        if sent.failures:
            self._orders.errors += [holding.event(failure) for failure in sent.failures]
        if item.finish is not None or item.block is not None or item.destroy:
            self._drop(holding)
            return
        if sent.rollback_scan is not None:
            self._orders.rollbacks.append((item.actor_id, sent.rollback_scan))
        for order in sent.starts:
            if order.seq in holding.machine.running and not self.stopping:
                self._orders.starts.append(holding.start(order))
        for child in sent.children:
            if child.seq not in holding.machine.calls:
                continue
            # Also where the worker stops: what waits for a child that nobody has begun is not at rest.
            holding.children.begin(child.seq)
            if not self.stopping:
                self._orders.children.append(
                    ChildStart(item.actor_id, child.seq, holding.number, child.actor, child.key, child.input)
                )
        if item.sends and any(send.actor_id == item.actor_id for send in item.sends):
            self._feed(holding, lambda machine: machine.bell(self.now))
        self._settle(holding)
        self._tried(holding)

    def _refused(self, holding: Holding, error: str) -> None:
        """The database does not take it. Once more from what is stored; then the actor is set aside, alone."""
        holding.refusals += 1
        if holding.refusals <= 2:
            logger.warning(
                "a commit of %s %s was refused, trying again from what is stored: %s",
                holding.claimed.name,
                holding.claimed.key,
                error,
            )
            self._reload(holding)
            return
        info = ErrorInfo.from_exception(
            RivetError(f"the database refuses what the actor wants to store: {error}"), with_traceback=False
        )
        holding.pending = None
        item = holding.next_item().item
        item.block = (Blocked.UNREADABLE, holding.code)
        item.block_error = json.dumps({"error": info.to_dict()})
        holding.machine.keep_stored()
        self._orders.errors.append(self._unreadable_event(holding.claimed, info))
        self._must_commit(holding)

    def _reload(self, holding: Holding, *, conflict: bool = False) -> None:
        """Throw away what ran ahead and begin again from what is stored, with the reports that were refused."""
        reports = holding.pending.reports if holding.pending is not None else []
        if holding.change_waits is not None:
            holding.after_reload.append(holding.change_waits)
            holding.change_waits = None
        for token, report in reports:
            has_change = report.effects is not None and report.effects.state is not None
            holding.after_reload.append((token, _conflict(report) if conflict and has_change else report))
        holding.pending = None
        holding.reloading = True
        holding.looking = False
        self._to_commit.pop(holding, None)
        self._resting.pop(holding, None)
        self._orders.reloads.append((holding.claimed.actor_id, holding.claimed.epoch))

    # -- what all happenings share ---------------------------------------------------------------------

    def _at(self, now: int) -> None:
        if now > self.now:
            self.now = now

    def _is_current(self, due: int, actor_id: UUID) -> bool:
        holding = self._held.get(actor_id)
        return holding is not None and holding.due == due

    def _feed(
        self, holding: Holding, happening: Callable[[Machine], Turn], known: Collection[tuple[int, int]] = ()
    ) -> None:
        """Tell the machine, and note what it orders. ``known``: attempts that run already."""
        machine = holding.machine
        try:
            turn = happening(machine)
        except Exception as exc:
            logger.exception("the engine failed on %s %s", holding.claimed.name, holding.claimed.key)
            turn = Turn()
            self._broken(holding, exc)
            return
        for note in turn.notes:
            logger.info("%s %s: %s", holding.claimed.name, holding.claimed.key, note)
        if known:
            turn.starts = [order for order in turn.starts if (order.seq, order.attempt) not in known]
        for seq in turn.cancels:
            for key in [key for key in holding.active if key[0] == seq]:
                self._orders.cancels.append(holding.active.pop(key))
        if holding.children:
            holding.children.only(machine.calls)
        if turn.dirty or turn.must_commit or turn.takes:
            pending = holding.next_item()
            pending.add(turn, holding)
        if turn.starts and not self.stopping:
            self._orders.starts += [holding.start(order) for order in turn.starts if not order.durable]
        if turn.rollback_scan is not None:
            if turn.must_commit:
                # The rows to compensate may be in that commit: they are looked for once it is made.
                holding.next_item().rollback_scan = turn.rollback_scan
            else:
                self._orders.rollbacks.append((holding.claimed.actor_id, turn.rollback_scan))
        self._settle(holding)

    def _broken(self, holding: Holding, exc: Exception) -> None:
        """A fault of the engine, or a record it cannot make sense of: the actor is set aside alone."""
        self._drop(holding, cancel=True)
        self._unreadable(holding.claimed, holding.number, exc)

    def _settle(self, holding: Holding) -> None:
        """After anything happened to an actor: what next?"""
        if holding.gone or holding.reloading:
            return
        machine = holding.machine
        if holding.deferred or holding.restarts:
            self._next_changes(holding)
        if not machine.over and not holding.looking and not self.stopping:
            wanted = machine.wants_look()
            if wanted is not None:
                holding.looking = True
                self._look(holding, *wanted)
        due = machine.next_due
        if due is not None and due <= self.now and not machine.over:
            # Due already (it was, when the actor was taken up): before it could be let go again.
            self._feed(holding, lambda machine: machine.time(self.now))
            return
        if due is not None and holding.due != due:
            holding.due = due
            heapq.heappush(self._due, (due, holding.claimed.actor_id))
        if holding.pending is not None and (holding.pending.must or (self.stopping and holding.sent is None)):
            self._must_commit(holding)
        elif (
            self.stopping
            and not (holding.active or holding.callers)
            and holding.pending is None
            and holding.sent is None
        ):
            self._release(holding)
            return
        if holding.at_rest:
            self._resting.setdefault(holding, self.now)
            self._evict()
        else:
            self._resting.pop(holding, None)

    def _look(self, holding: Holding, names: tuple[str, ...] | None, limit: int) -> None:
        """Read queues. That takes the actor's wakes away, one of which may have told a child's end, or a call."""
        self._orders.looks.append(Look(holding.claimed.actor_id, names, limit, holding.claimed.epoch))
        self._read_ends(holding, holding.children.wakes_go())
        self._look_for_calls(holding)

    def _must_commit(self, holding: Holding) -> None:
        holding.next_item().must = True
        self._resting.pop(holding, None)
        self._to_commit.setdefault(holding)

    # -- actors go -------------------------------------------------------------------------------------

    def _evict(self) -> None:
        """Let go of actors that have been at rest for long, or are too many."""
        while self._resting:
            holding, since = next(iter(self._resting.items()))
            if len(self._resting) <= self.limits.max_parked and since + self.limits.evict_after > self.now:
                return
            self._release(holding)

    def _release(self, holding: Holding) -> None:
        machine = holding.machine
        due: int | None = machine.next_due
        inflight = None
        if machine.running or machine.rollback is not None or not holding.at_rest:
            # Not at rest: somebody must take it up at once. Starts that were recorded and not run do not count.
            for seq in machine.running:
                rec = machine.open.get(seq)
                if rec is not None and "z" in rec:
                    rec["z"] = max(0, rec["z"] - 1)
                    started = holding.started.get((seq, rec["a"]))
                    if started is not None and started.reruns:
                        rec["y"] = started.reruns  # the next worker goes on counting
            due, inflight = self.now, machine.inflight()
        elif machine.wants_look() is not None:
            due = self.now  # it waits for messages, and nobody has looked whether they are there already
        self._orders.releases.append(Release(holding.claimed.actor_id, holding.claimed.epoch, due, inflight))
        self._drop(holding, cancel=False)

    def _hand_back(self, holding: Holding, token: StepToken) -> None:
        holding.active.pop((token.seq, token.attempt), None)
        self._settle(holding)

    def _drop(self, holding: Holding, *, cancel: bool = True) -> None:
        actor_id = holding.claimed.actor_id
        if not holding.gone:
            holding.gone = True
            del self._held[actor_id]
            self._orders.gone.append((actor_id, holding.claimed.epoch))
        self._to_commit.pop(holding, None)
        self._in_flight.pop(actor_id, None)
        self._atomics.pop(actor_id, None)
        self._resting.pop(holding, None)
        if cancel:
            self._orders.cancels += holding.active.values()
        holding.machine.dispose()
        self._tried(holding)

    # -- orders ----------------------------------------------------------------------------------------

    def orders(self) -> Orders:
        """Everything to do now; at most one commit group, none while one is on its way."""
        orders, self._orders = self._orders, Orders()
        if not self._in_flight:
            orders.commits = self._group()
        return orders

    def take_atomics(self) -> Orders:
        """The answers to atomic steps alone; everything else stays for :meth:`orders`."""
        waiting = self._orders
        answers = Orders(atomics=waiting.atomics, aborts=waiting.aborts)
        waiting.atomics, waiting.aborts = [], []
        return answers

    def take_starts(self) -> list[StepStart]:
        """What may begin now, alone; everything else stays for :meth:`orders`."""
        starts, self._orders.starts = self._orders.starts, []
        return starts

    def _group(self) -> list[CommitItem]:
        group: list[CommitItem] = []
        size = 0
        for holding in list(self._to_commit):
            if holding.busy_until > self.now or holding.sent is not None or holding.runs_alone:
                continue
            if holding.pending is None:
                del self._to_commit[holding]
                continue
            item = holding.send_off()
            del self._to_commit[holding]
            self._in_flight[item.actor_id] = holding
            group.append(item)
            size += item.size()
            if len(group) >= self.limits.group_size or size >= self.limits.group_bytes:
                break
        group.sort(key=lambda item: item.actor_id)
        return group


def _conflict(report: StepReport) -> StepReport:
    """The report of an attempt whose change of the state could not be merged."""
    effects = report.effects
    refusal = effects.state.refusal if effects is not None and effects.state is not None else None
    error = (
        report.error
        or refusal
        or ErrorInfo(
            "rivet_workflows.exceptions.StateConflict",
            "an action changed the same field of the state while the step ran; for counters and lists use "
            "step.update(fn)",
            ("rivet_workflows.exceptions.StateConflict",),
        )
    )
    if effects is not None:
        effects.state, effects.sends, effects.completes, effects.destroy = None, [], [], False
        effects.schedules = []
    return StepReport(ok=False, error=error, conflict=refusal is None, effects=effects)


def _nothing() -> Program:
    async def run(_ctx: Any) -> None: ...

    return Program(run=run)
