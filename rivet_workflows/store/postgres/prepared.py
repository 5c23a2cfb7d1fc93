"""Prepared statements, run by libpq's own calls.

A statement's values are sent apart from it, as text. That is one round trip, and a third of the Python that a cursor
takes for it.
"""

from __future__ import annotations

import itertools
import re
import select
from collections.abc import Sequence
from typing import Any

import psycopg
from psycopg import pq
from psycopg.adapt import Transformer

from rivet_workflows.store.base import Meanwhile
from rivet_workflows.store.postgres.plans import Plans

IDLE, INTRANS = pq.TransactionStatus.IDLE, pq.TransactionStatus.INTRANS


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
        result = None
        while True:
            # Asked for what has not arrived, libpq waits for it with the interpreter's lock held: nothing else runs
            # in the process then. The end of an answer, too, may come later than the rest.
            while pgconn.is_busy():
                meanwhile(pgconn.socket)
                pgconn.consume_input()
            more = pgconn.get_result()
            if more is None:
                return result
            result = more  # an error is the last of several

    def _prepare(self, sql: str) -> bytes:
        name = b"rivet_%d" % next(self._numbers)
        self._done(self._pgconn.prepare, name, numbered(sql).encode())
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
        if result is None:
            raise psycopg.OperationalError("the connection is lost")
        if result.status in (pq.ExecStatus.TUPLES_OK, pq.ExecStatus.COMMAND_OK):
            return result
        if result.error_field(pq.DiagnosticField.SQLSTATE) is None:
            raise psycopg.OperationalError(result.get_error_message() or "the connection is lost")
        raise psycopg.errors.error_from_result(result)


def numbered(sql: str) -> str:
    """The statement with the server's own marks for its parameters."""
    numbers = itertools.count(1)
    return re.sub("%s|%%", lambda found: "%" if found[0] == "%%" else f"${next(numbers)}", sql)


def _wait_to_go_on(socket: int) -> None:
    """Until something can be written, or read: the server may have an error to tell before it reads on."""
    poll = select.poll()
    poll.register(socket, select.POLLIN | select.POLLOUT)
    poll.poll()


def _sent(value: Any) -> bytes | None:
    if value is None:
        return None
    text = value if isinstance(value, str) else str(value)  # not of an enum that is one: that is its name
    if "\0" in text:  # libpq would take it for the end
        raise psycopg.DataError("PostgreSQL text fields cannot contain NUL (0x00) bytes")
    return text.encode()
