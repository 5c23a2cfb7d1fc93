"""One worker process of a simulated fleet: the real session, carrier and core, turn by turn in the calling thread.

What takes time in a process (steps, errands, atomic transactions, hooks) waits here until the world has it end, in any
order. Its clock is the world's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from types import SimpleNamespace
from typing import Any
from uuid import UUID

from rivet_workflows import codec
from rivet_workflows.engine import Program
from rivet_workflows.records import Claimed, Commit, CommitItem, CommitResult
from rivet_workflows.store.errors import UnknownOutcome, WorkerForgotten
from rivet_workflows.worker.carry import Carrier
from rivet_workflows.worker.children import ChildNews, as_end
from rivet_workflows.worker.control import Control
from rivet_workflows.worker.core import Core
from rivet_workflows.worker.hookjobs import HookJob
from rivet_workflows.worker.inbox import Inbox
from rivet_workflows.worker.orders import ChildStart, ErrorEvent, StepReport, StepStart, StepToken
from rivet_workflows.worker.patience import OUTAGES, GivenUp
from rivet_workflows.worker.session import Habits, Session
from rivet_workflows.worker.vars import VarsTable

#: Seconds; as a worker's by default.
LEASE, HEARTBEAT = 6.0, 2.0


class _Inbox(Inbox):
    def wait_for_reports(self, socket: int) -> None:
        """While a verb is called nothing else happens."""


class Patience:
    """Stands for the product's, which waits in real time and knows Django's connections."""

    def __init__(self, control: Control) -> None:
        self.outages = 0
        self._control = control

    def __call__(self, verb: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        while True:
            try:
                return verb(*args, **kwargs)
            except OUTAGES as error:
                self.recover(error)

    def turn(self) -> AbstractContextManager[None]:
        return nullcontext()

    def recover(self, error: Exception) -> None:
        if self._control.leaving:
            raise GivenUp from error
        self.outages += 1

    def succeeded(self) -> None: ...


class Hooks:
    """Some kinds have hooks of waking and of sleeping; they do nothing but take time."""

    def __init__(self, kinds: Iterable[str]) -> None:
        self._kinds = set(kinds)
        self._awake: set[tuple[UUID, int]] = set()

    def wanted(self, claimed: Claimed) -> bool:
        return claimed.name in self._kinds

    def note(self, claimed: Claimed) -> None: ...

    def wake(self, claimed: Claimed, _wanted: Any = None) -> None:
        self._awake.add((claimed.actor_id, claimed.epoch))

    def sleeps(self, held: tuple[UUID, int]) -> bool:
        return held in self._awake

    def sleep(self, held: tuple[UUID, int], _wanted: Any = None) -> None:
        self._awake.discard(held)


class Runner:
    """Where users' code runs: attempts are called as they start, and end when the world says so."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker
        self.outages = SimpleNamespace(seen=lambda: None)
        self.attempts: dict[StepToken, tuple[StepStart, StepReport]] = {}
        self.errands: list[Callable[[], None]] = []
        #: Atomic attempts that have returned; with what the core wants committed, once it has said so.
        self.open: dict[StepToken, CommitItem | None] = {}
        #: The id that the process had when they began: it may lose its lease and get another before they commit.
        self._begun_as: dict[StepToken, int] = {}

    @property
    def running(self) -> int:
        return len(self.attempts)

    def start(self, starts: Iterable[StepStart]) -> None:
        for start in starts:
            self.attempts[start.token] = start, self._worker.call(start)
            self._begun_as[start.token] = self._worker.id

    def cancel(self, tokens: Iterable[StepToken]) -> None:
        for token in tokens:
            self.attempts.pop(token, None)

    def abandon(self) -> None:
        for token in list(self.attempts):
            del self.attempts[token]
            self._worker.inbox.report(token, StepReport(False, abandoned=True))
        self.open = {token: item for token, item in self.open.items() if item is not None}

    def errand(self, function: Callable[[], None]) -> None:
        self.errands.append(function)

    def hook(self, job: HookJob) -> None:
        def run() -> None:
            job.run()

        self.errands.append(run)

    def end(self, token: StepToken, report: StepReport | None = None) -> None:
        """The attempt returns."""
        _, found = self.attempts.pop(token)
        report = report or found
        if report.atomic:
            self.open[token] = None
        self._worker.inbox.report(token, report)

    def commit_atomic(self, token: StepToken, item: CommitItem) -> None:
        if token in self.open:
            self.open[token] = item
        else:
            self._worker.inbox.committed(token, CommitResult(item.actor_id, Commit.BUSY))

    def abort_atomic(self, token: StepToken) -> None:
        self.open.pop(token, None)

    def commit_open(self, token: StepToken) -> None:
        """The thread of an atomic step commits its transaction."""
        item = self.open.pop(token)
        assert item is not None
        store = self._worker.store
        self._worker.writes_as = self._begun_as[token]
        try:
            (result,) = store.commit_group([item], wait=True)
        except UnknownOutcome:
            (result,) = self._worker.patience(store.resolve, [item])
        finally:
            self._worker.writes_as = self._worker.id
        self._worker.inbox.committed(token, result)


class _NoSchedules:
    """In place of the firing of schedules, whose actions are Django's transactions."""

    busy = False

    def look(self, now: int) -> None: ...

    def next_one_shot(self) -> None: ...

    def stop(self) -> None: ...


class Worker:
    """A process, from its start to its death or end. ``world`` gives the time, and is told what its code does."""

    def __init__(self, world: Any, store: Any, version: str) -> None:
        self.world = world
        self.store = store
        self.version = version
        self.inbox = _Inbox()
        self.control = Control(self.monotonic)
        self.patience = Patience(self.control)
        self.runner = Runner(self)
        self.errors: list[ErrorEvent] = []
        self.begin_session()

    def begin_session(self) -> None:
        """Register, under a new id."""
        world, store = self.world, self.store
        types = world.types(self.version)
        self.id = self.writes_as = self.patience(store.register_worker, "host", 1, types)
        self.beat_at = self.monotonic()
        self.core = Core(self.id, self._program, codec, world.limits)
        self.hooks = Hooks(world.hooked)
        self._carrier = Carrier(
            self.core,
            self.id,
            store=store,
            runner=self.runner,  # type: ignore[arg-type]
            inbox=self.inbox,
            env=SimpleNamespace(load_state=store.load_state),  # type: ignore[arg-type]
            vars=VarsTable(),
            hooks=self.hooks,  # type: ignore[arg-type]
            patience=self.patience,  # type: ignore[arg-type]
            failures=SimpleNamespace(tell=self.errors.append),  # type: ignore[arg-type]
            now=world.clock.now,
            ring=self._ring,
            begin=self._begin_child,
            sleep=lambda _seconds: None,
        )
        self.session = Session(
            self.id,
            self.core,
            self._carrier,
            store=store,
            runner=self.runner,  # type: ignore[arg-type]
            inbox=self.inbox,
            patience=self.patience,  # type: ignore[arg-type]
            time=SimpleNamespace(now=world.clock.now),  # type: ignore[arg-type]
            control=self.control,
            types=types,
            firing=_NoSchedules(),  # type: ignore[arg-type]
            hooks=self.hooks,  # type: ignore[arg-type]
            habits=Habits(LEASE, HEARTBEAT, 5.0),
            monotonic=self.monotonic,
        )

    def monotonic(self) -> float:
        return float(self.world.clock.now() / 1e6)

    # -- what the world has it do

    def turn(self) -> bool:
        """One turn of its core's thread; False when the process has ended."""
        if self.session.over():
            if self.session.lost is None:
                if self.session.handed_back:
                    self.patience(self.store.forget_worker, self.id)
                return False
            self.begin_session()
        try:
            self.session.turn(0)
        except GivenUp:
            return False
        return True

    def beat(self) -> None:
        """One heartbeat, which also has it look for workers whose hearts have stopped."""
        try:
            self.store.heartbeat(self.id)
        except WorkerForgotten:
            self.session.lose("another worker has taken this one for dead")
        except OUTAGES:
            return
        else:
            self.beat_at = self.monotonic()
            self.inbox.sweep()

    def watch(self) -> None:
        """The watchdog: no heartbeat for a lease."""
        if self.session.lost is None and self.monotonic() - self.beat_at > LEASE:
            self.session.lose("no heartbeat could be written")

    def run_errand(self, which: int) -> None:
        self.runner.errands.pop(which)()

    # -- what its parts ask for

    def call(self, start: StepStart) -> StepReport:
        report: StepReport = self.world.call(self, start)
        return report

    def _program(self, claimed: Claimed) -> Program:
        program: Program = self.world.program(claimed, self.version)
        return program

    def _ring(self, items: Sequence[CommitItem]) -> None:
        self.world.ring({send.actor_id for item in items for send in item.sends})

    def _begin_child(self, start: ChildStart) -> ChildNews:
        child = self.world.create_child(self.store, start)
        ended = self.store.watch(start.actor_id, child)
        return ChildNews(start, child, None if ended is None else as_end(ended))
