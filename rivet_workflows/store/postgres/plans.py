"""When to plan a connection's prepared statements anew."""

from __future__ import annotations

import time

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

    def __init__(self, slow: float | None = None, latest: float | None = None) -> None:
        """``slow`` and ``latest`` in seconds, where they are not to be :data:`SLOW` and :data:`REPLAN_LATEST`."""
        self._slow = SLOW if slow is None else slow
        self._latest = REPLAN_LATEST if latest is None else latest
        self.made_at = time.monotonic()
        self._first = True
        self.stale = False

    def took(self, begin: float, end: float) -> None:
        """A statement was run."""
        age = end - self.made_at
        slow = end - begin > self._slow and (self._first or age > REPLAN_SOONEST)
        self.stale = self.stale or slow or age > self._latest

    def renewed(self) -> None:
        self.stale = self._first = False
        self.made_at = time.monotonic()
