"""The actions of one held actor that callers want run where it is held: one at a time, in the order of asking.
Sans-IO; part of the core.
"""

from __future__ import annotations

from collections.abc import Iterable

from rivet_workflows.records import WorkerCall


class Callers:
    """``serves``: the actor has such actions at all. True while there is, or may be, something to run or running."""

    __slots__ = ("_known", "_waiting", "looking", "running", "serves")

    def __init__(self, serves: bool) -> None:
        self.serves = serves
        #: They are asked for just now.
        self.looking = False
        self.running: int | None = None
        self._waiting: list[WorkerCall] = []
        self._known: dict[int, None] = {}

    def __bool__(self) -> bool:
        return self.looking or self.running is not None or bool(self._waiting)

    def add(self, calls: Iterable[WorkerCall]) -> None:
        """Calls that were found; those known already are left out."""
        for call in calls:
            if call.id not in self._known:
                self._known[call.id] = None
                self._waiting.append(call)

    def next(self) -> WorkerCall | None:
        """The call to run now, if none runs."""
        if self.running is not None or not self._waiting:
            return None
        call = self._waiting.pop(0)
        self.running = call.id
        return call

    def done(self, call_id: int) -> bool:
        """It has ended. True: all that were known have, and there may be more."""
        self._known.pop(call_id, None)
        if self.running == call_id:
            self.running = None
        return not self._known

    def forget(self, *, running: bool = False) -> None:
        """What waits is left to others; with ``running``, what runs too: nobody waits for its end any more."""
        for call in self._waiting:
            self._known.pop(call.id, None)
        self._waiting.clear()
        if running:
            self.running = None
            self._known.clear()


#: For all actors that have no such actions: nobody asks for them, so nothing is ever added.
NO_CALLERS = Callers(False)
