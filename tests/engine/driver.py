"""Drives one machine in the calling thread, with lists for tables: the smallest possible holder of a machine.

A turn is buffered until one must be committed; then all of them are applied, and only then steps are called, as a
worker does it. ``replay=True`` throws the machine away after every commit and makes it again from what is stored, as
an eviction does, and compares what the new one waits for with what the parked one did.
"""

from __future__ import annotations

import asyncio
import copy
import inspect
import json
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from rivet_workflows import codec
from rivet_workflows.engine import Limits, Machine, Program, Turn
from rivet_workflows.engine.turn import StepOrder
from rivet_workflows.exceptions import ErrorInfo, failure_from_record
from rivet_workflows.records import Claimed, Entry, EntryStatus, Kind, MessageRow, scope_steps

ACTOR = uuid.UUID(int=7)
START = 1_800_000_000_000_000


@dataclass
class Result:
    ok: bool
    output: str | None = None
    value: Any = None
    error: ErrorInfo | None = None
    timed_out: bool = False
    conflict: bool = False
    reruns: int = 0


def call(function: Any, args: Any, kwargs: Any) -> Any:
    value = function(*args, **kwargs)
    return asyncio.run(value) if inspect.iscoroutine(value) else value


class Driver:
    def __init__(
        self,
        run: Any,
        *,
        replay: bool = False,
        auto: bool = True,
        limits: Limits | None = None,
        input: Any = None,
        **program: Any,
    ):
        self.run = run
        self.program = program
        self.replay = replay
        self.auto = auto
        self.limits = limits or Limits()
        # What is stored.
        self.rows: list[Entry] = []
        self.inflight = ""
        self.next_seq = 1
        self.now = START
        self.queue: list[MessageRow] = []
        self.holders: dict[int, int] = {}
        self.replies: dict[int, Any] = {}
        self.next_message = 1
        self.input = None if input is None else codec.dumps(input)
        self.commits = 0
        # What was seen.
        self.started: list[str] = []
        self.failures: list[Any] = []
        self.cancelled: list[int] = []
        self.notes: list[str] = []
        self.outcome: Any = None
        self.set_aside: Any = None
        # What is in memory.
        self.machine: Machine
        self.buffer: list[Turn] = []
        self.pending: list[StepOrder] = []
        self.children: dict[int, Any] = {}
        # Plans of the test.
        self.fail_next: dict[str, list[BaseException]] = {}
        self.before_commit: Callable[[int], bool] = lambda _number: True
        self.offered = 0

    # -- life ----------------------------------------------------------------------------------

    def claimed(self) -> Claimed:
        """What is stored, as whoever takes the actor up reads it."""
        return Claimed(
            actor_id=ACTOR,
            name="test",
            key='["k"]',
            input=self.input,
            created_at=START,
            epoch=1,
            commit_no=0,
            next_seq=self.next_seq,
            inflight=self.inflight,
            entries=[copy.copy(row) for row in self.rows],
        )

    def load(self) -> Machine:
        self.buffer.clear()
        self.machine = Machine(Program(run=self.run, **self.program), self.claimed(), codec, self.limits)
        return self.machine

    def start(self) -> Driver:
        self.pending.clear()
        self.children.clear()
        self.apply(self.load().start(self.now))
        return self.settle()

    def crash(self) -> Driver:
        """All that was in memory is gone."""
        self.machine.dispose()
        return self.start()

    def evict(self) -> Driver:
        """The orderly form: starts that were recorded and not run do not count."""
        self._hand_back()
        return self.crash()

    def deploy(self, run: Any, **program: Any) -> Driver:
        self.run = run
        self.program |= program
        self.set_aside = None
        return self.evict()

    def control(self, inflight: str, rows: list[Entry] | None = None, next_seq: int | None = None) -> Driver:
        """A control operation has written this; the actor is taken up again."""
        self.inflight = inflight
        self.rows = self.rows if rows is None else rows
        self.next_seq = self.next_seq if next_seq is None else next_seq
        self.outcome = self.set_aside = None
        return self.crash()

    def _hand_back(self) -> None:
        position = json.loads(self.inflight or '{"e": []}')
        for rec in position["e"]:
            if "z" in rec and "b" not in rec:
                rec["z"] = max(0, rec["z"] - 1)
        self.inflight = json.dumps(position)

    @property
    def over(self) -> bool:
        return self.outcome is not None or self.set_aside is not None

    def settle(self) -> Driver:
        """Run everything that can run now."""
        while not self.over:
            if self.machine.tasks.paused:
                self.now += 1
                self.apply(self.machine.time(self.now))
            elif self.look():
                pass
            elif (due := self.machine.next_due) is not None and due <= self.now:
                self.apply(self.machine.time(self.now))
            elif self.pending and self.auto:
                self.finish(self.pending[0])
            else:
                break
        return self

    def order(self, name: str) -> StepOrder:
        """The step of this name that waits to be run."""
        return next(order for order in self.pending if order.name == name)

    def finish(
        self, order: StepOrder | str, value: Any = None, error: BaseException | None = None, **flags: Any
    ) -> Driver:
        """Run the ordered function and report."""
        if isinstance(order, str):
            order = self.order(order)
        self.pending.remove(order)
        self.started.append(order.name)
        try:
            if error is not None:
                raise error
            planned = self.fail_next.get(order.name)
            if planned:
                raise planned.pop(0)
            args = (order, *order.args) if order.options.context or order.is_rollback else order.args
            value, text = codec.roundtrip(call(order.function, args, order.kwargs))
            result = Result(True, text, value)
        except Exception as exc:
            result = Result(False, error=ErrorInfo.from_exception(exc), **flags)
        self.apply(self.machine.step_done(order.seq, order.attempt, result, self.now))
        return self

    def child_done(self, seq: int, value: Any = None, error: dict[str, Any] | None = None) -> Driver:
        del self.children[seq]
        output = None if error else codec.dumps(value)
        record = json.dumps(error) if error else None
        self.apply(self.machine.child_done(seq, error is None, output, record, self.now))
        return self.settle()

    def look(self) -> bool:
        wanted = self.machine.wants_look()
        if wanted is None:
            return False
        names, limit = wanted
        visible = [m for m in self.queue if m.id not in self.holders and (names is None or m.queue in names)]
        self.apply(self.machine.messages(visible[:limit], names, len(visible) <= limit, self.now, self.now))
        return True

    # -- commits -------------------------------------------------------------------------------

    def apply(self, turn: Turn) -> None:
        if turn.dirty or turn.must_commit or turn.takes:
            self.buffer.append(turn)
        self.notes += turn.notes
        cancelled = set(turn.cancels)
        self.cancelled += turn.cancels
        self.pending = [order for order in self.pending if order.seq not in cancelled]
        self.pending += [order for order in turn.starts if not order.durable]
        if turn.must_commit:
            self.offered += 1
            if self.before_commit(self.offered):
                self.commit()
            else:
                self.crash()
        elif turn.rollback_scan is not None:
            self.apply(self.machine.rollback_rows(self.scan(turn.rollback_scan), self.now))

    def commit(self) -> None:
        turns, self.buffer = self.buffer, []
        machine = self.machine
        self.commits += 1
        for turn in turns:
            self._write(turn)
        self.inflight, self.next_seq = machine.inflight(), machine.next_seq
        self._written(turns)
        machine.committed([m for turn in turns for m in (*turn.takes, *(held for held, _ in turn.holds))])
        starts = [order for turn in turns for order in turn.starts if order.durable]
        starts = [order for order in starts if order.seq in machine.running]
        children = {order.seq: order for turn in turns for order in turn.children}
        # One that had nothing to commit was answered at once.
        scan = next((t.rollback_scan for t in turns if t.rollback_scan is not None and t.must_commit), None)
        if scan is not None:
            self.apply(machine.rollback_rows(self.scan(scan), self.now))
            return
        self.pending += starts
        self.children |= children
        if any(turn.sends for turn in turns):
            self.apply(machine.bell(self.now))
        if self.replay and not self.over:
            self._again()

    def _write(self, turn: Turn) -> None:
        self.failures += turn.failures
        for prune in turn.prunes:
            self.rows = [row for row in self.rows if not prune.covers(row)]
        self.rows += [copy.copy(row) for row in turn.rows]
        for seq, at in turn.rolled_back:
            next(row for row in self.rows if row.seq == seq).rolled_back_at = at
        present = {message.id for message in self.queue}
        assert present.issuperset(turn.takes), "a message was taken that is not there"
        assert present.issuperset(message for message, _ in turn.holds)
        gone = {*turn.takes, *(message for message, _ in turn.completes)}
        self.holders |= dict(turn.holds)
        for message in (*turn.unholds, *gone):
            self.holders.pop(message, None)
        self.queue = [message for message in self.queue if message.id not in gone]
        self.replies |= {message: codec.loads(text) for message, text in turn.completes}
        self.replies |= dict.fromkeys(turn.unanswered, "failed")
        for send in turn.sends:
            self._put(send.queue, send.body)
        self.outcome = turn.outcome or self.outcome
        self.set_aside = turn.set_aside or self.set_aside

    def _written(self, turns: list[Turn]) -> None:
        """The lists say what was committed."""

    def scan(self, checkpoints: list[tuple[int, str]]) -> list[Entry]:
        found = [
            copy.copy(row)
            for row in self.rows
            if row.rollback is not None
            and row.rolled_back_at is None
            and row.status is EntryStatus.COMPLETED
            and any(row.seq > seq and row.scope.startswith(scope) for seq, scope in checkpoints)
        ]
        return sorted(found, key=lambda row: -(row.done_seq or 0))

    def _again(self) -> None:
        """Evict, replay, and compare with the parked run."""
        parked = self.machine
        if parked.rollback is not None or parked.tasks.paused:
            return
        before = self._waits(parked)
        ephemeral = [order for order in self.pending if not order.durable]
        if ephemeral:
            return  # its start is not stored: a worker does not let go of it
        if (due := parked.next_due) is not None and due <= self.now:
            return  # a replay tells what is due by itself, the parked run is yet to be told
        self._hand_back()
        parked.dispose()
        self.children.clear()
        turn = self.load().start(self.now)
        assert not turn.rows, f"a replay recorded {turn.rows}"
        assert self._waits(self.machine) == before
        new = {(order.seq, order.attempt): order for order in turn.starts}
        assert len(new) == len(turn.starts)
        assert set(new) == {(o.seq, o.attempt) for o in self.pending}, "a replay orders other steps"
        self.pending = [new[order.seq, order.attempt] for order in self.pending]
        self.children = {order.seq: order for order in turn.children}
        # The starts that were handed back and given again, as a worker's claim and commit would.
        self.inflight, self.next_seq = self.machine.inflight(), self.machine.next_seq

    @staticmethod
    def _waits(machine: Machine) -> Any:
        records = {seq: {k: v for k, v in rec.items() if k != "z"} for seq, rec in machine.open.items()}
        open_records = json.loads(json.dumps(records))
        waits = {seq: (wait.names, wait.deadline) for seq, wait in machine.mailbox.waits.items()}
        return (
            open_records,
            machine.running,
            machine.held,
            waits,
            sorted(machine.checkpoints),
            machine.next_seq,
        )

    # -- outside -------------------------------------------------------------------------------

    def _put(self, queue: str, text: str, wants_reply: bool = False) -> int:
        self.queue.append(MessageRow(self.next_message, queue, text, self.now, wants_reply))
        self.next_message += 1
        return self.next_message - 1

    def drop(self, queue: str, body: Any = None, *, wants_reply: bool = False) -> int:
        """A message is there and nobody was told."""
        return self._put(queue, codec.dumps(body), wants_reply)

    def send(self, queue: str, body: Any = None, *, wants_reply: bool = False) -> int:
        number = self.drop(queue, body, wants_reply=wants_reply)
        self.ring()
        return number

    def ring(self) -> Driver:
        if not self.over:
            self.apply(self.machine.bell(self.now))
            self.settle()
        return self

    def advance(self, seconds: float) -> Driver:
        """Move the clock from one due time to the next."""
        end = self.now + round(seconds * 1_000_000)
        while not self.over:
            due = self.machine.next_due
            if due is None or due > end:
                break
            self.now = max(self.now, due)
            self.apply(self.machine.time(self.now))
            self.settle()
        self.now = end
        return self

    def jump(self, seconds: float) -> Driver:
        """The worker slept: the time is later, all at once."""
        self.now += round(seconds * 1_000_000)
        self.apply(self.machine.time(self.now))
        return self.settle()

    # -- looks ---------------------------------------------------------------------------------

    @property
    def output(self) -> Any:
        assert self.outcome is not None, (self.set_aside, self.inflight, self.notes)
        assert self.outcome.output is not None, failure_from_record(json.loads(self.outcome.error)).error
        return codec.loads(self.outcome.output)

    @property
    def error(self) -> Any:
        """What the run failed with."""
        assert self.outcome is not None, (self.set_aside, self.inflight)
        assert self.outcome.error is not None, self.outcome.output
        return failure_from_record(json.loads(self.outcome.error))

    def entries(self) -> list[Entry]:
        return sorted(self.rows, key=lambda row: row.seq)

    def names(self) -> list[str]:
        """Names of the finished entries, in order of creation."""
        return [row.name for row in self.entries()]

    def row(self, name: str, occurrence: int = 1) -> Entry:
        return next(r for r in self.rows if (r.name, r.occurrence) == (name, occurrence))

    def opened(self, name: str) -> dict[str, Any]:
        """The open record of this name, as stored."""
        return next(rec for rec in json.loads(self.inflight)["e"] if rec["n"] == name)

    def iterations(self, loop: str) -> list[int]:
        """The iterations of a loop that still have entries of their own."""
        seqs = [row.seq for row in self.rows if row.kind is Kind.LOOP and row.name == loop]
        seqs += [rec["s"] for rec in json.loads(self.inflight)["e"] if rec["n"] == loop]
        lasts = (list(scope_steps(row.scope))[-1] for row in self.rows if row.scope)
        return sorted({index for seq, index, _within in lasts if seq in seqs})
