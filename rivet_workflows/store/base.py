"""What every verb stands on: the connection of the calling thread, the clock, and small helpers for SQL."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, TypeAlias, TypeVar
from uuid import UUID

from django.db import connections, transaction
from django.db.backends.base.base import BaseDatabaseWrapper

from rivet_workflows.store.clock import Clock, HostClock

logger = logging.getLogger("rivet_workflows.store")

T = TypeVar("T")

#: Called with the number of the connection's socket, again and again until the server's answer is there: it does a
#: piece of other work, or waits until the socket can be read or there is other work.
Meanwhile: TypeAlias = Callable[[int], None]

#: Values per statement: SQLite took 999 until 3.32.
CHUNK = 500


def chunks(items: Sequence[T], size: int = CHUNK) -> Iterator[Sequence[T]]:
    for start in range(0, len(items), size):
        yield items[start : start + size]


def marks(values: Sequence[Any]) -> str:
    """``%s,%s,%s`` for as many values, to stand in ``IN (…)``; for none ``NULL``, which holds nothing: that the
    brackets may be empty only SQLite thinks."""
    return ",".join(["%s"] * len(values)) or "NULL"


def to_uuid(value: Any) -> UUID:
    """The UUID in what a driver returned for one."""
    return value if isinstance(value, UUID) else UUID(str(value))


def is_pooled(connection: BaseDatabaseWrapper) -> bool:
    """Does it lead through a transaction pooler? Django wants this option set then, so it tells."""
    return bool(connection.settings_dict.get("DISABLE_SERVER_SIDE_CURSORS"))


class StoreBase:
    """A database alias seen as a store. One object per alias, shared by all threads; it keeps no transaction
    and no connection of its own."""

    #: Format of history and inflight that this version writes, and the newest it reads.
    format = 1

    def __init__(self, alias: str) -> None:
        self.alias = alias
        self.clock: Clock = HostClock()
        #: Groups that were committed again after a deadlock or serialization failure.
        self.repeated = 0

    @property
    def connection(self) -> BaseDatabaseWrapper:
        """The calling thread's connection."""
        return connections[self.alias]

    @property
    def works_apart(self) -> bool:
        """Does a commit leave the thread to something else while the server works (``commit_group(meanwhile=…)``)?"""
        return False

    @property
    def vendor(self) -> str:
        """``sqlite``, ``postgresql`` or ``mysql`` (MariaDB)."""
        return self.connection.vendor

    @property
    def as_of_now(self) -> str:
        """What ends a SELECT of a row that is known to be there, as an insert has just met it. A transaction that
        began before it was committed must see it too, which a plain SELECT on MariaDB does not grant at REPEATABLE
        READ. (The insert has this very lock already; PostgreSQL has refused it by then.)"""
        return " LOCK IN SHARE MODE" if self.vendor == "mysql" else ""

    def atomic(self) -> AbstractContextManager[Any]:
        """A transaction, or a savepoint inside the one that is open (a test's, the testing kit's, a
        caller's)."""
        return transaction.atomic(using=self.alias)

    def guarded(self) -> AbstractContextManager[Any]:
        """For a single statement: nothing in autocommit, a savepoint inside a transaction, which else an
        error would leave unusable."""
        return self.atomic() if self.connection.in_atomic_block else nullcontext()

    def again(self, error: Exception) -> None:
        """The database ended a group's transaction for another's sake: it is about to be done once more."""
        self.repeated += 1
        logger.info("A group is committed again (%d so far): %s", self.repeated, error)

    def query(self, sql: str, params: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        with self.connection.cursor() as cursor:
            cursor.execute(sql, params)
            return list(cursor.fetchall())

    def query_often(self, sql: str, params: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """As :meth:`query`, for a fixed text that callers run over and over: it may be planned once and kept."""
        return self.query(sql, params)

    def execute(self, sql: str, params: Sequence[Any] = ()) -> int:
        """Run it; how many rows it met."""
        with self.connection.cursor() as cursor:
            cursor.execute(sql, params)
            return int(cursor.rowcount)

    def execute_many(self, sql: str, rows: Sequence[Sequence[Any]]) -> int:
        if not rows:
            return 0
        with self.connection.cursor() as cursor:
            cursor.executemany(sql, rows)
            return int(cursor.rowcount)

    def uid(self, value: UUID) -> Any:
        """The UUID as this database's driver takes it."""
        return value

    def uids(self, values: Iterable[UUID]) -> list[Any]:
        return [self.uid(value) for value in values]

    def tune_connection(self) -> None:
        """Prepare the calling thread's connection for a worker's own use. Never call it on a connection that
        users' code shares."""
