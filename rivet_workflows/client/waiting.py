"""Waiting for an actor, from any thread or event loop, without holding a transaction.

A waiter looks, then waits for the bell of its actor (what a worker commits is rung) and looks again; polling stays
behind the bell, at growing pauses, so that a lost ring only costs time. All waiters of a process share one listener
(:mod:`rivet_workflows.client.bells`).

Waiting inside a transaction is refused (D-24): what is waited for is not visible to anybody yet.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any, Protocol, TypeVar
from uuid import UUID

from django.db import connections

from rivet_workflows.client import bells
from rivet_workflows.client.twins import in_thread, keep_to_one_thread
from rivet_workflows.conf import settings
from rivet_workflows.engine.options import seconds

__all__ = ["Driver", "await_for", "checked_timeout", "refuse_in_transaction", "set_driver", "wait_for"]

T = TypeVar("T")

#: Seconds between looks when no bell rings: the first pause, its growth and its bound.
FIRST_PAUSE, GROWTH, LONGEST_PAUSE = 0.02, 1.5, 1.0


class Driver(Protocol):
    """What the testing kit puts in the place of waiting: it makes actors run, in the calling thread.

    Called with the look and the timeout in seconds (None: no bound); returns what the look gave, None when it gave
    nothing until then.
    """

    def __call__(self, look: Callable[[], T | None], timeout: float | None) -> T | None: ...


_driver: Driver | None = None


def set_driver(driver: Driver | None) -> Driver | None:
    """Install ``driver`` for this process, None for real waiting; returns the one before. For tests."""
    global _driver
    before, _driver = _driver, driver
    # It runs actors in the thread that waits, inside the test's transaction: async code must not leave that thread.
    keep_to_one_thread(driver is not None)
    return before


def checked_timeout(timeout: float | timedelta | None) -> float | None:
    """``timeout`` in seconds. ``TypeError`` or ``ValueError`` for what is no duration."""
    return None if timeout is None else seconds(timeout, "timeout")


def refuse_in_transaction(what: str) -> None:
    """Raise ``RuntimeError`` inside ``atomic`` on the tables' database; a ``TestCase``'s own transaction passes."""
    connection: Any = connections[settings.DATABASE]
    if not connection.in_atomic_block:
        return
    blocks = connection.atomic_blocks
    if blocks and blocks[-1]._from_testcase:
        return
    raise RuntimeError(
        f"{what} waits for a worker, which cannot see anything of this transaction before it ends: it would wait for "
        "ever. Call it outside of transaction.atomic() (and of ATOMIC_REQUESTS: @transaction.non_atomic_requests)."
    )


def wait_for(actor_id: UUID, look: Callable[[], T | None], timeout: float | None) -> T | None:
    """What ``look`` gives once it gives something; None when it has not within ``timeout`` seconds."""
    if _driver is not None:
        return _driver(look, timeout)
    pauses = _Pauses(timeout)
    with bells.watch(actor_id) as watch:
        while True:
            watch.clear()
            found = look()
            if found is not None:
                return found
            pause = pauses.next()
            if pause is None:
                return None
            if watch.wait(pause):
                pauses.rung()


async def await_for(actor_id: UUID, look: Callable[[], T | None], timeout: float | None) -> T | None:
    """:func:`wait_for` for event loops: it holds no thread while it waits."""
    if _driver is not None:
        return await in_thread(_driver, look, timeout)
    pauses = _Pauses(timeout)
    async with bells.awatch(actor_id) as watch:
        while True:
            watch.clear()
            found: Any = await in_thread(look)
            if found is not None:
                return found  # type: ignore[no-any-return]
            pause = pauses.next()
            if pause is None:
                return None
            if await watch.wait(pause):
                pauses.rung()


class _Pauses:
    """How long to wait before the next look: growing, and within the deadline. Monotonic time."""

    def __init__(self, timeout: float | None) -> None:
        self._deadline = None if timeout is None else time.monotonic() + timeout
        self._pause = FIRST_PAUSE

    def next(self) -> float | None:
        pause, self._pause = self._pause, min(self._pause * GROWTH, LONGEST_PAUSE)
        if self._deadline is None:
            return pause
        left = self._deadline - time.monotonic()
        return None if left <= 0 else min(pause, left)

    def rung(self) -> None:
        """The actor is at work: what is waited for may follow soon."""
        self._pause = FIRST_PAUSE
