"""One actor as a worker holds it: its machine, what is not committed yet, and what waits for that. Sans-IO.

The engine runs ahead of the database: a turn's rows, effects and starts are added up in a :class:`Pending` until they
are committed; only then are the functions called that it starts. When a commit is refused, what ran ahead is thrown
away, the machine is made again from what is stored, and the reports that were in the refused commit are told to it
once more.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field

from rivet_workflows.engine import Machine, Turn
from rivet_workflows.engine.turn import ChildOrder, Failure, StepOrder
from rivet_workflows.exceptions import ErrorInfo
from rivet_workflows.records import Blocked, Claimed, CommitItem, Finish, Outgoing
from rivet_workflows.worker.callers import NO_CALLERS, Callers
from rivet_workflows.worker.childwatch import ChildWatch
from rivet_workflows.worker.orders import Effects, ErrorEvent, StateChange, StepReport, StepStart, StepToken

#: What a turn and a commit call by the same name.
_OF_THE_ITEM = frozenset({"prunes", "takes", "holds", "unholds", "completes", "unanswered", "rolled_back"})


@dataclass(slots=True)
class Pending:
    """What goes out with the next commit of one actor, and what follows it."""

    item: CommitItem
    starts: list[StepOrder] = field(default_factory=list)
    children: list[ChildOrder] = field(default_factory=list)
    failures: list[Failure] = field(default_factory=list)
    #: The attempts whose ends this commit records, to be told again if it is refused.
    reports: list[tuple[StepToken, StepReport]] = field(default_factory=list)
    #: The state change among them; at most one per commit.
    change: StateChange | None = None
    #: Checkpoints whose rows are to be compensated, once those rows are all there.
    rollback_scan: list[tuple[int, str]] | None = None
    must: bool = False

    def add(self, turn: Turn, holding: Holding) -> None:
        """The orders of one more turn."""
        item = self.item
        if turn.more:
            self._add_more(turn)
        item.rows += turn.rows
        self.starts += [order for order in turn.starts if order.durable]
        if turn.outcome is not None:
            outcome = turn.outcome
            item.finish = Finish(outcome.lifecycle, outcome.at, outcome.output, outcome.error)
            self.starts.clear()
        if turn.set_aside is not None:
            item.block = (turn.set_aside.reason, holding.code)
            item.block_error = json.dumps({"error": turn.set_aside.error.to_dict()})
            self.starts.clear()
        self.must = self.must or turn.must_commit

    def _add_more(self, turn: Turn) -> None:
        item, more = self.item, turn.more
        if "prunes" in more:
            for prune in turn.prunes:
                # One statement cannot delete what it inserts: rows that never get there are left out.
                item.rows = [row for row in item.rows if not prune.covers(row)]
        for name in more:
            if name in _OF_THE_ITEM:
                getattr(item, name).extend(getattr(turn, name))
        if "sends" in more:
            item.sends += [Outgoing(item.actor_id, send.queue, send.body) for send in turn.sends]
        self._untangle()
        if "failures" in more:
            self.failures += turn.failures
        if "cancels" in more:
            cancelled = set(turn.cancels)
            self.starts = [order for order in self.starts if order.seq not in cancelled]
            self.children = [order for order in self.children if order.seq not in cancelled]
        if "children" in more:
            self.children += turn.children

    def _untangle(self) -> None:
        """A message that was held and let go, or held and completed, within one commit."""
        item = self.item
        if item.unholds and item.holds:
            both = set(item.unholds) & {message for message, _ in item.holds}
            item.holds = [hold for hold in item.holds if hold[0] not in both]
            item.unholds = [message for message in item.unholds if message not in both]
        if item.completes and item.holds:
            done = {message for message, _ in item.completes}
            item.holds = [hold for hold in item.holds if hold[0] not in done]

    def add_effects(self, effects: Effects) -> None:
        """What a step wants committed together with its record (D-12)."""
        item = self.item
        item.events += effects.events
        item.sends += effects.sends
        item.completes += effects.completes
        item.schedules += effects.schedules
        item.destroy = item.destroy or effects.destroy
        self._untangle()
        if effects.state is not None:
            self.change = effects.state
            item.state = effects.state.prepared

    def follow(self, later: Pending) -> None:
        """Put ``later`` behind this one: a commit that could not be made goes out together with the next."""
        mine, its = self.item, later.item
        for prune in its.prunes:
            mine.rows = [row for row in mine.rows if not prune.covers(row)]
        for name in ("rows", "prunes", "takes", "holds", "unholds", "completes", "unanswered"):
            getattr(mine, name).extend(getattr(its, name))
        for name in ("rolled_back", "sends", "events", "schedules"):
            getattr(mine, name).extend(getattr(its, name))
        self._untangle()
        mine.state, self.change = (
            (mine.state, self.change) if its.state is None else (its.state, later.change)
        )
        mine.finish, mine.block = its.finish or mine.finish, its.block or mine.block
        mine.block_error = its.block_error or mine.block_error
        mine.destroy = mine.destroy or its.destroy
        self.starts += later.starts
        self.children += later.children
        self.rollback_scan = later.rollback_scan or self.rollback_scan
        self.failures += later.failures
        self.reports += later.reports
        self.must = True


class Holding:
    """One held actor."""

    __slots__ = (
        "active",
        "after_reload",
        "alone",
        "atomic",
        "busy_until",
        "busy_wait",
        "callers",
        "cautious",
        "change_waits",
        "children",
        "claimed",
        "code",
        "commit_no",
        "deferred",
        "due",
        "gone",
        "id_text",
        "looking",
        "machine",
        "number",
        "pending",
        "refusals",
        "reloading",
        "restarts",
        "sent",
        "started",
    )

    def __init__(self, claimed: Claimed, machine: Machine, code: str, number: int) -> None:
        self.claimed = claimed
        self.id_text = str(claimed.actor_id)
        self.machine = machine
        #: Not held any more, or made anew.
        self.gone = False
        self.code = code
        #: Tells holdings of the same actor by the same worker apart.
        self.number = number
        self.commit_no = claimed.commit_no
        self.pending: Pending | None = None
        #: The commit that is on its way.
        self.sent: Pending | None = None
        #: Attempts that run now in this worker, by (seq, attempt).
        self.active: dict[tuple[int, int], StepToken] = {}
        #: The start orders of atomic attempts, to be given again when their transaction was rolled back.
        self.started: dict[tuple[int, int], StepStart] = {}
        #: The atomic attempt whose transaction the commit on its way belongs to.
        self.atomic: StepToken | None = None
        #: The atomic attempt that was rolled back so often that everything else of the actor makes way for it.
        self.alone: StepToken | None = None
        #: How many changes of the state are still looked at before anything runs ahead, as others change it too.
        self.cautious = 0
        self.children = ChildWatch()
        self.callers = Callers(True) if claimed.guest or machine.program.serves else NO_CALLERS
        #: Reports that wait until the state change before them is committed.
        self.deferred: list[tuple[StepToken, StepReport]] = []
        #: A change that is being merged, with the report it belongs to; None in the report: it is in ``sent``.
        self.change_waits: tuple[StepToken, StepReport] | None = None
        #: Reports to be told again once the machine has been made anew.
        self.after_reload: list[tuple[StepToken, StepReport]] = []
        self.reloading = False
        #: Atomic attempts that wait to run again: for the machine to be made anew, or for their turn.
        self.restarts: list[StepToken] = []
        self.looking = False
        self.refusals = 0
        self.busy_until = 0
        self.busy_wait = 0
        #: The due time that is in the core's heap for it.
        self.due: int | None = None

    @property
    def actor_id(self) -> object:
        return self.claimed.actor_id

    def next_item(self) -> Pending:
        """The pending commit, begun if there is none."""
        if self.pending is None:
            claimed, machine = self.claimed, self.machine
            self.pending = Pending(
                CommitItem(claimed.actor_id, claimed.epoch, self.commit_no, machine.next_seq, "")
            )
        return self.pending

    def send_off(self) -> CommitItem:
        """Take the pending commit for a group; its position is that of now."""
        pending = self.pending or self.next_item()
        item = pending.item
        item.commit_no = self.commit_no
        item.inflight, item.next_seq = self.machine.inflight(), self.machine.next_seq
        self.sent, self.pending = pending, None
        return item

    @property
    def at_rest(self) -> bool:
        """Nothing of it runs, waits for a commit, or is being read: it may be let go."""
        return (
            self.pending is None
            and self.sent is None
            and not self.active
            and not self.deferred
            and not self.children.busy
            and not self.callers
            and self.change_waits is None
            and not self.looking
            and not self.reloading
            and self.machine.at_rest
            and self.machine.rollback is None
        )

    # -- who may change the state next

    def is_active(self, token: StepToken) -> bool:
        """Does the end of this attempt still matter? It does not once it was cancelled."""
        return self.active.get((token.seq, token.attempt)) == token

    @property
    def change_in_way(self) -> bool:
        """A change of the state is being merged or committed; there is one at a time."""
        return self.change_waits is not None or any(
            p is not None and p.change is not None for p in (self.pending, self.sent)
        )

    @property
    def favoured(self) -> StepToken | None:
        """:attr:`alone`, as long as that attempt runs or is to run."""
        if self.alone is not None and not self.is_active(self.alone):
            self.alone = None
        return self.alone

    @property
    def runs_alone(self) -> bool:
        """The favoured attempt runs now: what else there is to commit goes out with it."""
        return self.favoured is not None and self.alone not in self.restarts

    def may_run_again(self, token: StepToken) -> bool:
        """The favoured attempt waits until nothing can be in its way, and other atomic ones for it."""
        if self.favoured is None:
            return True
        return self.alone == token and self.sent is None and not self.change_in_way

    def token(self, order: StepOrder) -> StepToken:
        claimed = self.claimed
        return StepToken(claimed.actor_id, claimed.epoch, order.seq, order.attempt, self.number)

    def start(self, order: StepOrder) -> StepStart:
        """The order to call a step's function, for the shell."""
        claimed = self.claimed
        token = self.token(order)
        self.active[order.seq, order.attempt] = token
        key = f"{self.id_text}:{order.seq}"
        if order.is_rollback:
            key += ":rollback"
        elif order.options.ephemeral:
            # Its number is not stored yet: after a crash another call may get it.
            key += f":{self.machine.place(order.seq)}"
        start = StepStart(
            token=token,
            actor_name=claimed.name,
            key=claimed.key,
            name=order.name,
            function=order.function,
            args=order.args,
            kwargs=order.kwargs,
            options=order.options,
            idempotency_key=key,
            input=claimed.input,
            is_rollback=order.is_rollback,
            remaining_retries=order.remaining_retries,
        )
        if order.options.atomic:
            start.reruns = self.machine.open.get(order.seq, {}).get("y", 0)
            self.started[order.seq, order.attempt] = start
        return start

    def event(self, failure: Failure) -> ErrorEvent:
        """A failure as ``on_error`` and the log get it."""
        claimed = self.claimed
        return ErrorEvent(
            claimed.actor_id,
            claimed.name,
            claimed.key,
            failure.source,
            failure.error,
            failure.step_name,
            failure.attempt,
            failure.max_retries,
            failure.remaining_retries,
            failure.will_retry,
            failure.retry_delay,
            failure.retry_at,
            None if failure.set_aside is None else failure.set_aside.reason,
        )


def set_aside_event(claimed: Claimed, error: ErrorInfo, reason: Blocked) -> ErrorEvent:
    """The actor is set aside by the worker, not by its own workflow."""
    event = ErrorEvent(claimed.actor_id, claimed.name, claimed.key, "workflow", error)
    event.set_aside = reason.reason
    return event
