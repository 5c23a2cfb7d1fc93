"""PostgreSQL: statements run by the server's own binding, and what a worker's connection is set to."""

from __future__ import annotations

import select
import time
from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any
from weakref import WeakKeyDictionary

import psycopg
from psycopg import pq

from rivet_workflows.store.base import Meanwhile, StoreBase, is_pooled
from rivet_workflows.store.clock import POSTGRES_NOW, DatabaseClock
from rivet_workflows.store.postgres.often import may_prepare, often
from rivet_workflows.store.postgres.prepared import Prepared

#: For connections that are a worker's own. Sequential scans and custom plans are off because of stale
#: statistics: queue-like tables are analysed while they are empty, and one bad plan of a bulk statement was
#: measured at 17 s. JIT would compile for what the switched-off scans pretend to cost.
_SETTINGS = {
    "plan_cache_mode": "force_generic_plan",
    "enable_seqscan": "off",
    "enable_bitmapscan": "off",
    "jit": "off",
    "lock_timeout": "200ms",
    "statement_timeout": "30s",
    # Less than a lease: a worker stopped in its tracks in the middle of a claim lets its rows go.
    "idle_in_transaction_session_timeout": "5s",
}


def _tuning(local: bool) -> str:
    """The settings for a session, or, ``local``, for a transaction."""
    return "SELECT " + ", ".join(
        f"set_config('{name}', '{value}', {str(local).lower()})" for name, value in _SETTINGS.items()
    )


#: Through a transaction pooler there is no session: the next transaction has another's, and other people have ours.
TUNING, TUNING_LOCAL = _tuning(False), _tuning(True)


#: In a statement of its own: its flush is left to the next commit. For looks: a crash of the server brings back the
#: wakes that they deleted. Never for a claim, though whatever follows it is flushed with it: where a crash undoes it,
#: the next claimer gets the same epoch, and the fence lets both commit.
UNHURRIED = "set_config('synchronous_commit', 'off', true)"

_prepared: WeakKeyDictionary[Any, Prepared] = WeakKeyDictionary()


class PostgresBase(StoreBase):
    """Ways to run a statement beside Django's cursors, which bind on the client and prepare nothing."""

    def __init__(self, alias: str) -> None:
        super().__init__(alias)
        self.clock = DatabaseClock(POSTGRES_NOW, lambda sql: int(self.fast(sql)[0][0]))

    @property
    def works_apart(self) -> bool:
        # Windows has no poll: there the worker's thread waits for the server as everywhere else.
        return hasattr(select, "poll") and not is_pooled(self.connection)

    def fast(
        self, sql: str, params: Sequence[Any] = (), meanwhile: Meanwhile | None = None
    ) -> list[tuple[Any, ...]]:
        """Run ``sql`` with the values apart from it; prepared, on a tuned connection. The rows, if any.

        ``meanwhile`` may be called while the server is at it, by this very thread: it must not use this connection.
        """
        connection = self.connection
        connection.ensure_connection()
        raw = connection.connection
        prepared = _prepared.get(raw)
        if prepared is not None and is_pooled(connection):
            return self._fast_through_pooler(sql, params)
        with connection.wrap_database_errors:
            if prepared is None:
                return _by_cursor(raw, sql, params)
            plans = prepared.plans
            if plans.stale:
                psycopg.Cursor(raw).execute("DISCARD PLANS", prepare=False)
                plans.renewed()
            begin = time.monotonic()
            if prepared.may_run(autocommit=raw.autocommit):
                rows = prepared.run(sql, params, meanwhile if self.works_apart else None)
            else:
                rows = _by_cursor(raw, sql, params)
            plans.took(begin, time.monotonic())
            return rows

    def query_often(self, sql: str, params: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        connection = self.connection
        if may_prepare(connection):
            with connection.cursor() as cursor:
                mine = often(connection)
                rows = mine.run(cursor, sql, params) if mine is not None and mine.wants(sql) else None
                if rows is not None:
                    return rows
        return self.query(sql, params)

    def _fast_through_pooler(self, sql: str, params: Sequence[Any]) -> list[tuple[Any, ...]]:
        """With nothing left behind in the server's session: settings of the transaction's own, nothing prepared.
        That is four round trips instead of one."""
        connection = self.connection
        with nullcontext() if connection.in_atomic_block else self.atomic():
            self.query(TUNING_LOCAL)
            with connection.wrap_database_errors:
                cursor: psycopg.Cursor[tuple[Any, ...]] = psycopg.Cursor(connection.connection)
                cursor.execute(sql, params, prepare=False, binary=True)
                return cursor.fetchall() if cursor.description is not None else []

    def tune_connection(self) -> None:
        connection = self.connection
        connection.ensure_connection()
        raw: psycopg.Connection[Any] = connection.connection
        if is_pooled(connection):
            _prepared.setdefault(raw, Prepared(raw))
            return
        raw.prepare_threshold = None
        self.query(TUNING)
        _prepared.setdefault(raw, Prepared(raw))


def _by_cursor(raw: psycopg.Connection[Any], sql: str, params: Sequence[Any]) -> list[tuple[Any, ...]]:
    cursor: psycopg.Cursor[tuple[Any, ...]] = psycopg.Cursor(raw)
    cursor.execute(sql, params, prepare=False, binary=True)
    returned = cursor.pgresult
    # Not ``cursor.description``, which makes an object per column.
    return cursor.fetchall() if returned is not None and returned.status == pq.ExecStatus.TUPLES_OK else []
