"""The event loop that ``async def`` steps run on: a thread of its own, ordinary tasks, so many at a time.

A loop apart from the worker's core, so that a step that blocks it stops other async steps and nothing else. Steps
are real tasks: driven any other way, ``asyncio.timeout()`` before the first suspension fails.

Django runs the sync parts of async code (its ORM) on the thread of a ``ThreadSensitiveContext``. One per step costs
7.8 ms and a database connection that nobody closes, so the contexts are pooled: each keeps its one thread, and that
keeps a healthy connection. A context whose thread may still be busy, because its step was cancelled, is not given on.
"""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import logging
import sys
import threading
import time
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from concurrent.futures import Executor
from contextlib import suppress
from typing import Any

from asgiref.sync import SyncToAsync, ThreadSensitiveContext

from rivet_workflows.crashpoints import crashpoint
from rivet_workflows.worker.attempt import Attempt, drive
from rivet_workflows.worker.connections import Health, Outages, close_all
from rivet_workflows.worker.orders import StepReport

logger = logging.getLogger("rivet_workflows.worker")


class _Lane:
    """A pooled context. Its thread exists once a step has used the ORM or ``sync_to_async``."""

    __slots__ = ("_vars", "context", "health")

    def __init__(self, outages: Outages) -> None:
        self.context = ThreadSensitiveContext()
        self.health = Health(outages)
        self._vars = contextvars.Context()
        self._vars.run(SyncToAsync.thread_sensitive_context.set, self.context)

    def variables(self) -> contextvars.Context:
        """The context variables of a step that runs in it, untouched by those before it."""
        return self._vars.copy()

    @property
    def executor(self) -> Executor | None:
        return SyncToAsync.context_to_thread_executor.get(self.context)

    def before(self) -> None:
        executor = self.executor
        if executor is not None and self.health.due():
            executor.submit(self.health.before)  # one thread: it runs before whatever the step submits

    def after(self, *, failed: bool) -> None:
        self.health.used()
        executor = self.executor
        if executor is not None and failed:
            executor.submit(self.health.after, failed=True)

    def close(self) -> None:
        """End its thread, once that is free, with its connections. Does not wait."""
        executor = SyncToAsync.context_to_thread_executor.pop(self.context, None)
        if executor is not None:
            executor.submit(close_all)
            executor.shutdown(wait=False)


class _Run:
    """An attempt on its way through the loop."""

    __slots__ = ("attempt", "awaitable", "deadline", "lane", "taken_back", "task")

    def __init__(self, attempt: Attempt, awaitable: Awaitable[Any] | None) -> None:
        self.attempt = attempt
        #: Given when a ``def`` step turned out to return something to await.
        self.awaitable = awaitable
        self.deadline: _Deadline | None = None
        self.lane: _Lane | None = None
        self.task: asyncio.Task[None] | None = None
        #: Timed out or cancelled: what it still reports is not wanted, its lane not reused.
        self.taken_back = False

    def drop(self) -> None:
        """It will not begin. A coroutine that exists already is closed, or Python would complain of it."""
        if inspect.iscoroutine(self.awaitable):
            self.awaitable.close()


class _Deadline:
    """When a step must have ended. ``run`` is gone once it has, with what it holds."""

    __slots__ = ("due", "run")

    def __init__(self, run: _Run, due: float) -> None:
        self.run: _Run | None = run
        self.due = due


class _Deadlines:
    """The deadlines of the steps on a loop: a queue, and one timer of the loop's, for each length of timeout.

    Steps of one timeout are due in the order in which they began, and most end long before: a timer for each, made,
    kept in order and cancelled, took 4 µs of a trivial step's 20.
    """

    #: So many that have ended may stand behind one that runs before they are cleared out.
    ENDED = 1_000

    def __init__(self, loop: asyncio.AbstractEventLoop, late: Callable[[_Run], None]) -> None:
        self._loop = loop
        self._late = late
        self._queues: dict[float, deque[_Deadline]] = {}

    def add(self, run: _Run, timeout: float) -> None:
        run.deadline = deadline = _Deadline(run, self._loop.time() + timeout)
        queue = self._queues.get(timeout)
        if queue is None:
            queue = self._queues[timeout] = deque()
            self._loop.call_at(deadline.due, self._look, timeout)
        while queue and queue[0].run is None:
            queue.popleft()
        queue.append(deadline)
        if len(queue) % self.ENDED == 0:
            running = [deadline for deadline in queue if deadline.run is not None]
            queue.clear()
            queue.extend(running)

    def _look(self, timeout: float) -> None:
        queue, now = self._queues[timeout], self._loop.time()
        while queue:
            run, due = queue[0].run, queue[0].due
            if run is not None and due > now:
                self._loop.call_at(due, self._look, timeout)
                return
            queue.popleft()
            if run is not None:
                self._late(run)  # which may begin another
        del self._queues[timeout]


class StepLoop:
    """Runs attempts of ``async def`` steps. ``done`` and ``late`` are called on the loop's thread.

    ``done`` is told of all that end in one turn of the loop together: whoever is told would otherwise wake for the
    first and take the interpreter from the others.
    """

    def __init__(
        self,
        concurrency: int,
        outages: Outages,
        done: Callable[[list[tuple[Attempt, StepReport]]], None],
        late: Callable[[Attempt], None],
    ) -> None:
        self._concurrency = concurrency
        self._outages = outages
        self._done = done
        self._late = late
        self._loop = asyncio.new_event_loop()
        self._loop.set_exception_handler(_log_problem)
        self._deadlines = _Deadlines(self._loop, self._time_out)
        self._waiting: deque[_Run] = deque()
        self._active: dict[Attempt, _Run] = {}
        self._lanes: list[_Lane] = []
        #: Reports of this turn of the loop.
        self._ended: deque[tuple[Attempt, StepReport]] = deque()
        #: They will be told of in the next turn at the latest.
        self._tells = False
        self._stopping = self._filling = False
        self._thread: threading.Thread | None = None

    # -- from any thread

    def submit(self, attempts: Iterable[tuple[Attempt, Awaitable[Any] | None]]) -> None:
        """Run these, in order, as places get free. One wake-up of the loop, however many they are."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._serve, name="rivet-async", daemon=True)
            self._thread.start()
        runs = [_Run(attempt, awaitable) for attempt, awaitable in attempts]
        self._loop.call_soon_threadsafe(self._enter, runs)

    def cancel(self, attempts: Iterable[Attempt]) -> None:
        """Cancel these; what they report from here on is dropped."""
        if self._thread is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._take_back, list(attempts))

    @property
    def busy(self) -> bool:
        """Is anything running or waiting here?"""
        return bool(self._active or self._waiting)

    @property
    def thread_id(self) -> int | None:
        return self._thread.ident if self._thread is not None else None

    def ask(self) -> threading.Event:
        """An event that is set as soon as the loop turns."""
        turned = threading.Event()
        self._loop.call_soon_threadsafe(turned.set)
        return turned

    def overdue(self) -> list[Attempt]:
        """Attempts whose time is up, which a loop that hangs cannot see itself."""
        now = time.monotonic()
        runs = list(self._active.values())
        return [run.attempt for run in runs if run.deadline is not None and run.deadline.due <= now]

    def give_up_waiting(self) -> list[tuple[Attempt, Awaitable[Any] | None]]:
        """What has not begun. For a loop that hangs."""
        given = []
        with suppress(IndexError):
            while True:
                run = self._waiting.popleft()
                given.append((run.attempt, run.awaitable))
        return given

    def tell(self) -> None:
        """Tell of what has ended, from any thread. The loop does it by itself, where it does not hang."""
        self._tells = False
        ended = []
        with suppress(IndexError):
            while self._ended:
                ended.append(self._ended.popleft())
        if ended:
            self._done(ended)

    def stop(self, timeout: float) -> bool:
        """Cancel everything and end the thread; whether it has ended within ``timeout`` seconds."""
        if self._thread is None:
            self._loop.close()
            return True
        self._loop.call_soon_threadsafe(self._finish)
        self._thread.join(timeout)
        return not self._thread.is_alive()

    # -- on the loop

    def _serve(self) -> None:
        asyncio.set_event_loop(self._loop)
        while not self._stopping:
            try:
                self._loop.run_forever()
            except BaseException as error:  # SystemExit in a task that a step has created ends run_forever
                logger.error("%s was raised in a task that an async step created; the loop goes on", error)
        for lane in self._lanes:
            lane.close()
        close_all()  # this thread's own: the first touch of a step's state reads on it
        self._loop.close()

    def _enter(self, runs: list[_Run]) -> None:
        self._waiting.extend(runs)
        self._fill()
        self.tell()

    def _fill(self) -> None:
        if self._filling:
            return  # a step that has just begun is at its end already: whoever began it goes on
        self._filling = True
        try:
            while self._waiting and len(self._active) < self._concurrency and not self._stopping:
                try:
                    run = self._waiting.popleft()
                except IndexError:  # given to another loop, as this one hung
                    return
                if run.attempt.settled:
                    run.drop()
                    continue
                self._active[run.attempt] = run
                self._begin(run)
        finally:
            self._filling = False

    def _begin(self, run: _Run) -> None:
        run.lane = lane = self._lanes.pop() if self._lanes else _Lane(self._outages)
        lane.before()
        if run.attempt.timeout is not None:
            self._deadlines.add(run, run.attempt.timeout)
        run.task = _start(self._run(run), self._loop, lane.variables())

    async def _run(self, run: _Run) -> None:
        crashpoint("before-body")
        report = await drive(run.attempt, run.awaitable)
        crashpoint("after-body")
        if not run.taken_back:
            assert run.lane is not None
            run.lane.after(failed=not report.ok)
            self._lanes.append(run.lane)
            self._ended.append((run.attempt, report))
            self._leave(run)
            if not self._active and not self._filling:
                self.tell()
            elif not self._tells:
                self._tells = True
                self._loop.call_soon(self.tell)

    def _time_out(self, run: _Run) -> None:
        self._late(run.attempt)
        self._take_back([run.attempt])

    def _take_back(self, attempts: list[Attempt]) -> None:
        for attempt in attempts:
            run = self._active.get(attempt)
            if run is None:
                continue  # it has ended, or has not begun: _fill passes over it
            run.taken_back = True
            assert run.task is not None
            assert run.lane is not None
            run.task.cancel()
            run.task.add_done_callback(lambda _, lane=run.lane: lane.close())  # type: ignore[misc]
            self._leave(run)

    def _leave(self, run: _Run) -> None:
        """Its place is free, also where it does not heed its cancellation."""
        if run.deadline is not None:
            run.deadline.run = None
        if self._active.pop(run.attempt, None) is not None:
            self._fill()

    def _finish(self) -> None:
        self._stopping = True
        for run in self._waiting:
            run.drop()
        self._waiting.clear()
        self._take_back(list(self._active))
        # Two turns: one for the cancellations to be thrown, one for what they let end.
        self._loop.call_soon(self._loop.call_soon, self._loop.stop)


def _start(
    coroutine: Coroutine[Any, Any, None],
    loop: asyncio.AbstractEventLoop,
    variables: contextvars.Context,
) -> asyncio.Task[None]:
    """The coroutine as a task. From Python 3.12 on it runs at once, up to where it first waits: to its end, mostly."""
    if sys.version_info >= (3, 12):
        return asyncio.Task(coroutine, loop=loop, context=variables, eager_start=True)
    return loop.create_task(coroutine, context=variables)


def _log_problem(_: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    logger.error("In an async step: %s", context.get("message"), exc_info=context.get("exception"))
