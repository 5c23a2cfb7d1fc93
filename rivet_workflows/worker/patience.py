"""Database verbs of the worker's own, carried through outages: said once, tried again with growing pauses, not lost.

A worker outlives its database: it does not exit when that restarts, and nothing it holds is forgotten meanwhile.
Errors that are no outage (a statement that is wrong, a missing table) get out.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import ParamSpec, TypeVar

from django.db import InterfaceError, InternalError, OperationalError, connections

from rivet_workflows.store.errors import Trouble, classify
from rivet_workflows.worker.connections import drop

logger = logging.getLogger("rivet_workflows.worker")

P = ParamSpec("P")
R = TypeVar("R")

#: Seconds. All that a worker holds goes on within two of the return of its database.
FIRST_PAUSE, LONGEST_PAUSE = 0.05, 1.0
#: What an outage looks like. InternalError: a server that became a read-only standby.
OUTAGES = (OperationalError, InterfaceError, InternalError)


class GivenUp(Exception):
    """The worker must leave, and the database still does not answer."""


class Patience:
    """Runs verbs on the calling thread's connection to ``alias``.

    ``pause(seconds)`` waits and returns False when there is no time left; ``back`` is called on this thread after
    each outage, before the verb is tried again: to prepare the new connection, and to take note.
    """

    def __init__(
        self,
        alias: str,
        pause: Callable[[float], bool],
        back: Callable[[], None],
        turn: Callable[[], AbstractContextManager[None]] = nullcontext,
    ) -> None:
        self._alias = alias
        #: Held while a verb runs; see :class:`~rivet_workflows.worker.atomic.WriteTurn`.
        self.turn = turn
        self._pause = pause
        self._back = back
        #: Outages that were got over.
        self.outages = 0
        self._in_a_row = 0

    def __call__(self, verb: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """``verb(*args)``, however long the database is away. Raises :class:`GivenUp`."""
        try:
            with self.turn():
                return verb(*args, **kwargs)
        except OUTAGES as error:
            if _is_ours(error):
                raise
            first = error
        return self._persist(first, verb, *args, **kwargs)

    def recover(self, error: Exception) -> None:
        """A verb that must not simply be repeated has failed: come back when the database answers.

        It may answer, and the verb fail again for a reason that lasts (a full disk): the pause grows from one such
        failure to the next, until :meth:`succeeded`. Raises ``error`` itself when it is no outage.
        """
        if isinstance(error, OUTAGES) and _is_ours(error):
            raise error
        self._persist(error, lambda: None)
        self._in_a_row += 1

    def succeeded(self) -> None:
        """The verb that :meth:`recover` was called for has worked."""
        self._in_a_row = 0

    def _persist(self, error: Exception, verb: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        began, pause = time.monotonic(), min(LONGEST_PAUSE, FIRST_PAUSE * 2.0 ** min(self._in_a_row, 10))
        busy = isinstance(error, OUTAGES) and classify(error) in (Trouble.LOCKED, Trouble.AGAIN)
        if not busy and self._in_a_row == 0:
            logger.warning("The database does not answer (%s); trying again until it does", describe(error))
        while True:
            if not busy:
                drop(self._alias)
            if not self._pause(pause):
                raise GivenUp from error
            pause = min(LONGEST_PAUSE, pause * 2)
            try:
                if not busy:
                    self._back()
                with self.turn():
                    result = verb(*args, **kwargs)
            except OUTAGES as again:
                if _is_ours(again):
                    raise
                continue
            if not busy:
                self.outages += 1
                if self._in_a_row == 0:
                    logger.warning("The database answers again, after %.1f s", time.monotonic() - began)
            return result


def is_outage(error: BaseException) -> bool:
    """Is it about the database being away, and not about what was asked of it?"""
    return isinstance(error, OUTAGES) and not _is_ours(error)


def insist(alias: str, verb: Callable[[], R], go_on: Callable[[], bool]) -> R:
    """``verb()`` on another thread than the core's, again and again while ``go_on()``, however long the database is
    away: what the worker itself asks must not cost the step for which it asks an attempt.

    Raises the outage's error when it is time to go, and at once inside a transaction, which is lost with the
    connection.
    """
    pause = FIRST_PAUSE
    while True:
        try:
            return verb()
        except OUTAGES as error:
            if not is_outage(error) or connections[alias].in_atomic_block or not go_on():
                raise
        drop(alias)
        time.sleep(pause)
        pause = min(LONGEST_PAUSE, pause * 2)


def _is_ours(error: Exception) -> bool:
    """A statement that cannot work (SQLite reports a missing table like a lost connection)."""
    return "no such table" in str(error) or "no such column" in str(error)


def describe(error: Exception) -> str:
    """One line: drivers write several."""
    return (str(error).strip() or type(error).__name__).splitlines()[0]
