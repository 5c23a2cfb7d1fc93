"""The bell of a process: who waits for which actor, and one thread that listens for all of them.

The thread runs while somebody waits. Where the database has no bell, waiting is polling alone.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import TypeAlias
from uuid import UUID

__all__ = ["Callback", "awatch", "listen", "ring", "unlisten", "watch"]

logger = logging.getLogger("rivet_workflows.client")

#: Called in the listening thread: it must only pass the news on.
Callback: TypeAlias = Callable[[], None]

_lock = threading.Lock()
_callbacks: dict[UUID, list[Callback]] = {}


def listen(actor_id: UUID, callback: Callback) -> Callback:
    """Call ``callback`` whenever something of this actor was committed, as far as bells can tell."""
    with _lock:
        _callbacks.setdefault(actor_id, []).append(callback)
    return callback


def unlisten(actor_id: UUID, callback: Callback) -> None:
    """The reverse, once per ``listen``."""
    with _lock:
        there = _callbacks[actor_id]
        there.remove(callback)
        if not there:
            del _callbacks[actor_id]


def ring(actor_ids: Iterable[UUID]) -> None:
    """Something of these actors was committed."""
    with _lock:
        heard = [callback for actor_id in actor_ids for callback in _callbacks.get(actor_id, ())]
    for callback in heard:
        callback()


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
