"""Calls that run functions in scopes of their own: join, race, map, try_block. Pure.

They end when their functions do, not by something from outside; so a replay enters the functions of finished calls
again and feeds them recorded results (D-07), and what they return and share comes out as it did.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ..exceptions import (
    ErrorInfo,
    HistoryDiverged,
    JoinError,
    RaceError,
    StepFailed,
    failure_from_record,
    failure_record,
)
from ..records import EntryStatus, Kind
from .calls import Call
from .history import noted
from .results import BlockFailure, RaceOutcome, TryResult
from .steps import caught, step_failure

if TYPE_CHECKING:
    from .scope import Scope

Branch = Callable[..., Awaitable[Any]]


class Branches(Call):
    """What join, race and map share: named functions, their scopes and their results."""

    __slots__ = ("functions", "left", "names", "outcomes", "scopes")

    def __init__(self, scope: Scope, name: Any, branches: Mapping[Any, Branch]) -> None:
        for branch, function in branches.items():
            if not isinstance(branch, str) or not branch:
                raise TypeError(f"a branch of {self.kind.label} {name!r} needs a name, not {branch!r}")
            if not callable(function):
                raise TypeError(f"branch {branch!r} of {self.kind.label} {name!r} must be an async function")
        self.names: Sequence[str] = list(branches)
        self.functions = list(branches.values())
        self.outcomes: dict[int, tuple[bool, Any]] = {}
        self.scopes: dict[int, Scope] = {}
        self.left = len(self.functions)
        super().__init__(scope, name)

    @property
    def finished(self) -> bool:
        return self.entry.done_seq is not None

    def fresh(self) -> None:
        assert self.rec is not None
        self.rec["bn"] = self._shape()
        self.scope.machine.turn.must_commit = True
        self._begin()

    def resume(self) -> None:
        assert self.rec is not None
        self._compare(self.rec["bn"])
        self._begin()

    def recorded(self) -> None:
        self._compare(noted(self.entry.input))
        self._begin()

    def _shape(self) -> Any:
        return self.names

    def _compare(self, recorded: Any) -> None:
        """The branches of the code against those of the history (D-18)."""
        if not isinstance(recorded, list) or sorted(recorded) == sorted(self.names):
            if isinstance(recorded, list):
                # Branches are numbered as recorded: their order in the code may change.
                order = sorted(range(len(self.names)), key=lambda i: recorded.index(self.names[i]))
                self.functions = [self.functions[i] for i in order]
                self.names = recorded
            return
        added = [n for n in self.names if n not in recorded]
        gone = [n for n in recorded if n not in self.names]
        text = ", ".join([f"branch {n!r} is new" for n in added] + [f"branch {n!r} is gone" for n in gone])
        self.scope.machine.report(
            HistoryDiverged(
                f"{self.what} (entry {self.entry.seq}) was recorded with the branches {', '.join(recorded)}: {text}. "
                "Gate the change with ctx.get_version, or restore the branches"
            )
        )

    def _begin(self) -> None:
        for index in range(len(self.functions)):
            self._spawn(index)
        self._check_end()

    def _spawn(self, index: int, *arguments: Any) -> None:
        machine = self.scope.machine
        label = f"{self.numbered}/{self.names[index]}"
        child = self.scopes[index] = machine.branch(
            self.scope, self.entry, index, label, sealed=self.finished
        )
        arguments = (machine.context(child), *arguments)
        machine.spawn(child, self.functions[index], arguments, lambda ok, v: self._branch_done(index, ok, v))

    def _branch_done(self, index: int, ok: bool, value: Any) -> None:
        self._settle(index, ok, value)
        self._check_end()

    def _settle(self, index: int, ok: bool, value: Any) -> None:
        self.scopes[index].end(well=ok)
        self.outcomes[index] = (ok, value if ok else self._kept(value))
        self.left -= 1

    def _kept(self, exc: BaseException) -> Any:
        """Of a branch's error only the record: the exception would keep its frames, and all they hold."""
        return ErrorInfo.from_exception(exc)

    def _check_end(self) -> None:
        raise AssertionError

    def _complete(self, ok: bool, value: Any, output: Any = None) -> None:
        """All that was waited for is there: ``value``, or the exception."""
        machine, entry = self.scope.machine, self.entry
        if not self.finished:
            entry.input = json.dumps(self._shape())
            entry.output = None if output is None else json.dumps(output)
            if not ok:
                entry.error = json.dumps(failure_record(value))
            machine.close(self, EntryStatus.COMPLETED if ok else EntryStatus.FAILED)
        elif ok is not (entry.status is EntryStatus.COMPLETED):
            machine.report(
                HistoryDiverged(
                    f"{self.what} (entry {entry.seq}) is recorded as {entry.status.label} and now "
                    f"{'succeeds' if ok else f'fails: {value}'}: gate the change with ctx.get_version, "
                    "or restore the code"
                )
            )
        else:
            self.scope.task.now = entry.done_at or self.scope.task.now
        machine.tasks.resume(self, ok, value)

    def _fail(self, error: JoinError | RaceError) -> None:
        """End with this error, built from its record the first time as on replay (D-10)."""
        record = json.loads(self.entry.error) if self.entry.error else failure_record(error)
        self._complete(False, failure_from_record(record))

    def _errors(self) -> dict[Any, ErrorInfo]:
        return {self._key(i): info for i, (ok, info) in sorted(self.outcomes.items()) if not ok}

    def _key(self, index: int) -> Any:
        return self.names[index]

    def _failed_text(self, verb: str) -> str:
        errors = self._errors()
        return f"{self.what}: {verb}: " + "; ".join(f"{name}: {info}" for name, info in errors.items())


class JoinCall(Branches):
    """All branches; the values by name, or a JoinError once every branch has settled (R-JOIN)."""

    __slots__ = ()
    kind = Kind.JOIN

    def _check_end(self) -> None:
        if self.left:
            return
        if all(ok for ok, _ in self.outcomes.values()):
            self._complete(True, self._values())
        else:
            self._fail(
                JoinError(self._failed_text("failed branches"), errors=self._errors(), name=self.entry.name)
            )

    def _values(self) -> Any:
        return {name: self.outcomes[index][1] for index, name in enumerate(self.names)}


class MapCall(JoinCall):
    """One function over many items, at most ``concurrency`` at a time; results in the order of the items."""

    __slots__ = ("concurrency", "items", "next")
    kind = Kind.MAP

    def __init__(
        self, scope: Scope, name: str, function: Branch, items: Sequence[Any], concurrency: int
    ) -> None:
        self.items = items
        self.concurrency = concurrency
        self.next = 0
        super().__init__(scope, name, {str(index): function for index in range(len(items))})

    def _shape(self) -> Any:
        return len(self.items)

    def _compare(self, recorded: Any) -> None:
        if recorded != len(self.items):
            self.scope.machine.report(
                HistoryDiverged(
                    f"{self.what} (entry {self.entry.seq}) was recorded over {recorded} items and is met with "
                    f"{len(self.items)}: what it is given must come from recorded results"
                )
            )

    def _begin(self) -> None:
        while self.next < len(self.items) and self.next < self.concurrency:
            self._spawn_next()
        self._check_end()

    def _spawn_next(self) -> None:
        index, self.next = self.next, self.next + 1
        self._spawn(index, self.items[index])

    def _settle(self, index: int, ok: bool, value: Any) -> None:
        super()._settle(index, ok, value)
        if self.next < len(self.items):
            self._spawn_next()

    def _key(self, index: int) -> Any:
        return index

    def _values(self) -> Any:
        return [self.outcomes[index][1] for index in range(len(self.items))]


class RaceCall(Branches):
    """The first branch to succeed; the others are stopped, not awaited (D-18)."""

    __slots__ = ("winner",)
    kind = Kind.RACE

    def recorded(self) -> None:
        self.winner: str | None = None
        if self.entry.output:
            # Of a won race only the winning branch is entered again.
            self._compare(noted(self.entry.input))
            self.winner = json.loads(self.entry.output)["winner"]
            self.left = 1
            self._spawn(list(self.names).index(self.winner))
            return
        super().recorded()

    def _branch_done(self, index: int, ok: bool, value: Any) -> None:
        if not ok:
            super()._branch_done(index, ok, value)
            return
        self.scopes[index].end(well=True)
        if self.finished:
            self._complete(True, RaceOutcome(self.names[index], value))
            return
        statuses = dict.fromkeys(self.names, "cancelled")
        statuses |= {self.names[i]: "failed" for i in self.outcomes}
        statuses[self.names[index]] = "completed"
        for other, scope in self.scopes.items():
            if other != index:
                self.scope.machine.kill(scope)
        self._complete(
            True, RaceOutcome(self.names[index], value), {"winner": self.names[index], "branches": statuses}
        )

    def _check_end(self) -> None:
        if not self.left and self.outcomes:
            self._fail(
                RaceError(
                    self._failed_text("all branches failed"), errors=self._errors(), name=self.entry.name
                )
            )


class TryCall(Branches):
    """``try_block``: one body in a scope of its own, whose terminal failures become data."""

    __slots__ = ("catch",)
    kind = Kind.TRY

    def __init__(self, scope: Scope, name: Any, body: Branch, catch: Collection[Any]) -> None:
        self.catch = catch
        super().__init__(scope, name, {name if isinstance(name, str) and name else "block": body})

    def _spawn(self, index: int, *arguments: Any) -> None:
        machine = self.scope.machine
        child = self.scopes[0] = machine.branch(
            self.scope, self.entry, 0, self.numbered, sealed=self.finished
        )
        machine.spawn(
            child, self.functions[0], (machine.context(child),), lambda ok, v: self._branch_done(0, ok, v)
        )

    def _kept(self, exc: BaseException) -> Any:
        return exc

    def _check_end(self) -> None:
        if self.left:
            return
        ok, value = self.outcomes.pop(0)
        if ok:
            self._complete(True, TryResult(True, value))
            return
        failure = self._failure(value)
        if failure is None:
            self._complete(False, value)
        else:
            self._complete(True, TryResult(False, None, failure))

    def _failure(self, exc: BaseException) -> BlockFailure | None:
        source, name, step = "block", self.entry.name, None
        if isinstance(exc, StepFailed) and exc.step_name is not None:
            source, name, step = "step", exc.step_name, step_failure(exc)
        elif isinstance(exc, JoinError | RaceError):
            source, name = ("join" if isinstance(exc, JoinError) else "race"), exc.name
        rolled_back = isinstance(exc, StepFailed) and exc.kind == "rollback"
        if not caught(exc, self.catch, "rollback" if rolled_back else source):
            return None
        return BlockFailure(source, name, step.error if step else ErrorInfo.from_exception(exc), step)
