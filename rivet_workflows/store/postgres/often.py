"""Statements that callers run often, on connections that are the project's own: planned once and not each time.

Sending a message is one statement, and the server takes as long to parse and plan it as to run it: 1.1 ms in all as
it comes, 0.6 once it is prepared. psycopg prepares by itself what is run often, but Django has that switched off: a
pooler between here and the server hands each transaction to another of the server's sessions.

So this is done outside transactions only, where a session that does not know the statement fails without having done
anything, and it is run as it is. Names are made of the texts: where sessions are shared without our knowing, a name
means the same in all of them. And whoever watches Django's cursors gets to see everything: it is run as it is then too.
"""

from __future__ import annotations

import hashlib
import select
import time
from collections.abc import Sequence
from typing import Any
from weakref import WeakKeyDictionary

import psycopg
from django.db.backends.base.base import BaseDatabaseWrapper

from rivet_workflows.store.base import is_pooled
from rivet_workflows.store.postgres.plans import Plans
from rivet_workflows.store.postgres.prepared import Prepared

#: So many times a connection runs a statement as it is: many serve one request and are closed.
FIRST = 2
#: So often may a session turn out not to know what was prepared; then somebody else has a hand in it.
LOSSES = 3
#: Texts that are counted on one connection. They are few, unless somebody puts values into them.
MOST = 50
#: Seconds. Nothing keeps a project's connection from reading a table whole, where a plan was made when it was empty;
#: to plan anew costs half a millisecond.
SLOW, LATEST = 0.01, 10.0


class Often:
    """What one connection has prepared."""

    __slots__ = ("_losses", "_prepared", "_times", "plans")

    def __init__(self, raw: psycopg.Connection[Any]) -> None:
        self.plans = Plans(slow=SLOW, latest=LATEST)
        self._prepared = Prepared(raw, self.plans, _name)
        self._times: dict[str, int] = {}
        self._losses = 0

    def run(
        self, connection: BaseDatabaseWrapper, sql: str, params: Sequence[Any]
    ) -> list[tuple[Any, ...]] | None:
        """Its rows; None, and nothing was done, where it is to be run as it is."""
        if self._losses >= LOSSES or len(self._times) > MOST:
            return None
        times = self._times[sql] = self._times.get(sql, 0) + 1
        if times <= FIRST:
            return None
        prepared, plans = self._prepared, self.plans
        with connection.wrap_database_errors:
            if plans.stale:
                psycopg.Cursor(connection.connection).execute("DISCARD PLANS", prepare=False)
                plans.renewed()
            began = time.monotonic()
            try:
                return prepared.run(sql, params, _wait)
            except (psycopg.errors.InvalidSqlStatementName, psycopg.errors.FeatureNotSupported):
                # It is not there any more, or does not fit the tables any more.
                self._losses += 1
                prepared.forget()
                return None
            except BaseException:
                if prepared.waits:
                    # Something else ended the wait, and what the server answers later would be taken for the answer to
                    # whatever is asked next.
                    connection.close()
                raise
            finally:
                plans.took(began, time.monotonic())


_often: WeakKeyDictionary[Any, Often] = WeakKeyDictionary()


def often(connection: BaseDatabaseWrapper) -> Often | None:
    """What the connection has prepared; None where it must not prepare anything, or may not just now."""
    if connection.in_atomic_block or connection.execute_wrappers or connection.queries_logged:
        return None
    if is_pooled(connection):
        return None
    connection.ensure_connection()
    raw = connection.connection
    if not raw.autocommit or raw.pgconn.transaction_status != psycopg.pq.TransactionStatus.IDLE:
        return None
    found = _often.get(raw)
    if found is None:
        found = _often[raw] = Often(raw)
    return found


def _name(_number: int, sql: str) -> str:
    return f"rivet_{hashlib.sha256(sql.encode()).hexdigest()[:32]}"


def _wait(socket: int) -> None:
    """Until there is something to read. Not inside libpq: there a signal would wait, and all greenlets."""
    poll = select.poll()
    poll.register(socket, select.POLLIN)
    poll.poll()
