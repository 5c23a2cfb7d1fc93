"""The bell of a process: who waits for which actor, and one thread that listens for all of them.

The thread, and its connection, are there while somebody waits. A bell is a hint: who waits also looks now and then.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import TYPE_CHECKING, TypeAlias
from uuid import UUID

from django.db import connections

from rivet_workflows.conf import settings

if TYPE_CHECKING:
    from rivet_workflows.store.listening import Listener

__all__ = [
    "Callback",
    "announce",
    "announce_schedules",
    "awatch",
    "listen",
    "shutdown",
    "spread",
    "unlisten",
    "watch",
]

logger = logging.getLogger("rivet_workflows.client")

#: Called in the listening thread: it must only pass the news on.
Callback: TypeAlias = Callable[[], None]

#: Seconds that the thread goes on without anybody who waits.
LINGER = 2.0
#: Seconds of rest after a bell that does not say whose it is (SQLite), for each who waits and at most: it makes
#: everybody look.
REST_EACH, REST = 0.002, 0.03
#: Seconds after which the thread sees by itself whether it is still needed.
CHECK = 5.0


def announce(work: Iterable[UUID] = (), news: Iterable[UUID] = ()) -> None:
    """Ring for these actors once the open transaction commits (at once outside one): ``work`` where a worker may
    have something to do, ``news`` where somebody may wait for what was written."""
    from rivet_workflows.store import bells

    bells.ring(settings.DATABASE, work, news)


def announce_schedules() -> None:
    """Likewise, for all workers: a schedule was set, which may be the next to fire."""
    from rivet_workflows.store import bells

    bells.ring(settings.DATABASE, [bells.SCHEDULES])


class _Exchange:
    """The callbacks of this process, and the thread that listens for them."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._callbacks: dict[UUID, list[Callback]] = {}
        self._thread: threading.Thread | None = None
        self._listener: Listener | None = None
        self._stop = threading.Event()

    def add(self, actor_id: UUID, callback: Callback) -> None:
        with self._lock:
            self._callbacks.setdefault(actor_id, []).append(callback)
            if self._thread is None:
                self._stop.clear()
                self._thread = threading.Thread(target=self._run, name="rivet-bells", daemon=True)
                self._thread.start()

    def remove(self, actor_id: UUID, callback: Callback) -> None:
        with self._lock:
            there = self._callbacks[actor_id]
            there.remove(callback)
            if not there:
                del self._callbacks[actor_id]

    def spread(self, actor_ids: Iterable[UUID] | None) -> None:
        """Call back who waits for these actors; None: everybody."""
        with self._lock:
            wanted = self._callbacks if actor_ids is None else actor_ids
            heard = [callback for actor_id in wanted for callback in self._callbacks.get(actor_id, ())]
        for callback in heard:
            callback()

    def stop(self) -> None:
        with self._lock:
            thread, listener = self._thread, self._listener
            self._stop.set()
        if listener is not None:
            listener.wake()
        if thread is not None:
            thread.join()

    def _run(self) -> None:
        from rivet_workflows.store.listening import Listener

        listener = Listener(settings.DATABASE, news=True)
        with self._lock:
            self._listener = listener
        idle = False
        try:
            while not self._leave(idle):
                with self._lock:
                    waiting = len(self._callbacks)
                idle = not waiting
                heard = listener.wait(LINGER if idle else CHECK)
                if heard.everything:
                    self.spread(None)
                    self._stop.wait(min(REST, REST_EACH * waiting))
                elif heard.news:
                    self.spread(heard.news)
        except Exception:
            logger.exception("the bells of this process have stopped; waiting goes on by polling")
        finally:
            with self._lock:
                if self._thread is threading.current_thread():
                    self._thread = None
            listener.close()
            connections.close_all()

    def _leave(self, idle: bool) -> bool:
        """Is the thread no longer needed? Whoever comes after that starts another."""
        with self._lock:
            if self._stop.is_set() or (idle and not self._callbacks):
                self._thread = self._listener = None
                return True
            return False


_exchange = _Exchange()


def listen(actor_id: UUID, callback: Callback) -> Callback:
    """Call ``callback`` whenever something of this actor was committed, as far as bells can tell."""
    _exchange.add(actor_id, callback)
    return callback


def unlisten(actor_id: UUID, callback: Callback) -> None:
    """The reverse, once per ``listen``."""
    _exchange.remove(actor_id, callback)


def spread(actor_ids: Iterable[UUID]) -> None:
    """Call back who waits for these actors in this process; for news that came by another way than bells."""
    _exchange.spread(actor_ids)


def shutdown() -> None:
    """End the listening thread and its connection, until somebody waits again. For tests."""
    _exchange.stop()


class Watch:
    """One waiting thread's bell."""

    def __init__(self) -> None:
        self._rung = threading.Event()

    def ring(self) -> None:
        self._rung.set()

    def clear(self) -> None:
        self._rung.clear()

    def wait(self, timeout: float) -> bool:
        """Was it rung within ``timeout`` seconds?"""
        return self._rung.wait(timeout)


class AsyncWatch:
    """One waiting coroutine's bell."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._rung = asyncio.Event()

    def ring(self) -> None:
        try:
            self._loop.call_soon_threadsafe(self._rung.set)
        except RuntimeError:  # the loop has ended, and with it who waited
            return

    def clear(self) -> None:
        self._rung.clear()

    async def wait(self, timeout: float) -> bool:
        """Was it rung within ``timeout`` seconds?"""
        try:
            async with asyncio.timeout(timeout):
                return await self._rung.wait()
        except TimeoutError:
            return False


@contextmanager
def watch(actor_id: UUID) -> Iterator[Watch]:
    """Hear the bell of an actor, in this thread."""
    mine = Watch()
    callback = listen(actor_id, mine.ring)
    try:
        yield mine
    finally:
        unlisten(actor_id, callback)


@asynccontextmanager
async def awatch(actor_id: UUID) -> AsyncIterator[AsyncWatch]:
    """Hear the bell of an actor, on this event loop."""
    mine = AsyncWatch()
    callback = listen(actor_id, mine.ring)
    try:
        yield mine
    finally:
        unlisten(actor_id, callback)
