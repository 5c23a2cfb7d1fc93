"""PostgreSQL: statements run by the server's own binding, and what a worker's connection is set to."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import psycopg

from rivet_workflows.store.base import StoreBase
from rivet_workflows.store.clock import POSTGRES_NOW, DatabaseClock

#: For connections that are a worker's own. Sequential scans and custom plans are off because of stale
#: statistics: queue-like tables are analysed while they are empty, and one bad plan of a bulk statement was
#: measured at 17 s. JIT would compile for what the switched-off scans pretend to cost.
TUNING = (
    "SELECT set_config('plan_cache_mode', 'force_generic_plan', false), set_config('enable_seqscan', 'off', false),"
    " set_config('jit', 'off', false), set_config('lock_timeout', '200ms', false),"
    " set_config('statement_timeout', '30s', false),"
    # Less than a lease: a worker stopped in its tracks in the middle of a claim lets its rows go.
    " set_config('idle_in_transaction_session_timeout', '5s', false)"
)


class PostgresBase(StoreBase):
    """Ways to run a statement beside Django's cursors, which bind on the client and prepare nothing."""

    def __init__(self, alias: str) -> None:
        super().__init__(alias)
        self.clock = DatabaseClock(POSTGRES_NOW, lambda sql: int(self.fast(sql)[0][0]))

    def fast(self, sql: str, params: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """Run ``sql`` with the values apart from it; prepared, on a tuned connection. The rows, if any."""
        connection = self.connection
        connection.ensure_connection()
        with connection.wrap_database_errors:
            cursor: psycopg.Cursor[tuple[Any, ...]] = psycopg.Cursor(connection.connection)
            cursor.execute(sql, params, prepare=True, binary=True)
            return cursor.fetchall() if cursor.description is not None else []

    def tune_connection(self) -> None:
        connection = self.connection
        connection.ensure_connection()
        raw: psycopg.Connection[Any] = connection.connection
        raw.prepare_threshold = 1  # Django's default of None refuses even those that ask to be prepared
        raw.prepared_max = 400
        self.query(TUNING)
