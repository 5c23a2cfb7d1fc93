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
    CommitItem,
    CommitResult,
    Entry,
    Look,
    Looked,
    Release,
    StateWrite,
)
from rivet_workflows.worker.changes import Changes
from rivet_workflows.worker.commits import Commits
from rivet_workflows.worker.holding import Holding, set_aside_event
from rivet_workflows.worker.orders import (
    CallStart,
    ChildEnd,
    ChildStart,
    Orders,
    Overran,
    StateChange,
    StepReport,
    StepStart,
    StepToken,
)
from rivet_workflows.worker.trials import SUSPICIOUS, Trials

logger = logging.getLogger("rivet_workflows.worker")

Programs = Callable[[Claimed], Program]


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


def _unwatched(happening: Callable[[Machine], Turn], machine: Machine) -> Turn:
    return happening(machine)


class Core:
    """See the module. Every method that is told something takes ``now``, the database's time."""

    def __init__(
        self,
        worker_id: int,
        programs: Programs,
        codec: Codec,
        limits: CoreLimits | None = None,
        watch: Callable[[Callable[[Machine], Turn], Machine], Turn] = _unwatched,
    ) -> None:
        """``watch`` calls workflow code, and raises Overran where that was made to end."""
        self.worker_id = worker_id
        self.programs = programs
        self.codec = codec
        self.limits = limits or CoreLimits()
        self.now = 0
        self._watch = watch
        self._held: dict[UUID, Holding] = {}
        self._number = 0
        self._due: list[tuple[int, UUID]] = []
        #: Actors at rest and since when, longest first.
        self._resting: OrderedDict[Holding, int] = OrderedDict()
        #: Actors whose step went down with its worker more than once.
        self._trials = Trials()
        #: What the shell has not fetched yet.
        self.ordered = Orders()
        self.stopping = self.lost = False
        self.commits = Commits(self)
        self.changes = Changes(self)

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
        busy = self.commits or self._trials or self.ordered
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
        times += self.commits.busy_until()
        return min(times, default=None)

    def holds(self, actor_id: UUID) -> bool:
        return actor_id in self._held or actor_id in self._trials

    @property
    def giving_back(self) -> set[UUID]:
        """Actors that were let go of and that the database still calls ours, as nobody has fetched the order."""
        return {release.actor_id for release in self.ordered.releases}

    # -- actors come -----------------------------------------------------------------------------------

    def loaded(self, claimed: Iterable[Claimed], now: int) -> None:
        """Actors that were claimed, taken over, or loaded again as :attr:`Orders.reloads` asked."""
        self._at(now)
        for one in claimed:
            before = self._held.get(one.actor_id)
            if before is not None and before.claimed.epoch == one.epoch and before.reloading:
                self.commits.made_again(before, one)
            else:
                if before is not None:
                    self.drop(before)
                self._trials.forget(one.actor_id)
                if not self._trials.admit(one):
                    self._take(one)
        self._try_next()

    def _try_next(self) -> None:
        """Take up the next actor that is tried apart, if none is."""
        if self.stopping:
            for waiting in self._trials.give_up():
                self.ordered.releases.append(Release(waiting.actor_id, waiting.epoch, self.now))
            return
        claimed = self._trials.next()
        if claimed is not None:
            self._take(claimed)
            if claimed.actor_id not in self._held:
                self._trials.current = None
                self._try_next()

    def tried(self, holding: Holding) -> None:
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

    def missing(self, held: Iterable[tuple[UUID, int]], now: int) -> None:
        """Actors that a reload did not find any more in these epochs: they belong to somebody else, or are this
        worker's again in another."""
        self._at(now)
        for actor_id, epoch in held:
            holding = self._held.get(actor_id)
            if holding is not None and holding.claimed.epoch == epoch:
                logger.info("%s %s belongs to somebody else now", holding.claimed.name, holding.claimed.key)
                self.drop(holding)

    def _take(self, claimed: Claimed) -> None:
        self._number += 1
        holding = self.make(claimed, self._number)
        if holding is not None:
            self.hold(holding)
            self._look_for_calls(holding)
            self._begin(holding)

    def make(self, claimed: Claimed, number: int) -> Holding | None:
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
        # The machine has what it needs of them, and gives that up as the code meets it.
        claimed.entries = []
        return Holding(claimed, machine, program.code, number)

    def _unreadable(self, claimed: Claimed, number: int, exc: BaseException) -> None:
        """Its rows cannot be understood: set aside alone, the others go on."""
        self._set_aside(claimed, number, exc, Blocked.UNREADABLE)

    def _set_aside(self, claimed: Claimed, number: int, exc: BaseException, reason: Blocked) -> None:
        """What is stored stays to the letter. Where more is stored by now than ``claimed`` says, the commit is called
        stale, the actor is read again, and whatever was found is found once more."""
        empty = replace(claimed, key='[""]', inflight="", entries=[])
        holding = Holding(claimed, Machine(_nothing(), empty, self.codec, self.limits.engine), "", number)
        holding.next_item().item.block = (reason, "")
        holding.machine.keep_stored(claimed.inflight)
        error = ErrorInfo.from_exception(exc)
        holding.next_item().item.block_error = json.dumps({"error": error.to_dict()})
        self.ordered.errors.append(set_aside_event(claimed, error, reason))
        self.hold(holding)
        self.commits.must(holding)

    def hold(self, holding: Holding) -> None:
        """It is the one that is held of its actor from now on."""
        self._held[holding.claimed.actor_id] = holding

    def stirs(self, holding: Holding) -> None:
        """It is not at rest."""
        self._resting.pop(holding, None)

    def _begin(self, holding: Holding) -> None:
        if holding.claimed.guest:
            self.settle(holding)
        else:
            self.feed(holding, lambda machine: machine.start(self.now))

    # -- happenings ------------------------------------------------------------------------------------

    def step_done(self, token: StepToken, report: StepReport, now: int) -> None:
        """An attempt ended."""
        self._at(now)
        holding = self._held.get(token.actor_id)
        if holding is None or not holding.is_active(token):
            if report.atomic:
                self.ordered.aborts.append(token)
            return
        if report.atomic:
            self.changes.atomic_ended(holding, token, report)
            return
        if holding.reloading:
            holding.after_reload.append((token, report))
            return
        if report.abandoned:
            self.hand_back(holding, token)
            return
        if report.lost:
            self.changes.run_again(holding, token)
            return
        self.changes.ended(holding, token, report)

    def tell(self, holding: Holding, token: StepToken, report: StepReport) -> None:
        """The end of an attempt goes to the machine, and what it changed into the next commit."""
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
        self.feed(holding, feed)
        if holding.pending is pending and not pending.must and pending.item.is_empty():
            holding.pending = None  # a late report that changed nothing
            self.settle(holding)

    def remerged(self, actor_id: UUID, change: StateChange, write: StateWrite | None, now: int) -> None:
        """The answer to :attr:`Orders.remerges`; None: both sides changed the same field."""
        self._at(now)
        holding = self._held.get(actor_id)
        if holding is not None and not holding.reloading:
            self.changes.merged(holding, change, write)

    def looked(self, answers: Iterable[Looked], now: int) -> None:
        """Messages, as :attr:`Orders.looks` asked."""
        self._at(now)
        for answer in answers:
            holding = self._held.get(answer.actor_id)
            if holding is None or not holding.looking:
                continue
            holding.looking = False
            self.feed(
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
            self.settle(holding)

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
        self.settle(holding)

    def _read_ends(self, holding: Holding, child_ids: list[UUID]) -> None:
        if child_ids:
            holding.children.reading()
            self.stirs(holding)
            self.ordered.child_looks.append((holding.claimed.actor_id, child_ids))

    def _child_done(self, holding: Holding, seq: int, end: ChildEnd) -> None:
        holding.children.ended(seq)
        self.feed(holding, lambda machine: machine.child_done(seq, end.ok, end.output, end.error, self.now))

    def called(self, answers: Iterable[Called], now: int) -> None:
        """The calls for held actors, as :attr:`Orders.call_looks` asked."""
        self._at(now)
        for answer in answers:
            holding = self._held.get(answer.actor_id)
            if holding is None or holding.claimed.epoch != answer.epoch:
                continue
            holding.callers.looking = False
            if not answer.held:
                self.drop(holding)
                continue
            if not self.stopping:
                holding.callers.add(answer.calls)
                self._next_call(holding)
            self.settle(holding)

    def call_done(self, actor_id: UUID, epoch: int, call_id: int, now: int) -> None:
        """A call has ended, whatever became of it."""
        self._at(now)
        holding = self._held.get(actor_id)
        if holding is None or holding.claimed.epoch != epoch:
            return
        if holding.callers.done(call_id):
            self._look_for_calls(holding)
        self._next_call(holding)
        self.settle(holding)

    def leave_calls(self, now: int) -> None:
        """The worker cannot wait any longer for calls to end."""
        self._at(now)
        for holding in list(self._held.values()):
            if holding.callers:
                holding.callers.forget(running=True)
                self.settle(holding)

    def _next_call(self, holding: Holding) -> None:
        call = holding.callers.next()
        if call is not None:
            claimed = holding.claimed
            self.ordered.calls.append(
                CallStart(claimed.actor_id, claimed.epoch, claimed.name, claimed.key, call)
            )

    def _look_for_calls(self, holding: Holding) -> None:
        held = holding.claimed.actor_id, holding.claimed.epoch
        if holding.callers.serves and not self.stopping and held not in self.ordered.call_looks:
            holding.callers.looking = True
            self.ordered.call_looks.append(held)

    def rolled_back(self, actor_id: UUID, entries: Sequence[Entry], now: int) -> None:
        """The rows to compensate, as :attr:`Orders.rollbacks` asked."""
        self._at(now)
        holding = self._held.get(actor_id)
        if holding is not None:
            self.feed(holding, lambda machine: machine.rollback_rows(entries, self.now))

    def rung(self, actor_ids: Iterable[UUID] | None, now: int) -> None:
        """There may be new messages for these actors; None: for any, every wait must look again."""
        self._at(now)
        for actor_id in list(self._held) if actor_ids is None else actor_ids:
            holding = self._held.get(actor_id)
            if holding is not None and not holding.reloading:
                self.feed(holding, lambda machine: machine.bell(self.now))
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
            self.feed(holding, lambda machine: machine.time(self.now))
        self._evict()

    def stop(self, now: int, *, lost: bool = False) -> None:
        """Start nothing more; what is at rest, and what comes to rest, is handed back. ``lost``: so is the lease, and
        others may have run meanwhile what was to run here again."""
        self._at(now)
        self.lost = self.lost or lost
        self.stopping = True
        # Ordered and not fetched: they are not begun either. Where the lease is lost, somebody else may have run them.
        for start in self.ordered.starts:
            holding = self._held.get(start.token.actor_id)
            if holding is not None and holding.is_active(start.token):
                del holding.active[start.token.seq, start.token.attempt]
        self.ordered.starts.clear()
        self._try_next()
        for holding in list(self._held.values()):
            holding.callers.forget()
            self.settle(holding)

    # -- commits ---------------------------------------------------------------------------------------

    def committed(self, results: Iterable[CommitResult], now: int) -> None:
        """What became of the group that was ordered."""
        self._at(now)
        self.commits.done(results)

    def atomic_committed(self, token: StepToken, result: CommitResult, now: int) -> None:
        """What became of the transaction of an atomic step, as :attr:`Orders.atomics` asked."""
        self._at(now)
        self.changes.atomic_committed(token, result)

    # -- what all happenings share ---------------------------------------------------------------------

    def _at(self, now: int) -> None:
        if now > self.now:
            self.now = now

    def _is_current(self, due: int, actor_id: UUID) -> bool:
        holding = self._held.get(actor_id)
        return holding is not None and holding.due == due

    def feed(
        self, holding: Holding, happening: Callable[[Machine], Turn], known: Collection[tuple[int, int]] = ()
    ) -> None:
        """Tell the machine, and note what it orders. ``known``: attempts that run already."""
        machine = holding.machine
        try:
            turn = self._watch(happening, machine)
        except Overran:
            self._overran(holding)
            return
        except Exception as exc:
            logger.exception("the engine failed on %s %s", holding.claimed.name, holding.claimed.key)
            turn = Turn()
            self._broken(holding, exc)
            return
        if "notes" in turn.more:
            for note in turn.notes:
                logger.info("%s %s: %s", holding.claimed.name, holding.claimed.key, note)
        if "cancels" in turn.more:
            for seq in turn.cancels:
                for key in [key for key in holding.active if key[0] == seq]:
                    self.ordered.cancels.append(holding.active.pop(key))
        if known:
            turn.starts = [order for order in turn.starts if (order.seq, order.attempt) not in known]
        if holding.children:
            holding.children.only(machine.calls)
        if turn.dirty or turn.must_commit or "takes" in turn.more:
            (holding.pending or holding.next_item()).add(turn, holding)
        if turn.starts and not self.stopping:
            self.ordered.starts += [holding.start(order) for order in turn.starts if not order.durable]
        if turn.rollback_scan is not None:
            if turn.must_commit:
                # The rows to compensate may be in that commit: they are looked for once it is made.
                holding.next_item().rollback_scan = turn.rollback_scan
            else:
                self.ordered.rollbacks.append((holding.claimed.actor_id, turn.rollback_scan))
        self.settle(holding)

    def _overran(self, holding: Holding) -> None:
        """Its code computes for ever, or as good as: set aside alone, before it holds up everybody again."""
        error = RivetError(
            "run computed for longer than RUN_TIMEOUT and awaited nothing, while all other actors of its worker waited "
            "(the log shows where): move the work into a step, deploy that, then recover()"
        )
        self.drop(holding)
        self._set_aside(holding.claimed, holding.number, error, Blocked.POISONED)

    def _broken(self, holding: Holding, exc: Exception) -> None:
        """A fault of the engine, or a record it cannot make sense of: the actor is set aside alone."""
        self.drop(holding, cancel=True)
        self._unreadable(holding.claimed, holding.number, exc)

    def settle(self, holding: Holding) -> None:
        """After anything happened to an actor: what next?"""
        if holding.gone or holding.reloading:
            return
        machine = holding.machine
        if holding.deferred or holding.restarts:
            self.changes.next(holding)
        if not machine.over and not holding.looking and not self.stopping:
            wanted = machine.wants_look()
            if wanted is not None:
                holding.looking = True
                self._look(holding, *wanted)
        due = machine.next_due
        if due is not None and due <= self.now and not machine.over:
            # Due already (it was, when the actor was taken up): before it could be let go again.
            self.feed(holding, lambda machine: machine.time(self.now))
            return
        if due is not None and holding.due != due:
            holding.due = due
            heapq.heappush(self._due, (due, holding.claimed.actor_id))
        if holding.pending is not None and (holding.pending.must or (self.stopping and holding.sent is None)):
            self.commits.must(holding)
            return
        if (
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
            self.stirs(holding)

    def _look(self, holding: Holding, names: tuple[str, ...] | None, limit: int) -> None:
        """Read queues. That takes the actor's wakes away, one of which may have told a child's end, or a call."""
        self.ordered.looks.append(Look(holding.claimed.actor_id, names, limit, holding.claimed.epoch))
        self._read_ends(holding, holding.children.wakes_go())
        self._look_for_calls(holding)

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
        self.ordered.releases.append(Release(holding.claimed.actor_id, holding.claimed.epoch, due, inflight))
        self.drop(holding, cancel=False)

    def hand_back(self, holding: Holding, token: StepToken) -> None:
        """The attempt does not run here any more, and counts as if it had never been begun."""
        holding.active.pop((token.seq, token.attempt), None)
        self.settle(holding)

    def drop(self, holding: Holding, *, cancel: bool = True) -> None:
        actor_id = holding.claimed.actor_id
        if not holding.gone:
            holding.gone = True
            del self._held[actor_id]
            self.ordered.gone.append((actor_id, holding.claimed.epoch))
        self.commits.forget(holding)
        self.changes.forget(actor_id)
        self.stirs(holding)
        if cancel:
            self.ordered.cancels += holding.active.values()
        holding.machine.dispose()
        self.tried(holding)

    # -- orders ----------------------------------------------------------------------------------------

    def orders(self) -> Orders:
        """Everything to do now; at most one commit group, none while one is on its way."""
        orders, self.ordered = self.ordered, Orders()
        orders.commits = self.take_commits()
        return orders

    def take_commits(self) -> list[CommitItem]:
        """The next group alone, none while one is on its way."""
        return self.commits.take_group()

    def take_atomics(self) -> Orders:
        """The answers to atomic steps alone; everything else stays for :meth:`orders`."""
        waiting = self.ordered
        answers = Orders(atomics=waiting.atomics, aborts=waiting.aborts)
        waiting.atomics, waiting.aborts = [], []
        return answers

    def take_starts(self) -> list[StepStart]:
        """What may begin now, alone; everything else stays for :meth:`orders`."""
        starts, self.ordered.starts = self.ordered.starts, []
        return starts


def _nothing() -> Program:
    async def run(_ctx: Any) -> None: ...

    return Program(run=run)
