"""Statements that callers run often, on connections that are the project's own: planned once and not each time.

Sending a message is one statement, and the server takes as long to parse and plan it as to run it. psycopg prepares by
itself what is run often, but Django has that switched off: a pooler between here and the server hands each transaction
to another of the server's sessions.

So this is prepared in SQL, and executed through the connection's own cursor, which may set the session up, check its
health and be interrupted as for any other statement. Outside transactions only, where an ``EXECUTE`` that the session
does not know, or that does not fit its tables any more, fails without having done anything: then the statement is run
as it is. Names are made of the texts: where sessions are shared without our knowing, a name means the same in all of
them. And where somebody watches the connection's queries, they stay the ones that are written in the code.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Sequence
from typing import Any
from weakref import WeakKeyDictionary

from django.db import Error
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.backends.utils import CursorWrapper

from rivet_workflows.store.base import is_pooled
from rivet_workflows.store.errors import sqlstate
from rivet_workflows.store.postgres.plans import Plans
from rivet_workflows.store.postgres.prepared import numbered

#: So many times a connection runs a statement as it is: many serve one request and are closed.
FIRST = 2
#: So often may a session turn out not to know what was prepared; then somebody else has a hand in it.
LOSSES = 3
#: Texts that are counted on one connection. They are few, unless somebody puts values into them.
MOST = 50
#: Seconds. Nothing keeps a project's connection from reading a table whole, where a plan was made when it was empty;
#: to plan anew costs half a millisecond.
SLOW, LATEST = 0.01, 10.0

_KNOWN_ALREADY = "42P05"
#: Classes of errors after which a statement is run as it is: the session does not know it, the tables or a value do not
#: fit what it was prepared for. If that is not the reason, it fails once more.
_OF_PREPARING = ("26", "42", "0A", "22")


class Often:
    """What one connection has prepared."""

    __slots__ = ("_losses", "_names", "_times", "plans")

    def __init__(self) -> None:
        self.plans = Plans(slow=SLOW, latest=LATEST)
        self._times: dict[str, int] = {}
        self._names: dict[str, str] = {}
        self._losses = 0

    def wants(self, sql: str) -> bool:
        """Is it to be run prepared, this time?"""
        if self._losses >= LOSSES or len(self._times) > MOST:
            return False
        times = self._times[sql] = self._times.get(sql, 0) + 1
        return times > FIRST

    def run(self, cursor: CursorWrapper, sql: str, params: Sequence[Any]) -> list[tuple[Any, ...]] | None:
        """Its rows; None, and nothing was done, where it must be run as it is."""
        try:
            if self.plans.stale:
                cursor.execute("DISCARD PLANS")
                self.plans.renewed()
            name = self._names.get(sql) or self._prepare(cursor, sql)
            began = time.monotonic()
            cursor.execute(f"EXECUTE {name} ({', '.join(['%s'] * len(params))})", params)
            self.plans.took(began, time.monotonic())
            return list(cursor.fetchall())
        except Error as error:
            if not (sqlstate(error) or "").startswith(_OF_PREPARING):
                raise
            self._losses += 1
            self._names.clear()
            return None

    def _prepare(self, cursor: CursorWrapper, sql: str) -> str:
        name = f"rivet_{hashlib.sha256(sql.encode()).hexdigest()[:32]}"
        try:
            cursor.execute(f"PREPARE {name} AS {numbered(sql)}")
        except Error as error:
            if sqlstate(error) != _KNOWN_ALREADY:
                raise
        self._names[sql] = name
        return name


_often: WeakKeyDictionary[Any, Often] = WeakKeyDictionary()


def may_prepare(connection: BaseDatabaseWrapper) -> bool:
    """May anything be prepared on it, just now?"""
    return not (
        connection.in_atomic_block
        or connection.execute_wrappers
        or connection.queries_logged
        or is_pooled(connection)
        # There an EXECUTE takes no parameters.
        or connection.settings_dict["OPTIONS"].get("server_side_binding")
    )


def often(connection: BaseDatabaseWrapper) -> Often | None:
    """What the session behind an open connection has prepared; None where it is in a transaction of its own."""
    raw = connection.connection
    if not raw.autocommit:
        return None
    found = _often.get(raw)
    if found is None:
        found = _often[raw] = Often()
    return found
