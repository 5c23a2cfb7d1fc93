"""PostgreSQL: statements run by the server's own binding, and what a worker's connection is set to."""

from __future__ import annotations

import itertools
import re
import select
import time
from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any
from weakref import WeakKeyDictionary

import psycopg
from psycopg import pq
from psycopg.adapt import Transformer

from rivet_workflows.store.base import Meanwhile, StoreBase, is_pooled
from rivet_workflows.store.clock import POSTGRES_NOW, DatabaseClock

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

IDLE, INTRANS = pq.TransactionStatus.IDLE, pq.TransactionStatus.INTRANS
#: A prepared statement that takes longer than this many seconds may have a plan made when tables were small.
SLOW = 0.03
#: Seconds between two replannings: at most, when statements are slow; at least, when none is.
REPLAN_SOONEST, REPLAN_LATEST = 2.0, 60.0


class Plans:
    """When to plan the prepared statements of a connection anew.

    A plan made while the tables were empty is kept by the server until they are analysed, minutes later, and then
    even a lookup by primary key may go along another index that has the column somewhere: 3 s were measured for a
    look at 200 queues among 10,000. (Where a table may be *analysed* while empty, as queues are, no column is in two
    indexes.) A fresh plan for each execution would cost 0.3 to 1 ms a time. So the plans are thrown away when a
    statement was slow, and now and then.
    """

    def __init__(self) -> None:
        self.made_at = time.monotonic()
        self._first = True
        self.stale = False

    def took(self, begin: float, end: float) -> None:
        """A statement was run."""
        age = end - self.made_at
        slow = end - begin > SLOW and (self._first or age > REPLAN_SOONEST)
        self.stale = self.stale or slow or age > REPLAN_LATEST

    def renewed(self) -> None:
        self.stale = self._first = False
        self.made_at = time.monotonic()


class Prepared:
    """Statements run on a tuned connection by libpq's own call: one round trip that blocks, and nothing else.

    psycopg's cursor takes 110 µs of Python for a statement with 22 parameters, this 30: a step alone in a worker
    took 0.1 ms longer. Nothing else may be prepared on the connection: psycopg deallocates *all* statements when a
    transaction is rolled back in which it has prepared one.
    """

    #: Texts that may be prepared on one connection; they are few, as they are made of parts.
    MOST = 400

    def __init__(self, raw: psycopg.Connection[Any]) -> None:
        self.plans = Plans()
        self._pgconn = raw.pgconn
        #: psycopg begins a transaction of a special kind itself.
        self._plain = (raw.isolation_level, raw.read_only, raw.deferrable) == (None, None, None)
        # Of its adapters, not of the connection, which would be kept for ever by what is kept as long as it is there.
        self._rows = Transformer(raw.adapters)
        self._names: dict[str, bytes] = {}
        self._numbers = itertools.count()

    def run(
        self, sql: str, params: Sequence[Any], meanwhile: Meanwhile | None = None
    ) -> list[tuple[Any, ...]]:
        """The rows, if any. Values are sent as text, of the types that the statement says they have."""
        values = [_sent(value) for value in params]
        try:
            result = self._execute(sql, values, meanwhile)
        except psycopg.errors.InvalidSqlStatementName as exc:  # somebody has deallocated them
            self._names.clear()
            if self.in_transaction_block:
                # Of the kind after which a transaction is made again.
                raise psycopg.errors.SerializationFailure(f"{exc}: make the transaction again") from exc
            result = self._execute(sql, values, None)
        if result.status != pq.ExecStatus.TUPLES_OK:
            return []
        self._rows.set_pgresult(result)
        return self._rows.load_rows(0, result.ntuples, tuple)

    def may_run(self, *, autocommit: bool) -> bool:
        """Can ``run`` be called now? Begins the transaction that a connection without ``autocommit`` is to be in."""
        status = self._pgconn.transaction_status
        if len(self._names) >= self.MOST or status not in (IDLE, INTRANS):
            return False
        if status == IDLE and not autocommit:
            if not self._plain:
                return False
            self._done(self._pgconn.exec_, b"BEGIN")
        return True

    @property
    def in_transaction_block(self) -> bool:
        return self._pgconn.transaction_status != IDLE

    def _execute(self, sql: str, values: list[bytes | None], meanwhile: Meanwhile | None) -> Any:
        name = self._names.get(sql) or self._prepare(sql)
        if meanwhile is None:
            return self._done(self._pgconn.exec_prepared, name, values, None, 1)
        return self._done(self._send_and_wait, name, values, meanwhile)

    def _send_and_wait(self, name: bytes, values: list[bytes | None], meanwhile: Meanwhile) -> Any:
        """The result of a prepared statement; ``meanwhile`` has this thread until it is there."""
        pgconn = self._pgconn
        pgconn.send_query_prepared(name, values, None, 1)
        while pgconn.flush():  # more than the socket's buffers hold
            _wait_to_go_on(pgconn.socket)
            pgconn.consume_input()
        while pgconn.is_busy():
            meanwhile(pgconn.socket)
            pgconn.consume_input()
        result = pgconn.get_result()
        while (more := pgconn.get_result()) is not None:  # None ends it; an error is the last of several
            result = more
        return result

    def _prepare(self, sql: str) -> bytes:
        name = b"rivet_%d" % next(self._numbers)
        numbers = itertools.count(1)
        text = re.sub("%s|%%", lambda found: "%" if found[0] == "%%" else f"${next(numbers)}", sql)
        self._done(self._pgconn.prepare, name, text.encode())
        self._names[sql] = name
        return name

    def _done(self, call: Any, *args: Any) -> Any:
        """The result of ``call``. Raises psycopg's errors."""
        try:
            result = call(*args)
        except MemoryError:  # what libpq's "no result" is taken for
            if self._pgconn.status == pq.ConnStatus.OK:
                raise
            raise psycopg.OperationalError("the connection is lost") from None
        if result.status in (pq.ExecStatus.TUPLES_OK, pq.ExecStatus.COMMAND_OK):
            return result
        if result.error_field(pq.DiagnosticField.SQLSTATE) is None:
            raise psycopg.OperationalError(result.get_error_message() or "the connection is lost")
        raise psycopg.errors.error_from_result(result)


def _wait_to_go_on(socket: int) -> None:
    """Until something can be written, or read: the server may have an error to tell before it reads on."""
    poll = select.poll()
    poll.register(socket, select.POLLIN | select.POLLOUT)
    poll.poll()


def _sent(value: Any) -> bytes | None:
    if value is None:
        return None
    text = value if type(value) is str else str(value)
    if "\0" in text:  # libpq would take it for the end
        raise psycopg.DataError("PostgreSQL text fields cannot contain NUL (0x00) bytes")
    return text.encode()


_prepared: WeakKeyDictionary[Any, Prepared] = WeakKeyDictionary()


class PostgresBase(StoreBase):
    """Ways to run a statement beside Django's cursors, which bind on the client and prepare nothing."""

    def __init__(self, alias: str) -> None:
        super().__init__(alias)
        self.clock = DatabaseClock(POSTGRES_NOW, lambda sql: int(self.fast(sql)[0][0]))

    @property
    def works_apart(self) -> bool:
        return not is_pooled(self.connection)

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
            direct = prepared.may_run(autocommit=raw.autocommit)
            rows = prepared.run(sql, params, meanwhile) if direct else _by_cursor(raw, sql, params)
            plans.took(begin, time.monotonic())
            return rows

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
