"""When which entry is due. Pure: no clock, only the times that were asked for."""

from __future__ import annotations

import heapq
from collections.abc import Iterator


class Timers:
    """At most one due time per entry. A heap; what was cancelled or set anew is skipped, and cleared in time."""

    __slots__ = ("_due", "_heap")

    def __init__(self) -> None:
        self._due: dict[int, int] = {}
        self._heap: list[tuple[int, int]] = []

    def __len__(self) -> int:
        return len(self._heap)

    def at(self, due: int, seq: int) -> None:
        """``seq`` is due then, and at no other time."""
        self._due[seq] = due
        heapq.heappush(self._heap, (due, seq))
        # A loop whose waits end long before their deadlines would leave one stale item per turn.
        if len(self._heap) > 2 * len(self._due) + 64:
            self._heap = [(due, seq) for seq, due in self._due.items()]
            heapq.heapify(self._heap)

    def cancel(self, seq: int) -> None:
        self._due.pop(seq, None)

    def clear(self) -> None:
        self._due.clear()

    def first(self) -> tuple[int, int] | None:
        """What is due first: when, and which entry."""
        while self._heap and self._due.get(self._heap[0][1]) != self._heap[0][0]:
            heapq.heappop(self._heap)
        return self._heap[0] if self._heap else None

    def next(self) -> int | None:
        """The earliest due time."""
        if not self._heap:
            return None
        first = self.first()
        return None if first is None else first[0]

    def pop_due(self, now: int) -> Iterator[int]:
        """The entries that are due by ``now``, earliest first."""
        while (first := self.first()) is not None and first[0] <= now:
            self.cancel(first[1])
            yield first[1]

    def pop_after(self, at: int) -> list[tuple[int, int]]:
        """Those that are due later than ``at``: when, and which entry."""
        later = [(due, seq) for seq, due in self._due.items() if due > at]
        for _, seq in later:
            self.cancel(seq)
        return later
