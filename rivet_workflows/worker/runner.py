"""Runs steps: ``def`` on threads, ``async def`` on the loop; hands each report over once.

Each attempt is *settled* exactly once, by whoever is first: its code that ends, its timeout, a cancellation, the stop
of the worker. What comes later is dropped: a late result of a timed-out step cannot become a second one.

Called by the thread of the core; calls ``deliver`` from the threads of the steps.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Awaitable, Callable, Iterable
from functools import lru_cache
from typing import Any

from asgiref.sync import iscoroutinefunction

from rivet_workflows.crashpoints import crashpoint
from rivet_workflows.records import Commit, CommitItem, CommitResult
from rivet_workflows.worker.aioloop import StepLoop
from rivet_workflows.worker.atomic import Atomics, Handover, Outcome, run_atomic
from rivet_workflows.worker.attempt import Attempt
from rivet_workflows.worker.connections import Outages
from rivet_workflows.worker.context import StepEnvironment
from rivet_workflows.worker.loopwatch import WatchedLoop
from rivet_workflows.worker.orders import StepReport, StepStart, StepToken
from rivet_workflows.worker.threads import Job, Threads

logger = logging.getLogger("rivet_workflows.worker")

#: Scheduled actions that one worker runs at a time.
FIRE_THREADS = 4
#: Actions for callers that one worker runs at a time.
CALL_THREADS = 4
#: Hooks that one worker runs at a time.
HOOK_THREADS = 4

Deliver = Callable[[list[tuple[StepToken, StepReport]]], None]


class _StepJob:
    """A ``def`` step, for a thread."""

    __slots__ = ("_runner", "attempt")

    def __init__(self, attempt: Attempt, runner: StepRunner) -> None:
        self.attempt = attempt
        self._runner = runner

    @property
    def timeout(self) -> float | None:
        return self.attempt.timeout

    def run(self) -> bool:
        attempt, runner = self.attempt, self._runner
        if attempt.settled:
            return True
        crashpoint("before-body")
        if attempt.start.options.atomic:
            return runner._run_atomic(attempt)
        try:
            value = attempt.call()
        except BaseException as error:
            report = attempt.failed(error)
        else:
            if inspect.isawaitable(value):
                # A decorator hid the ``async def``: its coroutine belongs on the loop.
                runner._loop.submit([(attempt, value)])
                return True
            report = attempt.succeeded(value)
        crashpoint("after-body")
        runner._settle([(attempt, report)])
        return report.ok

    def time_out(self) -> None:
        self._runner._late(self.attempt)


class _Errand:
    """Work of the engine's own that must not be done on the core's thread: merges, tidying up."""

    __slots__ = ("_function",)

    timeout: float | None = None

    def __init__(self, function: Callable[[], None]) -> None:
        self._function = function

    def run(self) -> bool:
        try:
            self._function()
        except BaseException:
            logger.exception("An errand of the worker failed")
            return False
        return True

    def time_out(self) -> None:
        """Errands have no timeout."""


class StepRunner:
    """The side of the worker on which users' code runs.

    ``deliver`` gets each report, with those that came of the same turn of the loop, on the thread that made it.
    ``exhausted`` is called when every step thread is stuck in a step that has timed out, and there may be no more of
    them.
    """

    def __init__(
        self,
        env: StepEnvironment,
        deliver: Deliver,
        *,
        threads: int,
        concurrency: int,
        exhausted: Callable[[], None] = lambda: None,
        hooks_exhausted: Callable[[], None] = lambda: None,
        atomics: Atomics | None = None,
    ) -> None:
        self._env = env
        self._deliver = deliver
        self._atomics = atomics or Atomics("default", lambda item: CommitResult(item.actor_id, Commit.OK))
        self._running: dict[StepToken, Attempt] = {}
        #: Atomic steps whose function has returned and whose transaction is open.
        self._handovers: dict[StepToken, Handover] = {}
        self.outages = Outages()
        self._threads = Threads(threads, "rivet-step", self.outages, exhausted)
        # Apart from the steps', so that a merge never waits for a slow step.
        self._errands = Threads(2, "rivet-errand", self.outages)
        # Apart from both: scheduled actions are users' code, and may wait for rows.
        self._fires = Threads(FIRE_THREADS, "rivet-fire", self.outages)
        # And hooks, which may never end.
        self._hooks = Threads(HOOK_THREADS, "rivet-hook", self.outages, hooks_exhausted)
        # And those that callers wait for.
        self._calls = Threads(CALL_THREADS, "rivet-call", self.outages, self._calls_exhausted)
        self._loop = WatchedLoop(
            lambda: StepLoop(concurrency, self.outages, self._settle, self._late), self._late
        )

    @property
    def running(self) -> int:
        """Attempts that were started and are not settled."""
        return len(self._running)

    def start(self, starts: Iterable[StepStart]) -> None:
        """Run these. Their starts are durable."""
        jobs: list[_StepJob] = []
        tasks: list[tuple[Attempt, Awaitable[Any] | None]] = []
        for start in starts:
            attempt = Attempt(start, self._env)
            self._running[start.token] = attempt
            if _is_async(start.function):
                tasks.append((attempt, None))
            else:
                jobs.append(_StepJob(attempt, self))
        if tasks:
            self._loop.submit(tasks)
        if jobs:
            self._threads.submit(jobs)

    def cancel(self, tokens: Iterable[StepToken]) -> None:
        """Their results are not wanted: cancel the tasks, tell the threads. Nothing is reported of them."""
        attempts = [attempt for token in tokens if (attempt := self._take(token)) is not None]
        for attempt in attempts:
            attempt.context.end("was cancelled", cancelled=True)
        if attempts:
            self._loop.cancel(attempts)

    def abandon(self) -> None:
        """The worker cannot wait any longer: report everything that is not settled as abandoned."""
        self._loop.tell()
        attempts = [attempt for token in list(self._running) if (attempt := self._take(token)) is not None]
        self._loop.cancel(attempts)
        for token in list(self._handovers):
            self.abort_atomic(token)
        for attempt in attempts:
            self._deliver([(attempt.start.token, attempt.abandoned())])

    def errand(self, function: Callable[[], None]) -> None:
        """Run ``function`` on a thread that has a healthy database connection. What it raises is logged."""
        self._errands.submit([_Errand(function)])

    def fire(self, function: Callable[[], None]) -> None:
        """As :meth:`errand`, on the threads of scheduled actions."""
        self._fires.submit([_Errand(function)])

    def hook(self, job: Job) -> None:
        """Run a hook."""
        self._hooks.submit([job])

    def call(self, job: Job) -> None:
        """Run an action for a caller."""
        self._calls.submit([job])

    @staticmethod
    def _calls_exhausted() -> None:
        logger.critical(
            "All %d threads for @action(on_worker=True) are stuck in actions that nobody waits for any more: this "
            "worker runs none until one of them ends",
            2 * CALL_THREADS,
        )

    def stop(self, timeout: float) -> bool:
        """End all threads; False when some still run users' code after ``timeout`` seconds."""
        self._threads.stop()
        self._errands.stop(finish=True)
        self._fires.stop()
        self._calls.stop()
        self._hooks.stop(finish=True)
        ended = self._loop.stop(timeout)
        return (
            self._threads.join(timeout if ended else 0)
            and self._errands.join(timeout if ended else 0)
            and self._fires.join(timeout if ended else 0)
            and self._calls.join(timeout if ended else 0)
            and self._hooks.join(timeout if ended else 0)
            and ended
        )

    def commit_atomic(self, token: StepToken, item: CommitItem) -> None:
        """The core's answer to an atomic step: commit this in its transaction."""
        handover = self._handovers.pop(token, None)
        if handover is None or not handover.answer(item):
            # Too late, it was rolled back: the core must hear that, as it waits for what became of its commit.
            self._atomics.committed(token, CommitResult(item.actor_id, Commit.BUSY))

    def abort_atomic(self, token: StepToken) -> None:
        """Or: roll it back."""
        handover = self._handovers.pop(token, None)
        if handover is not None:
            handover.answer(None)

    # -- on the threads of the steps

    def _run_atomic(self, attempt: Attempt) -> bool:
        token, handover = attempt.start.token, Handover()

        def hand_over(report: StepReport) -> Handover:
            self._handovers[token] = handover
            self._deliver([(token, report)])
            return handover

        try:
            self._atomics.connect()
            with self._atomics.turn.of_step():
                outcome = run_atomic(
                    attempt,
                    alias=self._atomics.alias,
                    settle=lambda: self._take(token) is not None,
                    hand_over=hand_over,
                    commit=self._atomics.commit,
                    keep=self._atomics.keep,
                )
        except Exception as error:
            self._handovers.pop(token, None)
            if handover.item is None:
                # The transaction could not be begun, or broke before the core had heard of its end.
                if self._take(token) is not None:
                    self._deliver([(token, attempt.failed(error))])
                return False
            outcome = Outcome(result=self._atomics.resolve(handover.item, error))
        crashpoint("after-body")
        if outcome.report is not None:
            self._deliver([(token, outcome.report)])
        if outcome.result is not None:
            self._atomics.committed(token, outcome.result)
        return outcome.result is not None

    def _take(self, token: StepToken) -> Attempt | None:
        """Settle: whoever gets the attempt here decides how it ended. Atomic, as ``dict.pop`` is."""
        attempt = self._running.pop(token, None)
        if attempt is not None:
            attempt.settled = True
        return attempt

    def _settle(self, ended: list[tuple[Attempt, StepReport]]) -> None:
        told = []
        for attempt, report in ended:
            if self._take(attempt.start.token) is not None:
                told.append((attempt.start.token, report))
            else:
                logger.info("The late result of step %r is dropped", attempt.start.name)
        if told:
            self._deliver(told)

    def _late(self, attempt: Attempt) -> None:
        if self._take(attempt.start.token) is not None:
            self._deliver([(attempt.start.token, attempt.timed_out())])


@lru_cache(maxsize=4096)
def _is_async_plain(function: Any) -> bool:
    return bool(iscoroutinefunction(function) or iscoroutinefunction(getattr(function, "__call__", None)))  # noqa: B004


def _is_async(function: Any) -> bool:
    # Bound methods are made anew at each look-up; the function behind them is not.
    plain = getattr(function, "__func__", function)
    try:
        return _is_async_plain(plain)
    except TypeError:  # not hashable
        return bool(iscoroutinefunction(plain))
