"""Async code in the calling thread, on the calling thread's database connection.

Django's ORM is synchronous underneath: ``await Order.objects.aget()`` sends the query to some thread, and where
nobody says which, that is not the thread whose connection holds the test's transaction. Here it is: an executor that
runs what it is given at once, in the thread that gives it, as if no event loop ran there.

Touches asgiref's table of executors (for its own loops and for a test's, while that runs) and nothing of Django's.
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

from asgiref.sync import AsyncToSync

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
        with no_loop():
            try:
                result = fn(*args, **kwargs)
            except BaseException as error:
                future.set_exception(error)
            else:
                future.set_result(result)
        return future


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
    """An event loop that runs in the calling thread, only while somebody waits for it. Made at first use."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._tasks: set[asyncio.Task[Any]] = set()

    def start(self, coroutine: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """A task for ``coroutine``; it runs in the next :meth:`wait`, in a context of its own."""
        loop = self._opened()
        # An empty context: what asgiref knows of the caller's threads would lead the task's queries elsewhere.
        task: asyncio.Task[Any] = contextvars.Context().run(loop.create_task, coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def later(self, delay: float, function: Callable[[], None]) -> asyncio.TimerHandle:
        """Call ``function`` after ``delay`` real seconds."""
        return self._opened().call_later(delay, function)

    def wait(self, tasks: Collection[asyncio.Task[Any]], timeout: float | None = None) -> None:
        """Run until one of ``tasks`` is done."""
        if tasks:
            with no_loop():
                self._opened().run_until_complete(
                    asyncio.wait(tasks, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
                )

    def close(self) -> None:
        """Cancel what is left, give it a moment to unwind, and end."""
        loop, self._loop = self._loop, None
        if loop is None:
            return
        with no_loop():
            for task in self._tasks:
                task.cancel()
            if self._tasks:
                loop.run_until_complete(asyncio.wait(self._tasks, timeout=1))
            loop.run_until_complete(loop.shutdown_asyncgens())
            AsyncToSync.loop_thread_executors.pop(loop, None)
            loop.close()

    def _opened(self) -> asyncio.AbstractEventLoop:
        if self._loop is None:
            self._loop = asyncio.new_event_loop()
            table: dict[Any, Any] = AsyncToSync.loop_thread_executors
            table[self._loop] = HereExecutor()
        return self._loop
