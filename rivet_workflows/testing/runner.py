"""Runs steps in the calling thread: the testing kit's stand-in for :class:`rivet_workflows.worker.runner.StepRunner`.

What is called, encoded and reported is the worker's own (:mod:`rivet_workflows.worker.attempt`); here is only *where*:
``def`` steps one after the other, ``async def`` steps together on a loop that runs while it is waited for. Step
timeouts are real time. A ``def`` step cannot be interrupted: one that ran too long has timed out once it returns,
and meanwhile sees ``step.is_cancelled()``.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol
from uuid import UUID

from django.db import Error, connections

from rivet_workflows.records import Commit, CommitItem, CommitResult
from rivet_workflows.testing.here import HereExecutor, HereLoop
from rivet_workflows.testing.rules import Rule, Rules, WorkerDied, error_of
from rivet_workflows.worker.atomic import Handover, Outcome, run_atomic
from rivet_workflows.worker.attempt import Attempt, describe
from rivet_workflows.worker.context import StepContext, StepEnvironment
from rivet_workflows.worker.orders import StepReport, StepStart, StepToken
from rivet_workflows.worker.runner import _is_async
from rivet_workflows.worker.threads import Job

__all__ = ["HereRunner", "StepExecutor"]

logger = logging.getLogger("rivet_workflows.testing")


class _Context(StepContext):
    """A step context that knows by itself when the time is up: there is no watchdog thread to tell it."""

    __slots__ = ("deadline",)

    def is_cancelled(self) -> bool:
        self._look_at_the_clock()
        return super().is_cancelled()

    def _check(self, what: str) -> None:
        self._look_at_the_clock()
        super()._check(what)

    def _look_at_the_clock(self) -> None:
        deadline: float | None = getattr(self, "deadline", None)
        if deadline is not None and time.monotonic() > deadline:
            self.end("has timed out", cancelled=True)


class _Attempt(Attempt):
    __slots__ = ("fails_after", "task", "timer")

    def __init__(self, start: StepStart, env: StepEnvironment) -> None:
        super().__init__(start, env)
        self.context = _Context(start, env)
        self.task: asyncio.Task[Any] | None = None
        self.timer: asyncio.TimerHandle | None = None
        #: Of an atomic step: what it raises once its work is done.
        self.fails_after: Rule | None = None

    def call(self) -> Any:
        """Call the step's function."""
        value = super().call()
        if self.fails_after is not None:
            raise error_of(self.fails_after)
        return value


class Atomics(Protocol):
    """What the runner asks of the worker for atomic steps."""

    def answer(self, token: StepToken, report: StepReport) -> CommitItem | None:
        """What to commit in the step's transaction; None: roll it back."""

    def commit(self, item: CommitItem) -> CommitResult:
        """Write it, in the open transaction."""

    def committed(self, token: StepToken, result: CommitResult) -> None:
        """What became of it, once the transaction is over."""


class HereRunner:
    """See the module. Nothing runs before :meth:`work` is called."""

    def __init__(
        self,
        env: StepEnvironment,
        rules: Rules,
        loop: HereLoop,
        deliver: Callable[[StepToken, StepReport], None],
        atomics: Atomics,
        alias: str,
    ) -> None:
        self._env = env
        self._rules = rules
        self._loop = loop
        self._deliver = deliver
        self._atomics = atomics
        self._alias = alias
        self._waiting: deque[_Attempt] = deque()
        self._errands: deque[Callable[[], None]] = deque()
        self._calls: deque[Job] = deque()
        self._running: dict[StepToken, _Attempt] = {}
        #: Actors whose next commit the worker does not survive.
        self.doomed: set[UUID] = set()
        self._died = False
        #: Attempts begun.
        self.count = 0

    # -- the shape of StepRunner

    @property
    def running(self) -> int:
        return len(self._running) + len(self._waiting)

    def start(self, starts: Iterable[StepStart]) -> None:
        """Run these, in their order, when there is time."""
        self._waiting += [_Attempt(start, self._env) for start in starts]

    def cancel(self, tokens: Iterable[StepToken]) -> None:
        """Their results are not wanted."""
        unwanted = set(tokens)
        self._waiting = deque(a for a in self._waiting if a.start.token not in unwanted)
        for token in unwanted:
            attempt = self._settle(token)
            if attempt is not None:
                attempt.context.end("was cancelled", cancelled=True)
                self._stop(attempt)

    def abandon(self) -> None:
        """The worker is gone, and what ran in it."""
        self._waiting.clear()
        self._errands.clear()
        self._calls.clear()
        self.doomed.clear()
        self.cancel(list(self._running))

    def errand(self, function: Callable[[], None]) -> None:
        """Run ``function`` soon. What it raises is logged."""
        self._errands.append(function)

    def hook(self, job: Job) -> None:
        """Run a hook, soon. It takes as long as it takes: there is no other thread."""

        def run() -> None:
            job.run()

        self._errands.append(run)

    def call(self, job: Job) -> None:
        """Run an action for a caller, soon."""
        self._calls.append(job)

    def commit_atomic(self, token: StepToken, item: CommitItem) -> None:
        """Atomic steps are answered where they return; there is none that waits."""

    def abort_atomic(self, token: StepToken) -> None:
        """Likewise."""

    # -- work

    def work(self) -> bool:
        """Run one thing, or start and await what is async; False when there is nothing. Raises :class:`WorkerDied`."""
        if self._errands:
            self._run_errand(self._errands.popleft())
            return True
        if self._calls:
            self._calls.popleft().run()
            return True
        if self._waiting:
            self._begin(self._waiting.popleft())
        else:
            tasks = [attempt.task for attempt in self._running.values() if attempt.task is not None]
            if not self._loop.wait(tasks):
                return False
        if self._died:
            self._died = False
            raise WorkerDied
        return True

    def run_errands(self) -> bool:
        """The errands alone, as a worker does that stops; False when there are none."""
        some = bool(self._errands)
        while self._errands:
            self._run_errand(self._errands.popleft())
        return some

    @staticmethod
    def _run_errand(function: Callable[[], None]) -> None:
        try:
            function()
        except Exception:
            logger.exception("An errand of the worker failed")

    def _begin(self, attempt: _Attempt) -> None:
        start, rules = attempt.start, self._rules
        self.count += 1
        self._running[start.token] = attempt
        if rules.take(start, "before"):
            raise WorkerDied
        if rules.take(start, "timeout"):
            self._end(attempt, attempt.timed_out())
            return
        failure = rules.take(start, "fail")
        if failure is not None:
            self._end(attempt, attempt.failed(error_of(failure)))
            return
        stub = rules.take(start, "stub")
        if stub is not None and stub.function is not None:
            start.function = stub.function
        if _is_async(start.function):
            self._begin_async(attempt, None)
        elif start.options.atomic and not start.is_rollback:
            self._call_atomic(attempt)
        else:
            self._call(attempt)

    def _call(self, attempt: _Attempt) -> None:
        if attempt.timeout is not None:
            attempt.context.deadline = time.monotonic() + attempt.timeout  # type: ignore[attr-defined]
        try:
            with as_autocommit(self._alias):
                value = attempt.call()
        except Exception as error:
            self._end(attempt, attempt.timed_out() if _is_late(attempt) else attempt.failed(error))
            return
        except BaseException as error:
            if isinstance(error, KeyboardInterrupt | WorkerDied) or "outcomes" in type(error).__module__:
                raise  # of whoever runs the tests, not of the step
            self._end(attempt, attempt.failed(error))
            return
        if inspect.isawaitable(value):
            self._begin_async(attempt, value)
        elif _is_late(attempt):
            self._end(attempt, attempt.timed_out())
        else:
            self._returned(attempt, value)

    def _call_atomic(self, attempt: _Attempt) -> None:
        """An atomic step: the worker's own :func:`run_atomic`, whose core answers at once, as it is in this thread."""
        start, handover = attempt.start, Handover()
        attempt.context.deadline = None if attempt.timeout is None else time.monotonic() + attempt.timeout  # type: ignore[attr-defined]
        attempt.fails_after = self._rules.take(start, "fail_after")

        def settle() -> bool:
            if not _is_late(attempt):
                return self._settle(start.token) is not None
            self._end(attempt, attempt.timed_out())
            return False

        def hand_over(report: StepReport) -> Handover:
            if self._rules.take(start, "after_run"):
                raise WorkerDied
            handover.answer(self._atomics.answer(start.token, report))
            return handover

        try:
            outcome = run_atomic(
                attempt, alias=self._alias, settle=settle, hand_over=hand_over, commit=self._atomics.commit
            )
        except Exception as error:
            if handover.item is None:
                self._end(attempt, attempt.failed(error))
                return
            refused = CommitResult(start.token.actor_id, Commit.REFUSED, describe(error).message)
            outcome = Outcome(result=refused)
        if outcome.report is not None:
            self._deliver(start.token, outcome.report)
        if outcome.result is not None:
            if outcome.stays and self._rules.take(start, "after_commit"):
                raise WorkerDied
            self._atomics.committed(start.token, outcome.result)

    def _returned(self, attempt: _Attempt, value: Any) -> None:
        failure = self._rules.take(attempt.start, "fail_after")
        if failure is not None:
            self._end(attempt, attempt.failed(error_of(failure)))
        else:
            self._end(attempt, attempt.succeeded(value))

    # -- async

    def _begin_async(self, attempt: _Attempt, awaitable: Awaitable[Any] | None) -> None:
        attempt.context.deadline = None  # type: ignore[attr-defined]
        attempt.task = self._loop.start(self._drive(attempt, awaitable))
        if attempt.timeout is not None and not attempt.settled:
            attempt.timer = self._loop.later(attempt.task, attempt.timeout, lambda: self._late(attempt))

    async def _drive(self, attempt: _Attempt, awaitable: Awaitable[Any] | None) -> None:
        try:
            value = await (attempt.call() if awaitable is None else awaitable)
        except BaseException as error:
            if attempt.start.token in self._running:
                self._end(attempt, attempt.failed(error))
            return
        if attempt.start.token in self._running:
            self._returned(attempt, value)

    def _late(self, attempt: _Attempt) -> None:
        if attempt.start.token in self._running:
            self._end(attempt, attempt.timed_out())
            self._stop(attempt)

    def _stop(self, attempt: _Attempt) -> None:
        if attempt.timer is not None:
            attempt.timer.cancel()
        if attempt.task is not None:
            attempt.task.cancel()

    # -- ends

    def _settle(self, token: StepToken) -> _Attempt | None:
        attempt = self._running.pop(token, None)
        if attempt is not None:
            attempt.settled = True
            if attempt.timer is not None:
                attempt.timer.cancel()
        return attempt

    def _end(self, attempt: _Attempt, report: StepReport) -> None:
        """Hand the report over, unless the worker dies with it."""
        start = attempt.start
        if self._settle(start.token) is None:
            return
        if self._rules.take(start, "after_run"):
            self._died = True
            return
        if self._rules.take(start, "after_commit"):
            self.doomed.add(start.token.actor_id)
        self._deliver(start.token, report)


class StepExecutor(HereExecutor):
    """Where the queries of ``async def`` steps run."""

    def __init__(self, alias: str) -> None:
        self._alias = alias

    def run(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        """Call it, its failures in the database its own."""
        with as_autocommit(self._alias):
            return fn(*args, **kwargs)


@contextmanager
def as_autocommit(alias: str) -> Iterator[None]:
    """Steps run in autocommit, where a failed statement harms nothing else. In a test's transaction it would end all
    of it; here what is entered is undone to where it began, when it failed in the database."""
    connection = connections[alias]
    savepoint = connection.savepoint() if connection.in_atomic_block else None
    if savepoint is None:
        yield
        return
    try:
        yield
    except BaseException as error:
        if isinstance(error, Error) or connection.needs_rollback:
            connection.needs_rollback = False
            connection.savepoint_rollback(savepoint)
        connection.savepoint_commit(savepoint)
        raise
    connection.savepoint_commit(savepoint)


def _is_late(attempt: _Attempt) -> bool:
    context = attempt.context
    return isinstance(context, _Context) and context.is_cancelled()
