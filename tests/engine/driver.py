"""Drives one machine in the calling thread, with dictionaries for tables: the smallest possible holder of a machine.

Steps run as soon as they are ordered, or when the test says so. ``replay=True`` throws the machine away after every
turn and rebuilds it from what was recorded, which is what an eviction or a crash does.
"""

from __future__ import annotations

import asyncio
import inspect
import uuid
from dataclasses import dataclass
from typing import Any

from rivet_workflows import codec
from rivet_workflows.engine import Limits, Machine, Program, Turn
from rivet_workflows.engine.machine import covers
from rivet_workflows.exceptions import ErrorInfo
from rivet_workflows.records import Claimed, Entry, MessageRow

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
        **program: Any,
    ):
        self.run = run
        self.program = program
        self.replay = replay
        self.auto = auto
        self.limits = limits or Limits()
        self.rows: list[Entry] = []
        self.inflight = ""
        self.next_seq = 1
        self.now = START
        self.queue: list[MessageRow] = []
        self.holders: dict[int, int] = {}
        self.replies: dict[int, Any] = {}
        self.next_message = 1
        self.input: str | None = None
        self.started: list[str] = []
        self.pending: list[Any] = []
        self.failures: list[Any] = []
        self.outcome: Any = None
        self.set_aside: Any = None
        self.cancelled: list[int] = []
        self.commits = 0
        self.notes: list[str] = []
        self.machine: Machine | None = None
        self.fail_next: dict[str, list[Any]] = {}

    # -- life ----------------------------------------------------------------------------------

    def load(self) -> Machine:
        claimed = Claimed(
            ACTOR,
            "test",
            '["k"]',
            self.input,
            START,
            1,
            0,
            self.next_seq,
            self.inflight,
            list(map(copy, self.rows)),
        )
        program = Program(run=self.run, **self.program)
        self.machine = Machine(program, claimed, codec, self.limits)
        return self.machine

    def start(self) -> Driver:
        self.pending.clear()
        self.apply(self.load().start(self.now))
        return self.settle()

    def evict(self) -> Driver:
        assert self.machine is not None
        self.machine.dispose()
        return self.start()

    crash = evict

    def deploy(self, run: Any, **program: Any) -> Driver:
        self.run = run
        self.program |= program
        self.set_aside = None
        return self.evict()

    def settle(self) -> Driver:
        """Run everything that can run now."""
        while True:
            assert self.machine is not None
            if self.outcome is not None or self.set_aside is not None:
                return self
            if self.look():
                continue
            if self.pending and self.auto:
                self.finish(self.pending.pop(0))
                continue
            return self

    def finish(
        self, order: Any, value: Any = None, error: BaseException | None = None, **flags: Any
    ) -> Driver:
        """Run the ordered function and report."""
        self.started.append(order.name)
        try:
            if error is not None:
                raise error
            planned = self.fail_next.get(order.name)
            if planned:
                raise planned.pop(0)
            args = order.args
            if order.options.context or order.is_rollback:
                args = (order, *args)
            value = call(order.function, args, order.kwargs)
            value, text = codec.roundtrip(value)
            result = Result(True, text, value)
        except Exception as exc:
            result = Result(False, error=ErrorInfo.from_exception(exc), **flags)
        assert self.machine is not None
        self.apply(self.machine.step_done(order.seq, order.attempt, result, self.now))
        return self

    def look(self) -> bool:
        assert self.machine is not None
        wanted = self.machine.wants_look()
        if wanted is None:
            return False
        names, limit = wanted
        visible = [m for m in self.queue if m.id not in self.holders and (names is None or m.queue in names)]
        self.apply(self.machine.messages(visible[:limit], names, len(visible) <= limit, self.now, self.now))
        return True

    def apply(self, turn: Turn) -> None:
        assert self.machine is not None
        self.notes += turn.notes
        self.failures += turn.failures
        self.cancelled += turn.cancels
        for prune in turn.prunes:
            self.rows = [row for row in self.rows if not covers(prune, row)]
        self.rows += turn.rows
        for seq, at in turn.rolled_back:
            next(r for r in self.rows if r.seq == seq).rolled_back_at = at
        taken = set(turn.takes)
        self.queue = [m for m in self.queue if m.id not in taken]
        self.holders |= dict(turn.holds)
        for message in turn.unholds:
            del self.holders[message]
        for message, text in turn.completes:
            self.holders.pop(message, None)
            self.queue = [m for m in self.queue if m.id != message]
            self.replies[message] = codec.loads(text)
        for message in turn.unanswered:
            self.replies[message] = "failed"
        self.machine.committed(turn.takes)
        for send in turn.sends:
            self._put(send.queue, send.body)
        if turn.dirty or turn.must_commit:
            self.commits += turn.must_commit
            self.inflight, self.next_seq = self.machine.inflight(), self.machine.next_seq
        self.pending = [o for o in self.pending if o.seq not in turn.cancels]
        self.outcome = turn.outcome or self.outcome
        self.set_aside = turn.set_aside or self.set_aside
        if turn.rollback_scan is not None:
            found = [
                r
                for r in self.rows
                if r.rollback
                and r.rolled_back_at is None
                and r.status == 3
                and any(r.seq > seq and r.scope.startswith(scope) for seq, scope in turn.rollback_scan)
            ]
            found.sort(key=lambda r: -(r.done_seq or 0))
            self.apply(self.machine.rollback_rows(found, self.now))
            return
        if self.replay and turn.must_commit and self.outcome is None and self.set_aside is None:
            self.machine.dispose()
            again = self.load().start(self.now)
            running = {(o.seq, o.attempt) for o in self.pending} | {(o.seq, o.attempt) for o in turn.starts}
            ordered = {(o.seq, o.attempt) for o in again.starts}
            assert ordered == running, f"replay orders {ordered}, the parked run {running}"
            assert not again.rows, f"a replay recorded {again.rows}"
            self.pending = [
                next(o for o in again.starts if (o.seq, o.attempt) == k)
                for k in [(o.seq, o.attempt) for o in [*self.pending, *turn.starts]]
            ]
            return
        self.pending += turn.starts

    # -- outside -------------------------------------------------------------------------------

    def _put(self, queue: str, text: str, wants_reply: bool = False) -> int:
        self.queue.append(MessageRow(self.next_message, queue, text, self.now, wants_reply))
        self.next_message += 1
        return self.next_message - 1

    def send(self, queue: str, body: Any = None, *, wants_reply: bool = False) -> int:
        number = self._put(queue, codec.dumps(body), wants_reply)
        if self.machine is not None:
            self.apply(self.machine.bell(self.now))
            self.settle()
        return number

    def advance(self, seconds: float) -> Driver:
        """Move the clock from one due time to the next."""
        assert self.machine is not None
        end = self.now + round(seconds * 1_000_000)
        while True:
            due = self.machine.next_due
            if due is None or due > end or self.outcome is not None:
                break
            self.now = max(self.now, due)
            self.apply(self.machine.time(self.now))
            self.settle()
        self.now = end
        return self

    # -- looks ---------------------------------------------------------------------------------

    @property
    def output(self) -> Any:
        assert self.outcome is not None, (self.set_aside, self.inflight)
        assert self.outcome.output is not None, self.outcome.error
        return codec.loads(self.outcome.output)

    def names(self) -> list[str]:
        return [row.name for row in sorted(self.rows, key=lambda r: r.seq)]


def copy(entry: Entry) -> Entry:
    import copy as module

    return module.copy(entry)
