"""The database's time, without asking it: an estimate that is never ahead of the database's clock.

Timers fire by the database's clock, "late, never early". A reading of it says: at some moment between question and
answer it showed this. Counting on from the *answer* is therefore a lower bound, and the best of several readings is the
highest of these bounds. A reading that lies wholly below the estimate means that the clock was set back.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from math import ceil, floor

#: How far two good clocks may drift apart, as a share of the time since they were compared.
DRIFT = 200e-6


class DatabaseTime:
    """Reads and writes are single assignments, so that any thread may ask."""

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        #: ``(difference in µs between database and monotonic clock, monotonic seconds when that was found)``
        self._reading: tuple[int, float] | None = None

    def observe(self, now: int, asked: float, answered: float) -> None:
        """The database said ``now`` (epoch µs) to a question asked and answered at these monotonic seconds."""
        # Rounded so that the bounds hold: a microsecond ahead is ahead.
        lower, upper = now - ceil(answered * 1e6), now - floor(asked * 1e6)
        reading = self._reading
        if (
            reading is None
            or reading[0] > upper
            or self._at(reading, answered) < lower + ceil(answered * 1e6)
        ):
            self._reading = (lower, answered)

    def read(self, ask: Callable[[], int]) -> int:
        """Ask the database by ``ask()`` and observe the answer."""
        asked = self._monotonic()
        now = ask()
        self.observe(now, asked, self._monotonic())
        return now

    def now(self) -> int:
        """Epoch microseconds. Raises ``RuntimeError`` before the first reading."""
        if self._reading is None:
            raise RuntimeError("the database's time was not read yet")
        return self._at(self._reading, self._monotonic())

    @staticmethod
    def _at(reading: tuple[int, float], moment: float) -> int:
        difference, found = reading
        return difference + floor((moment - (moment - found) * DRIFT) * 1e6)
