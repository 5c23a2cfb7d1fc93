"""Actors whose running step has gone down with its worker before, twice: tried one at a time, apart from each other.

A step that takes its process down takes along whatever runs beside it, and all of them count one more start without
an end. Retried together they would die together, until the innocent are set aside with the culprit. So an actor whose
step was started twice without ever reporting back waits for its turn *before* the next start is recorded: the fewest
starts first. The innocent end their step in their turn, and the culprit alone collects starts (BR-025).
Sans-IO; part of the core.
"""

from __future__ import annotations

import heapq
import itertools
from uuid import UUID

from rivet_workflows.records import Claimed, Kind, load_open

#: Starts without an end after which an actor is tried apart. One is what any death does to what was running.
SUSPICIOUS = 2


def starts_without_end(claimed: Claimed) -> int:
    """How often the most suspicious running step of an actor was started; 0 where no step was running."""
    if '"z":' not in claimed.inflight:
        return 0
    try:
        steps = [rec for rec in load_open(claimed.inflight)["e"] if rec["k"] == Kind.STEP and "b" not in rec]
        return max((int(rec.get("z", 0)) for rec in steps), default=0)
    except (ValueError, KeyError, TypeError):
        return 0  # unreadable: whoever makes its machine says so


class Trials:
    """Who waits, and who is being tried."""

    def __init__(self) -> None:
        self._line: list[tuple[int, int, Claimed]] = []
        self._order = itertools.count()
        self._waiting: dict[UUID, int] = {}
        self.current: UUID | None = None

    def __len__(self) -> int:
        return len(self._waiting)

    def __contains__(self, actor_id: UUID) -> bool:
        return actor_id in self._waiting

    def admit(self, claimed: Claimed) -> bool:
        """Whether the actor has to wait for its turn; it stands in line then."""
        starts = starts_without_end(claimed)
        if starts < SUSPICIOUS:
            return False
        number = next(self._order)
        self._waiting[claimed.actor_id] = number
        heapq.heappush(self._line, (starts, number, claimed))
        return True

    def next(self) -> Claimed | None:
        """Whose turn it is, if nobody is being tried."""
        while self.current is None and self._line:
            _, number, claimed = heapq.heappop(self._line)
            if self._waiting.get(claimed.actor_id) == number:
                del self._waiting[claimed.actor_id]
                self.current = claimed.actor_id
                return claimed
        return None

    def forget(self, actor_id: UUID) -> None:
        """It waits no more: it was taken up anew, or belongs to somebody else."""
        self._waiting.pop(actor_id, None)

    def give_up(self) -> list[Claimed]:
        """Everybody in line, to be handed back."""
        left = [claimed for _, number, claimed in self._line if self._waiting.get(claimed.actor_id) == number]
        self._line.clear()
        self._waiting.clear()
        return left
