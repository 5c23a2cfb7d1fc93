"""Where the store's "now" comes from. Every statement takes its time from the store's one clock.

Times are microseconds since the epoch. On PostgreSQL and MariaDB the database's clock counts, so that
machines need not agree; on SQLite the host's clock is the database's. The testing kit puts a clock of its own
in place.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Protocol


class Clock(Protocol):
    """What the store asks of a clock."""

    def now(self) -> int:
        """Microseconds since the epoch."""
        ...

    @property
    def sql(self) -> str:
        """An SQL expression for the same, evaluated by the statement that holds it."""
        ...


class HostClock:
    """This machine's clock, as a literal in each statement."""

    def now(self) -> int:
        return time.time_ns() // 1_000

    @property
    def sql(self) -> str:
        return str(self.now())


class VirtualClock(HostClock):
    """A clock that stands still until it is moved."""

    def __init__(self, at: int) -> None:
        self.at = at

    def now(self) -> int:
        return self.at

    def advance(self, microseconds: int) -> None:
        self.at += microseconds


class DatabaseClock:
    """The database's clock; ``now`` asks it through ``ask(sql)``."""

    def __init__(self, expression: str, ask: Callable[[str], int]) -> None:
        self._expression = expression
        self._ask = ask

    def now(self) -> int:
        return self._ask(f"SELECT {self._expression}")

    @property
    def sql(self) -> str:
        return self._expression


#: ``now()`` would be the start of the transaction. As a scalar subselect it is evaluated once per statement,
#: and an index on the column compared with it can be used.
POSTGRES_NOW = "(SELECT (extract(epoch from clock_timestamp()) * 1000000)::bigint)"
#: Without the session's time zone, whose hour repeats once a year.
MYSQL_NOW = "TIMESTAMPDIFF(MICROSECOND, '1970-01-01 00:00:00', UTC_TIMESTAMP(6))"
