"""The database connections of step threads: kept, and kept healthy.

Django closes a connection after each request unless ``CONN_MAX_AGE`` says otherwise; a step is no request, and
opening a connection for each cost 8.5 ms instead of 0.08. So the worker's threads keep theirs whatever the setting
says. They are looked at where something may have broken them: after a failed step, after a rest, and after an outage
that another thread has seen. The project's settings are never touched: they are shared by all threads.
"""

from __future__ import annotations

import logging
import time
from contextlib import suppress

from django.db import DatabaseError, connections

logger = logging.getLogger("rivet_workflows.worker")

#: Seconds of rest after which a connection is asked whether it still works before a step gets it.
RESTED = 60.0


class Outages:
    """Counts the outages that the worker has seen; a thread that last looked before one asks its connections."""

    __slots__ = ("count",)

    def __init__(self) -> None:
        self.count = 0

    def seen(self) -> None:
        self.count += 1


class Health:
    """The state of one thread's connections; called on that thread."""

    __slots__ = ("_outages", "_seen", "_used_at")

    def __init__(self, outages: Outages) -> None:
        self._outages = outages
        self._seen = outages.count
        self._used_at = time.monotonic()

    def due(self) -> bool:
        """Have they rested long, or may an outage have cut them?"""
        return self._outages.count != self._seen or time.monotonic() - self._used_at > RESTED

    def before(self) -> None:
        """Before a step: ask the connections if that is due."""
        if self.due():
            self._seen = self._outages.count
            mend(ask=True)

    def after(self, *, failed: bool) -> None:
        """After a step: what it left behind is cleared."""
        self.used()
        mend(ask=failed)

    def used(self) -> None:
        self._used_at = time.monotonic()


def mend(*, ask: bool) -> None:
    """Leave this thread's connections so that the next step can use them.

    A transaction that was left open is rolled back. ``ask``: those that do not answer are closed; the next query opens
    new ones. Never raises.
    """
    for connection in connections.all(initialized_only=True):
        if connection.connection is None:
            continue
        try:
            if connection.in_atomic_block or (
                connection.get_autocommit() != connection.settings_dict["AUTOCOMMIT"]
            ):
                logger.warning(
                    "A step left a transaction open on %r; it is rolled back. Use `with transaction.atomic()`.",
                    connection.alias,
                )
                drop(connection.alias)
            elif (ask or connection.errors_occurred) and not connection.is_usable():
                connection.close()
            connection.errors_occurred = False
        except (
            Exception
        ):  # a connection that cannot even be asked is as good as none: the next use opens a new one
            drop(connection.alias)


def drop(alias: str) -> None:
    """Forget this thread's connection, whatever state it is in; the next use opens a new one."""
    connection = connections[alias]
    raw, connection.connection = connection.connection, None
    with suppress(Exception):
        if raw is not None:
            raw.close()
    with suppress(AttributeError):
        del connections[alias]


def close_all() -> None:
    """Close this thread's connections, as it ends. Never raises."""
    for connection in connections.all(initialized_only=True):
        with suppress(DatabaseError, Exception):
            connection.close()
