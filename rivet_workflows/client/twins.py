"""How an ``a``-twin runs its sync form: in a thread with a healthy database connection of its own.

The ORM is synchronous underneath, so ``await handle.acall(...)`` must run in some thread. Under Django's ASGI handler
and under ``async_to_sync`` (async views, async tests of ``TestCase``) that is the thread that the caller's own ORM
calls use, so both see one transaction. Where there is no such thread (plain asyncio, Channels), asgiref would run
every call of the process one after the other in a single one; here they get a pool. Five actions of 0.2 s each took
1.0 s in the former (engineering notes), 0.2 s in the latter.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from functools import partial
from typing import Any, ParamSpec, TypeVar, cast

from asgiref.sync import AsyncToSync, SyncToAsync, sync_to_async
from django.db import connections

from rivet_workflows.conf import settings

__all__ = ["in_thread", "keep_to_one_thread", "pool"]

P = ParamSpec("P")
R = TypeVar("R")

#: Threads, and with them connections, that the twins of one process use at most.
MAX_THREADS = 16
#: Seconds until a thread without work closes its connections and ends.
IDLE = 10.0
#: Seconds after which a connection is tested before it is used again.
TEST_AFTER = 5.0


_one_thread = False


def keep_to_one_thread(on: bool) -> None:
    """Run all twins in the thread of the caller's own ORM calls. For tests, which run in one transaction."""
    global _one_thread
    _one_thread = on


async def in_thread(function: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R:
    """Call ``function`` in a thread as described above and give what it returns."""
    if _caller_has_thread():
        return await sync_to_async(function, thread_sensitive=True)(*args, **kwargs)
    # asgiref only submits to it, which any executor can take.
    executor = cast(ThreadPoolExecutor, pool)
    return await sync_to_async(function, thread_sensitive=False, executor=executor)(*args, **kwargs)


def _caller_has_thread() -> bool:
    if _one_thread:
        return True
    if getattr(AsyncToSync.executors, "current", None):
        return True
    if SyncToAsync.thread_sensitive_context.get(None):
        return True
    if asyncio.get_running_loop() in AsyncToSync.loop_thread_executors:
        return True
    # Two threads on one SQLite database in memory refuse each other at once ("table is locked"): tests have those.
    connection: Any = connections[settings.DATABASE]
    return bool(connection.vendor == "sqlite" and connection.is_in_memory_db())


class _Pool(Executor):
    """Daemon threads on demand; each keeps its connections while it has work and closes them when it ends.

    ``ThreadPoolExecutor`` keeps idle threads, and the connections in them, for ever, and joins them at exit.
    """

    def __init__(self) -> None:
        self._work: deque[tuple[Future[Any], Callable[[], Any]]] = deque()
        self._changed = threading.Condition()
        self._threads: set[threading.Thread] = set()
        self._waiting = 0
        self._leave = False

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        with self._changed:
            self._work.append((future, partial(fn, *args, **kwargs)))
            if self._waiting >= len(self._work):
                self._changed.notify()
            elif len(self._threads) < MAX_THREADS:
                thread = threading.Thread(target=self._run, name="rivet-client", daemon=True)
                self._threads.add(thread)
                thread.start()
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Let idle threads close their connections and end; the pool stays usable. For tests."""
        with self._changed:
            threads = list(self._threads)
            self._leave = True
            self._changed.notify_all()
        for thread in threads if wait else ():
            thread.join()
        with self._changed:
            self._leave = False

    def _run(self) -> None:
        used = 0.0
        try:
            while (item := self._next()) is not None:
                future, call = item
                if future.set_running_or_notify_cancel():
                    _tidy_connections(test=time.monotonic() - used > TEST_AFTER)
                    _settle(future, call)
                    used = time.monotonic()
                del item, future, call
        finally:
            connections.close_all()

    def _next(self) -> tuple[Future[Any], Callable[[], Any]] | None:
        with self._changed:
            self._waiting += 1
            self._changed.wait_for(lambda: self._work or self._leave, timeout=IDLE)
            self._waiting -= 1
            if self._work:
                return self._work.popleft()
            self._threads.discard(threading.current_thread())
            return None


def _settle(future: Future[Any], call: Callable[[], Any]) -> None:
    try:
        result = call()
    except BaseException as error:
        future.set_exception(error)
    else:
        future.set_result(result)


def _tidy_connections(*, test: bool) -> None:
    """Drop connections that an error or the server left unusable; the others are kept, whatever CONN_MAX_AGE says."""
    for connection in connections.all(initialized_only=True):
        if connection.connection is None or connection.in_atomic_block:
            continue
        if (test or connection.errors_occurred) and not connection.is_usable():
            connection.close()
        connection.errors_occurred = False


pool = _Pool()
