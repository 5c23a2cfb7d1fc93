"""Async code in the calling thread, on the calling thread's database connection.

Django's ORM is synchronous underneath: ``await Order.objects.aget()`` sends the query to some thread, and where
nobody says which, that is not the thread whose connection holds the test's transaction. Here it is: an executor that
runs what it is given at once, in the thread that gives it, as if no event loop ran there.

Touches asgiref's table of executors (for its own loops, and for a test's while that runs) and nothing of Django's.
"""

from __future__ import annotations

import asyncio
import asyncio.events
import asyncio.tasks
import contextvars
from collections.abc import Callable, Collection, Coroutine, Iterator
from concurrent.futures import Executor, Future
from contextlib import contextmanager
from functools import partial
from typing import Any

from asgiref.sync import AsyncToSync, SyncToAsync

__all__ = ["HereExecutor", "HereLoop", "no_loop", "queries_here"]


@contextmanager
def no_loop() -> Iterator[None]:
    """While this is entered, no event loop and no task is seen to run in this thread: another loop may run in it."""
    loop = asyncio.events._get_running_loop()
    if loop is None:
        yield
        return
    task = asyncio.current_task(loop)
    if task is not None:
        asyncio.tasks._leave_task(loop, task)
    asyncio.events._set_running_loop(None)
    try:
        yield
    finally:
        asyncio.events._set_running_loop(loop)
        if task is not None:
            asyncio.tasks._enter_task(loop, task)


class _NoLoop:
    """Stands for the loop that waits for this very thread: ``async_to_sync`` must not send anything to it."""

    @staticmethod
    def is_running() -> bool:
        return False

    @staticmethod
    def create_task(*_: object) -> None:
        """Named where a call is prepared, never called."""

    @staticmethod
    def call_soon_threadsafe(*_: object) -> None:
        raise RuntimeError("this loop waits for the thread that asks")


class HereExecutor(Executor):
    """Runs at once, in the submitting thread."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Call ``fn``; the future is done when this returns."""
        future: Future[Any] = Future()
        if isinstance(fn, partial) and fn.args and isinstance(fn.args[0], asyncio.AbstractEventLoop):
            # asgiref's handler notes the loop it came from for a nested async_to_sync, which would wait for it.
            fn = partial(fn.func, _NoLoop(), *fn.args[1:], **fn.keywords)
        noted = dict(SyncToAsync.threadlocal.__dict__)
        with no_loop():
            try:
                result = self.run(fn, *args, **kwargs)
            except BaseException as error:
                future.set_exception(error)
            else:
                future.set_result(result)
            finally:
                # This thread is not one of asgiref's: it goes on without a loop above it.
                SyncToAsync.threadlocal.__dict__.clear()
                SyncToAsync.threadlocal.__dict__.update(noted)
        return future

    def run(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        """Call it."""
        return fn(*args, **kwargs)


async def queries_here(awaitable: Coroutine[Any, Any, Any]) -> Any:
    """Await, with every thread-sensitive call of the running loop made in this thread."""
    loop = asyncio.get_running_loop()
    table: dict[Any, Any] = AsyncToSync.loop_thread_executors
    before = table.get(loop)
    table[loop] = HereExecutor()
    try:
        return await awaitable
    finally:
        if before is None:
            del table[loop]
        else:
            table[loop] = before


class HereLoop:
    """Event loops that run in the calling thread, only while somebody waits for them. Made when needed.

    More than one: a task may wait for something that needs tasks of its own, while its own loop stands still.
    """

    def __init__(self, executor: HereExecutor) -> None:
        self._executor = executor
        self._loops: list[asyncio.AbstractEventLoop] = []
        self._tasks: set[asyncio.Task[Any]] = set()

    def start(self, coroutine: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """A task for ``coroutine``, in a context of its own, brought to its first wait."""
        loop = self._idle()
        # An empty context: what asgiref knows of the caller's threads would lead the task's queries elsewhere.
        task: asyncio.Task[Any] = contextvars.Context().run(loop.create_task, coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        with no_loop():
            loop.run_until_complete(asyncio.sleep(0))
        return task

    def later(
        self, task: asyncio.Task[Any], delay: float, function: Callable[[], None]
    ) -> asyncio.TimerHandle:
        """Call ``function`` after ``delay`` real seconds, while ``task``'s loop runs."""
        return task.get_loop().call_later(delay, function)

    def wait(self, tasks: Collection[asyncio.Task[Any]]) -> bool:
        """Run until one of ``tasks`` is done; False when all of them wait for the caller itself."""
        movable = [task for task in tasks if not task.get_loop().is_running()]
        if not movable:
            return False
        loop = movable[0].get_loop()
        with no_loop():
            loop.run_until_complete(
                asyncio.wait(
                    [task for task in movable if task.get_loop() is loop], return_when=asyncio.FIRST_COMPLETED
                )
            )
        return True

    def close(self) -> None:
        """Cancel what is left, give it a moment to unwind, and end."""
        with no_loop():
            for task in list(self._tasks):
                task.cancel()
            for loop in self._loops:
                left = [task for task in self._tasks if task.get_loop() is loop]
                if left:
                    loop.run_until_complete(asyncio.wait(left, timeout=1))
                loop.run_until_complete(loop.shutdown_asyncgens())
                AsyncToSync.loop_thread_executors.pop(loop, None)
                loop.close()
        self._loops.clear()

    def _idle(self) -> asyncio.AbstractEventLoop:
        """A loop that does not run now."""
        for loop in self._loops:
            if not loop.is_running():
                return loop
        loop = asyncio.new_event_loop()
        table: dict[Any, Any] = AsyncToSync.loop_thread_executors
        table[loop] = self._executor
        self._loops.append(loop)
        return loop
