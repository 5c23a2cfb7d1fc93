"""What the held actors want committed, and what comes of it. Sans-IO; part of the core.

The engine runs ahead of the database. A group is on its way at a time; whoever has more to commit meanwhile is in the
next. What was refused is put back and offered again, or thrown away with all that ran ahead of it, and the machine is
made again from what is stored.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING
from uuid import UUID

from rivet_workflows.exceptions import ErrorInfo, RivetError
from rivet_workflows.records import Blocked, Claimed, Commit, CommitItem, CommitResult
from rivet_workflows.worker.changes import conflicting
from rivet_workflows.worker.holding import Holding, Pending, set_aside_event
from rivet_workflows.worker.orders import ChildStart

if TYPE_CHECKING:
    from rivet_workflows.worker.core import Core

logger = logging.getLogger("rivet_workflows.worker")

#: Microseconds after which an actor whose row was locked is offered again: doubled each time, up to the second.
_BUSY_FIRST, _BUSY_MOST = 2_000, 200_000


class Commits:
    """Whose commit is to be made, and whose is being made."""

    def __init__(self, core: Core) -> None:
        self._core = core
        #: Actors with a commit to make, in the order in which they asked.
        self._line: dict[Holding, None] = {}
        self._in_flight: dict[UUID, Holding] = {}

    def __bool__(self) -> bool:
        return bool(self._line or self._in_flight)

    def busy_until(self) -> Iterator[int]:
        """When those whose rows were locked are offered again."""
        return (holding.busy_until for holding in self._line if holding.busy_until > self._core.now)

    def forget(self, holding: Holding) -> None:
        """It is not held any more, or goes out another way."""
        self._line.pop(holding, None)
        if holding.gone:
            self._in_flight.pop(holding.claimed.actor_id, None)

    def done(self, results: Iterable[CommitResult]) -> None:
        """What became of the group."""
        for result in results:
            holding = self._in_flight.pop(result.actor_id, None)
            if holding is not None:
                self.outcome(holding, result)

    def must(self, holding: Holding) -> None:
        """It has something that must not wait for the next reason to commit."""
        (holding.pending or holding.next_item()).must = True
        self._core.stirs(holding)
        self._line.setdefault(holding)

    def take_group(self) -> list[CommitItem]:
        """The next group, which is on its way then; none while one is."""
        if self._in_flight:
            return []
        group: list[CommitItem] = []
        size = 0
        for holding in list(self._line):
            if holding.busy_until > self._core.now or holding.sent is not None or holding.runs_alone:
                continue
            if holding.pending is None:
                del self._line[holding]
                continue
            item = holding.send_off()
            del self._line[holding]
            self._in_flight[item.actor_id] = holding
            group.append(item)
            size += item.size()
            if len(group) >= self._core.limits.group_size or size >= self._core.limits.group_bytes:
                break
        group.sort(key=lambda item: item.actor_id)
        return group

    def outcome(self, holding: Holding, result: CommitResult) -> None:
        """What became of the commit that is on its way, be it of a group or in an atomic step's transaction."""
        if holding.gone or holding.sent is None:
            return
        sent, holding.sent = holding.sent, None
        if holding.atomic is not None and result.outcome is not Commit.OK:
            self._core.changes.refused(holding, sent, result)
            return
        holding.atomic = None
        match result.outcome:
            case Commit.OK:
                self._acknowledged(holding, sent)
            case Commit.BUSY:
                holding.busy_wait = min(_BUSY_MOST, holding.busy_wait * 2 or _BUSY_FIRST)
                holding.busy_until = self._core.now + holding.busy_wait
                self.put_back(holding, sent)
                self.must(holding)
            case Commit.CONFLICT:
                self.put_back(holding, sent)
                if sent.change is None:
                    self._refused(holding, result.error or "the state has another version")
                else:
                    self._core.ordered.remerges.append((result.actor_id, sent.change))
            case Commit.STALE:
                # It belongs to somebody else, or moved on as nobody here has heard: whatever is stored tells.
                self.put_back(holding, sent)
                self.reload(holding)
            case Commit.REFUSED:
                self.put_back(holding, sent)
                self._refused(holding, result.error)

    def put_back(self, holding: Holding, sent: Pending) -> None:
        """What was sent goes out with what has come since."""
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
            self._core.ordered.rings.append(item)
        if sent.failures:
            self._core.ordered.errors += [holding.event(failure) for failure in sent.failures]
        if item.finish is not None or item.block is not None or item.destroy:
            self._core.drop(holding)
            return
        if sent.rollback_scan is not None:
            self._core.ordered.rollbacks.append((item.actor_id, sent.rollback_scan))
        for order in sent.starts:
            if order.seq in holding.machine.running and not self._core.stopping:
                self._core.ordered.starts.append(holding.start(order))
        for child in sent.children:
            if child.seq not in holding.machine.calls:
                continue
            # Also where the worker stops: what waits for a child that nobody has begun is not at rest.
            holding.children.begin(child.seq)
            if not self._core.stopping:
                self._core.ordered.children.append(
                    ChildStart(item.actor_id, child.seq, holding.number, child.actor, child.key, child.input)
                )
        if item.sends and any(send.actor_id == item.actor_id for send in item.sends):
            self._core.feed(holding, lambda machine: machine.bell(self._core.now))
        self._core.settle(holding)
        self._core.tried(holding)

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
            self.reload(holding)
            return
        info = ErrorInfo.from_exception(
            RivetError(f"the database refuses what the actor wants to store: {error}"), with_traceback=False
        )
        holding.pending = None
        item = holding.next_item().item
        item.block = (Blocked.UNREADABLE, holding.code)
        item.block_error = json.dumps({"error": info.to_dict()})
        holding.machine.keep_stored()
        self._core.ordered.errors.append(set_aside_event(holding.claimed, info, Blocked.UNREADABLE))
        self.must(holding)

    def reload(self, holding: Holding, *, conflict: bool = False) -> None:
        """Throw away what ran ahead and begin again from what is stored, with the reports that were refused."""
        reports = holding.pending.reports if holding.pending is not None else []
        if holding.change_waits is not None:
            holding.after_reload.append(holding.change_waits)
            holding.change_waits = None
        for token, report in reports:
            has_change = report.effects is not None and report.effects.state is not None
            holding.after_reload.append((token, conflicting(report) if conflict and has_change else report))
        holding.pending = None
        holding.reloading = True
        holding.looking = False
        self._line.pop(holding, None)
        self._core.stirs(holding)
        self._core.ordered.reloads.append((holding.claimed.actor_id, holding.claimed.epoch))

    def made_again(self, holding: Holding, claimed: Claimed) -> None:
        """The machine of an actor whose commit was refused, made again from what is stored."""
        holding.machine.dispose()
        holding.gone = True
        self._line.pop(holding, None)
        self._core.stirs(holding)
        fresh = self._core.make(claimed, holding.number)
        if fresh is None:
            return
        fresh.active, fresh.started = holding.active, holding.started
        fresh.refusals, fresh.alone, fresh.cautious = holding.refusals, holding.alone, holding.cautious
        fresh.callers = holding.callers
        reports = [*holding.after_reload, *holding.deferred]
        self._core.hold(fresh)
        done = {(token.seq, token.attempt) for token, _ in reports}
        known = done | fresh.active.keys()
        self._core.feed(fresh, lambda machine: machine.start(self._core.now), known=known)
        # They are not started once more: that was the replay's view only.
        for seq in {seq for seq, _ in known}.union(fresh.machine.running if self._core.stopping else ()):
            rec = fresh.machine.open.get(seq)
            if rec is not None and rec.get("z", 0) > 1:
                rec["z"] -= 1
        for token in holding.restarts:
            if not fresh.gone and token.seq in fresh.machine.running:
                self._core.changes.run_again(fresh, token)
        for token, report in reports:
            # One that is stored already, though it was said not to be, would have its effects twice.
            if not fresh.gone and (fresh.machine.rollback or fresh.machine.runs(token.seq, token.attempt)):
                if report.output is not None:
                    # The coroutine that was dropped had this very object, and may have changed it.
                    report.value = self._core.codec.loads(report.output)
                fresh.active[token.seq, token.attempt] = token
                self._core.step_done(token, report, self._core.now)
