"""The worker's core as replay mode runs it: whatever happens to an actor, a replay from the top is told it as well.

As if every commit had evicted the actor: a second machine is made from what is stored and told what happens next, and
what it orders must be what the coroutine orders that was left parked. A workflow that draws lots, reads a clock or
carries a local across iterations is found here, in its own tests, and not after the first restart of a worker. The
parked coroutine is never replaced, so it knows all that a replay has forgotten.

Adds nothing to the rules of :class:`~rivet_workflows.worker.core.Core`: it looks on.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any
from uuid import UUID

from rivet_workflows.engine import Machine, Turn
from rivet_workflows.engine.mailbox import Mailbox
from rivet_workflows.engine.program import Codec
from rivet_workflows.engine.replaylog import ReplayLog
from rivet_workflows.records import Claimed
from rivet_workflows.testing.compare import first_difference, orders, position
from rivet_workflows.testing.reorder import reordered
from rivet_workflows.worker import guard
from rivet_workflows.worker.core import Core
from rivet_workflows.worker.holding import Holding
from rivet_workflows.worker.orders import StepReport, StepToken

__all__ = ["NotDeterministic", "ReplayCore"]

#: How the engine says that a finished call was met with other arguments, and went on.
_OTHER_ARGUMENTS = " and is met with "

ADVICE = (
    "What a workflow does may depend on nothing but its input, its messages and what its steps gave back: after a "
    "crash or an eviction it runs again from the top. Clocks, random numbers and uuids: ctx.now(), ctx.random, "
    "ctx.uuid4(), or a step. Sets: iterate over sorted(…). What outlives an iteration: it.loop_state. Outside "
    "variables: do not change them in run."
)


class NotDeterministic(AssertionError):
    """A workflow that was replayed from its history did something else than when it went on."""

    def __init__(self, message: str, actor_id: UUID, actor_name: str) -> None:
        super().__init__(message)
        self.actor_id = actor_id
        self.actor_name = actor_name


class ReplayCore(Core):
    """A core that replays. ``load`` reads an actor that it holds from the store."""

    def __init__(self, *args: Any, load: Callable[[UUID, int], Claimed | None], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._load = load
        #: The first workflow found at fault.
        self.found: NotDeterministic | None = None
        self._replayed: Machine | None = None
        self._report: StepReport | None = None
        self._quiet = False

    def rung(self, actor_ids: Iterable[UUID] | None, now: int) -> None:
        """A bell alone makes no coroutine go on: nothing to compare."""
        self._quiet = True
        try:
            super().rung(actor_ids, now)
        finally:
            self._quiet = False

    def tell(self, holding: Holding, token: StepToken, report: StepReport) -> None:
        # Before the pending commit is begun, which says that what is stored is not the whole.
        replayed = self._replay(holding)
        if replayed is not None and report.effects is not None:
            replayed.completed_in_step([message for message, _ in report.effects.completes])
        self._replayed, self._report = replayed, report
        try:
            super().tell(holding, token, report)
        finally:
            self._replayed = self._report = None

    def feed(
        self, holding: Holding, happening: Callable[[Machine], Turn], known: Collection[tuple[int, int]] = ()
    ) -> None:
        replayed, self._replayed = self._replayed, None
        report, self._report = self._report, None
        if report is None and not self._quiet:
            replayed = self._replay(holding)
        if replayed is None:
            super().feed(holding, happening, known)
            return
        fresh = replayed

        def both(machine: Machine) -> Turn:
            turn = happening(machine)
            # Before the core takes the turn apart.
            its = orders(turn, machine), [] if machine.over else position(machine)
            with _own_value(report, self.codec):
                mine = orders(happening(fresh), fresh), [] if fresh.over else position(fresh)
            fresh.dispose()
            difference = first_difference(its[0], mine[0]) or first_difference(its[1], mine[1])
            if difference is not None:
                self._blame(holding, *difference)
            return turn

        super().feed(holding, both, known)

    # -- replaying

    def _replay(self, holding: Holding) -> Machine | None:
        """A machine that has come from the top to where the parked one waits; None where there is nothing to compare:
        the actor has never run, is over, or not all of it is stored yet."""
        parked = holding.machine
        if self.found is not None or parked.root is None or parked.rollback is not None:
            return None
        if parked.stopped or parked.over or parked.tasks.paused:
            return None
        if holding.pending is not None or holding.sent is not None:
            return None
        with _queries_allowed():
            claimed = self._load(holding.claimed.actor_id, holding.claimed.epoch)
        if claimed is None:
            return None  # Somebody else's by now: the next commit will be told.
        program = self.programs(claimed)
        program.run = reordered(program.run)
        # This start is no start of a worker's: it must not count as a try.
        fresh = Machine(program, claimed, self.codec, replace(parked.limits, max_starts=1 << 30))
        fresh.log = ReplayLog(fresh, None)
        turn = fresh.start(parked.now)
        _share_mail(parked.mailbox, fresh.mailbox)
        # What is on its way already is ordered again by a replay.
        turn.starts = [order for order in turn.starts if order.seq not in parked.running]
        turn.children = [order for order in turn.children if order.seq not in parked.calls]
        if self._differs(holding, parked, fresh, turn):
            fresh.dispose()
            return None
        return fresh

    def _differs(self, holding: Holding, parked: Machine, fresh: Machine, turn: Turn) -> bool:
        """Has the replay come to another place?"""
        notes = [note for note in turn.notes if _OTHER_ARGUMENTS in note]
        new = orders(turn, fresh)
        difference = first_difference(position(parked), position(fresh))
        if turn.set_aside is not None:
            difference = "waits where it stopped", f"is refused: {turn.set_aside.error.message}"
        elif notes:
            difference = "went on from there", notes[0].partition(": its recorded")[0]
        elif new:
            difference = (difference or ("nothing more", ""))[0], new[0].text
        if difference is not None:
            self._blame(holding, *difference)
        return difference is not None

    def _blame(self, holding: Holding, went_on: str, replayed: str) -> None:
        claimed = holding.claimed
        if self.found is None:
            self.found = NotDeterministic(
                f"the workflow of {claimed.name} {claimed.key} is not deterministic: replayed from its history it does "
                f"something else than when it went on.\n  went on:  {went_on}\n  replayed: {replayed}\n{ADVICE}",
                claimed.actor_id,
                claimed.name,
            )


def _share_mail(parked: Mailbox, fresh: Mailbox) -> None:
    """What the parked machine has seen in its queues and not taken yet; a replayed one would have to look again."""
    fresh._seen = [replace(seen, messages=list(seen.messages)) for seen in parked._seen]
    fresh._gone = parked._gone
    fresh._asked, fresh._rung = parked._asked, parked._rung


@contextmanager
def _queries_allowed() -> Iterator[None]:
    """The kit's own reading, on behalf of the core: not workflow code."""
    here = guard._here
    before, here.running = here.running, False
    try:
        yield
    finally:
        here.running = before


@contextmanager
def _own_value(report: StepReport | None, codec: Codec) -> Iterator[None]:
    """The step's value, decoded again: the first is the parked coroutine's to change."""
    if report is None or report.output is None:
        yield
        return
    before, report.value = report.value, codec.loads(report.output)
    try:
        yield
    finally:
        report.value = before
