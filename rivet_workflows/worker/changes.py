"""Who changes an actor's state next: changes that are merged one after the other, and atomic steps. Sans-IO; part of
the core.

A change is prepared in the step's own thread and stays valid as long as nobody else has changed the state. One that is
not, or that others are likely to get in the way of, is compared with the stored state before anything runs ahead of it
(D-13). An atomic step's transaction takes along all that its actor has to commit; when it is rolled back the function
runs again, and after some times everything else of the actor makes way for it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING
from uuid import UUID

from rivet_workflows.exceptions import ErrorInfo
from rivet_workflows.records import Commit, CommitResult, StateWrite
from rivet_workflows.worker.holding import Holding, Pending
from rivet_workflows.worker.orders import StateChange, StepReport, StepToken

if TYPE_CHECKING:
    from rivet_workflows.worker.core import Core

#: Times that an atomic step may be rolled back and run again before the others make way and it locks the state (D-13).
_RERUNS = 5
#: Changes of a state that are compared with the stored one before anything runs ahead, after one that was lost: what
#: has run ahead is thrown away in a conflict, and the actor's whole history read again.
_CAUTIOUS = 100


class Changes:
    """The ends of attempts that change the state or are atomic, in their order."""

    def __init__(self, core: Core) -> None:
        self._core = core
        #: Actors whose commit is made inside an atomic step's transaction; nobody else waits for that.
        self._atomics: dict[UUID, Holding] = {}

    def forget(self, actor_id: UUID) -> None:
        self._atomics.pop(actor_id, None)

    def ended(self, holding: Holding, token: StepToken, report: StepReport) -> None:
        """An attempt that is not atomic: told to the machine as soon as its change, if any, can be committed."""
        change = report.effects.state if report.effects else None
        if change is not None and (holding.change_in_way or holding.deferred or holding.favoured is not None):
            holding.deferred.append((token, report))
            return
        if change is not None and (change.prepared is None or holding.cautious):
            holding.change_waits = (token, report)
            self._core.ordered.remerges.append((token.actor_id, change))
            return
        self._core.tell(holding, token, report)

    def merged(self, holding: Holding, change: StateChange, write: StateWrite | None) -> None:
        """A change as it can be written; None: both sides changed the same field.

        A change may be ordered to be merged twice, and be committed by the first answer: the second, made of a state
        that has the change already, is nobody's.
        """
        if holding.change_waits is not None:
            token, report = holding.change_waits
            assert report.effects is not None
            if report.effects.state is not change:
                return
            holding.change_waits = None
            holding.cautious = _CAUTIOUS if write is None else max(0, holding.cautious - 1)
            if holding.is_active(token):
                change.prepared = write
                self._core.tell(holding, token, conflicting(report) if write is None else report)
            self._core.settle(holding)
        elif holding.pending is not None and holding.pending.change is change:
            if write is None:
                holding.cautious = _CAUTIOUS
                self._core.commits.reload(holding, conflict=True)
                return
            holding.pending.item.state = change.prepared = write
            self._core.commits.must(holding)

    def next(self, holding: Holding) -> None:
        """Nothing is in the way any more: whose turn is it to change the state?"""
        waiting, holding.restarts = holding.restarts, []
        for token in waiting:
            if holding.is_active(token):
                self.run_again(holding, token)
        while holding.deferred and not holding.change_in_way and holding.favoured is None:
            token, report = holding.deferred.pop(0)
            if not holding.is_active(token):
                continue
            assert report.effects is not None
            assert report.effects.state is not None
            # What was prepared before the other change was committed does not hold any more.
            holding.change_waits = (token, report)
            self._core.ordered.remerges.append((token.actor_id, report.effects.state))

    def atomic_ended(self, holding: Holding, token: StepToken, report: StepReport) -> None:
        """An atomic step's function has returned; everything the actor has pending goes out in its transaction."""
        change = report.effects.state if report.effects else None
        if (
            holding.reloading
            or holding.sent is not None
            or (change is not None and holding.change_in_way)
            or (holding.favoured not in (None, token))
        ):
            self._core.ordered.aborts.append(token)
            self.run_again(holding, token)
            return
        self._core.tell(holding, token, report)
        if holding.gone or holding.pending is None:
            self._core.ordered.aborts.append(token)
            return
        holding.atomic = token
        self._core.commits.forget(holding)
        self._atomics[token.actor_id] = holding
        self._core.ordered.atomics.append((token, holding.send_off()))

    def run_again(self, holding: Holding, token: StepToken) -> None:
        """Have an atomic attempt that is rolled back run once more, which counts as no attempt; when its turn comes."""
        holding.active[token.seq, token.attempt] = token
        start = holding.started[token.seq, token.attempt]
        if self._core.lost and not holding.reloading:
            start.reruns += 1
            self._core.hand_back(holding, token)
            return
        if start.reruns + 1 >= _RERUNS and holding.favoured is None:
            holding.alone = token
        if not holding.reloading and holding.may_run_again(token):
            start.reruns += 1
            start.lock_state = holding.alone == token
            self._core.ordered.starts.append(start)
        else:
            holding.restarts.append(token)

    def refused(self, holding: Holding, sent: Pending, result: CommitResult) -> None:
        """The transaction of an atomic step was rolled back: what ran ahead is thrown away, the step runs again."""
        token = holding.atomic
        assert token is not None
        holding.atomic = None
        refused = result.outcome is Commit.REFUSED
        # What the database does not take (a constraint of the user's, say) is this attempt's failure.
        failure = StepReport(False, error=ErrorInfo("django.db.DatabaseError", result.error))
        sent.reports = [(t, failure if t == token else r) for t, r in sent.reports if refused or t != token]
        self._core.commits.put_back(holding, sent)
        self._core.commits.reload(holding)
        if not refused:
            self.run_again(holding, token)

    def atomic_committed(self, token: StepToken, result: CommitResult) -> None:
        """What became of the transaction of an atomic step."""
        holding = self._atomics.get(token.actor_id)
        if holding is not None and holding.atomic == token:
            del self._atomics[token.actor_id]
            self._core.commits.outcome(holding, result)


def conflicting(report: StepReport) -> StepReport:
    """The report of an attempt whose change of the state could not be merged."""
    effects = report.effects
    refusal = effects.state.refusal if effects is not None and effects.state is not None else None
    error = (
        report.error
        or refusal
        or ErrorInfo(
            "rivet_workflows.exceptions.StateConflict",
            "an action, or a step of another branch, changed the same field of the state while the step ran; for "
            "counters and lists use step.update(fn)",
            ("rivet_workflows.exceptions.StateConflict",),
        )
    )
    if effects is not None:
        effects.state, effects.sends, effects.completes, effects.destroy = None, [], [], False
        effects.schedules = []
    return StepReport(ok=False, error=error, conflict=refusal is None, effects=effects)
