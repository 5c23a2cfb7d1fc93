"""What a recorded call on a context is; and the simplest one, a sleep. Pure.

Each call meets one of three situations when it is made: it is *new* (record it, order what it needs), *open* (the
history knows it, it is not finished: go on), or *finished* (the recorded result is delivered, in ``done_seq`` order).
"""

from __future__ import annotations

import json
from collections.abc import Generator
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, ClassVar

from ..exceptions import EntryInProgress, HistoryDiverged
from ..records import Entry, EntryStatus, Kind
from .history import numbered

if TYPE_CHECKING:
    from .scope import Scope

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
#: What a call gives back: whether it went well, and the value or the exception.
Result = tuple[bool, Any]


def instant(at: int) -> datetime:
    """Microseconds since the epoch as an aware datetime (exact, unlike a float timestamp)."""
    return EPOCH + timedelta(microseconds=at)


class Done:
    """An awaitable that is there already: calls that never wait. Its ``await`` frees the context.

    It suspends only where the turn has become long, so that a loop of such calls cannot hold its worker.
    """

    __slots__ = ("scope", "value", "what")

    def __init__(self, scope: Scope | None, value: Any, what: str) -> None:
        self.scope = scope
        self.value = value
        self.what = what
        if scope is not None:
            scope.busy = self

    def __await__(self) -> Generator[Any, Any, Any]:
        scope = self.scope
        if scope is not None and scope.busy is self:
            if scope.machine.turn_is_long():
                yield self
            scope.busy = None
        return self.value


class Call:
    """A recorded call on a context; awaiting it gives its result."""

    __slots__ = ("awaited", "entry", "rec", "scope")
    kind: ClassVar[Kind]
    entry: Entry
    #: The open record, as it stands in the ``inflight`` text; None once the entry is finished in the history.
    rec: dict[str, Any] | None

    def __init__(self, scope: Scope, name: str) -> None:
        self.scope = scope
        self.awaited = False
        self.entry, self.rec, new = scope.enter(self.kind, name)
        scope.busy = self
        if new:
            self.rec = scope.machine.open_entry(self.entry)
            self.fresh()
        elif self.entry.status is EntryStatus.CANCELLED:
            pass  # nobody waited for it then, so nobody does now
        elif self.rec is not None:
            self.resume()
        else:
            self.recorded()

    @property
    def numbered(self) -> str:
        return numbered(self.entry.name, self.entry.occurrence)

    @property
    def what(self) -> str:
        return f"{self.kind.label} {self.entry.name!r}"

    def __await__(self) -> Generator[Any, Any, Any]:
        dead = self.scope.gate()
        if dead is not None:
            yield from dead.__await__()
        if self.awaited:
            self.scope.machine.report(
                EntryInProgress(f"{self.what} was awaited twice: call it again instead")
            )
        if self.entry.status is EntryStatus.CANCELLED:
            self.scope.machine.report(
                HistoryDiverged(
                    f"{self.what} (entry {self.entry.seq}) was left without await when an error ended its scope, so it "
                    "has no result, and is awaited now: restore the code, or replay_from an entry before it"
                )
            )
        self.awaited = True
        return (yield self)

    def fresh(self) -> None:
        """A new entry: order what it needs."""

    def resume(self) -> None:
        """An entry that is open in the history."""

    def recorded(self) -> None:
        """An entry that is finished in the history: its result comes when it is its turn (D-08)."""
        self.scope.machine.tasks.replay_later(self)

    def replay(self) -> Result:
        """The recorded result."""
        raise AssertionError(f"{self.kind.label} is not delivered from its record")

    def finish(self) -> Result:
        """The result is there, now: complete the entry, and say what the workflow gets."""
        raise AssertionError(f"{self.kind.label} does not wait")


class SleepCall(Call):
    """``ctx.sleep`` and ``ctx.sleep_until``. The first recorded deadline stays, whatever the code says later."""

    __slots__ = ("deadline",)
    kind = Kind.SLEEP

    def __init__(self, scope: Scope, name: str, deadline: int) -> None:
        self.deadline = deadline
        super().__init__(scope, name)

    def fresh(self) -> None:
        assert self.rec is not None
        self.rec["d"] = self.deadline
        self.scope.machine.turn.must_commit = True
        self.resume()

    def resume(self) -> None:
        assert self.rec is not None
        machine = self.scope.machine
        self.deadline = self.rec["d"]
        machine.calls[self.entry.seq] = self
        if self.deadline <= machine.now:
            self.due()
        else:
            machine.timers.at(self.deadline, self.entry.seq)

    def due(self) -> None:
        """The time has come; a message that was sent by then may still go first."""
        self.scope.machine.mailbox.reached(self.deadline, self.entry.seq)

    def finish(self) -> Result:
        self.entry.input = json.dumps({"deadline": self.deadline})
        self.scope.machine.close(self, EntryStatus.COMPLETED)
        return True, None

    def replay(self) -> Result:
        return True, None
