"""``ctx.child``: another actor's workflow, to its result. Pure.

The engine orders the child and is told its end; that it is created once, joined where it exists, and watched over
crashes, is the holder's part. Cancelling the parent, or losing a race, leaves the child alone.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from ..exceptions import ChildFailed, ErrorInfo, HistoryDiverged, failure_from_record, failure_record
from ..records import EntryStatus, Kind
from .calls import Call, Result
from .history import noted
from .turn import ChildOrder

if TYPE_CHECKING:
    from .scope import Scope


class ChildCall(Call):
    """Waits for the child's end; replays its result, or ChildFailed built from its record."""

    __slots__ = ("actor", "input", "key", "ok", "output")
    kind = Kind.CHILD
    #: How it ended.
    ok: bool
    output: str | None

    def __init__(self, scope: Scope, name: str, actor: str, key: str, value: Any) -> None:
        self.actor = actor
        self.key = key
        codec = scope.machine.codec
        self.input = None if value is None else codec.dumps(value, what=f"the input of child {name!r}")
        super().__init__(scope, name)

    def fresh(self) -> None:
        assert self.rec is not None
        self.rec["c"] = [self.actor, self.key]
        self._order()

    def resume(self) -> None:
        assert self.rec is not None
        self._compare(self.rec["c"])
        self._order()

    def recorded(self) -> None:
        child = noted(self.entry.input)
        self._compare([child["actor"], child["key"]])
        super().recorded()

    def _compare(self, recorded: list[Any]) -> None:
        if recorded != [self.actor, self.key]:
            self.scope.machine.report(
                HistoryDiverged(
                    f"{self.what} (entry {self.entry.seq}) was recorded as {recorded[0]} {recorded[1]} and is met as "
                    f"{self.actor} {self.key}: gate the change with ctx.get_version, or restore the code"
                )
            )

    def _order(self) -> None:
        machine, seq = self.scope.machine, self.entry.seq
        machine.calls[seq] = self
        machine.turn.must_commit = True
        machine.turn.children.append(ChildOrder(seq, self.actor, self.key, self.input))

    def ended(self, ok: bool, output: str | None, error: str | None) -> None:
        """The child is over."""
        self.ok, self.output = ok, output
        if not ok:
            reason = failure_from_record(json.loads(error or "{}"))
            info = ErrorInfo.from_exception(reason, with_traceback=False)
            failure = ChildFailed(f"{self.what} ({self.actor} {self.key}) failed: {info}", error=info)
            self.entry.error = json.dumps(failure_record(failure))
        self.scope.machine.tasks.live.append(self)

    def finish(self) -> Result:
        machine, entry = self.scope.machine, self.entry
        entry.input = json.dumps({"actor": self.actor, "key": self.key})
        entry.output = self.output
        entry.status = EntryStatus.COMPLETED if self.ok else EntryStatus.FAILED
        result = self.replay()
        machine.close(self, entry.status)
        return result

    def replay(self) -> Result:
        entry = self.entry
        if entry.status is EntryStatus.FAILED:
            return False, failure_from_record(noted(entry.error))
        if entry.output is None:
            return True, None
        return True, self.scope.machine.decode(entry.output, "the result of", self)
