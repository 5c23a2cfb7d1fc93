"""Scopes: where calls are made, how they find their record, and when a call must be refused. Pure.

A scope is the workflow function itself, one iteration of a loop, one branch of a join, race or map, or the inside
of a ``try_block``. It numbers the names used in it (D-01), knows which recorded entries of it have not been met yet,
and refuses what a replay could not repeat: before anything is ordered.
"""

from __future__ import annotations

import json
import random
from collections.abc import Generator
from typing import TYPE_CHECKING, Any

from ..exceptions import EntryInProgress, HistoryDiverged, RivetError
from ..records import MAX_NAME, MAX_SCOPE, Entry, EntryStatus, Kind, child_scope, scope_steps
from .history import Found, numbered

if TYPE_CHECKING:
    from .calls import Call, Done
    from .loops import NativeLoop
    from .machine import Machine
    from .tasks import Task

#: An empty set takes 216 bytes; each scope has two that mostly stay empty.
_NONE: frozenset[Any] = frozenset()
_UNIQUE = (Kind.VERSION_CHECK, Kind.ROLLBACK_CHECKPOINT)
#: Kinds that may be new although recorded entries were not met: they exist to bridge changed code (D-03).
_BRIDGES = (Kind.VERSION_CHECK, Kind.REMOVED)
#: Times that :class:`Stopped` is raised into code that keeps catching it, before its coroutine is dropped.
MAX_REFUSALS = 20


class Stopped(BaseException):
    """This run of the workflow was stopped here; it is not an error and must not be caught.

    The worker let the actor go, a race was lost, or the code does not fit the history. Whatever the function does
    now, nothing more is recorded; if it matters, it is called again from its top.
    """


class Dead:
    """An awaitable that only suspends; see :meth:`Scope.gate`."""

    def __await__(self) -> Generator[Any, Any, Any]:
        while True:
            yield self


class Scope:
    """The engine's side of one context."""

    __slots__ = (
        "_rng",
        "busy",
        "checkpoint",
        "closed",
        "counts",
        "label",
        "loop",
        "machine",
        "made",
        "odd",
        "parent",
        "path",
        "recorded",
        "removed",
        "rows",
        "sealed",
        "task",
    )

    def __init__(
        self, machine: Machine, path: str, parent: Scope | None, task: Task, label: str, sealed: bool = False
    ) -> None:
        self.machine = machine
        self.path = path
        self.parent = parent
        self.task = task
        #: For people: ``~2``, the name of a branch.
        self.label = label
        #: The entry that opened this scope is finished in the history: nothing new may be made in it (D-07).
        self.sealed: bool = sealed or (parent is not None and parent.sealed)
        self.counts: dict[str, int] = {}
        self.recorded: dict[tuple[str, int], Found] = machine.recorded.pop(path, {})
        #: ``(name, occurrence)`` declared removed here; occurrence 0 is all of them.
        self.removed: frozenset[tuple[str, int]] = _NONE
        #: Names whose first call was met with other arguments than recorded.
        self.odd: frozenset[str] = _NONE
        self.busy: Call | Done | None = None
        self.loop: NativeLoop | None = None
        self.checkpoint: bool = parent.checkpoint if parent else False
        self.closed = False
        #: Entries of this scope, for its limit.
        self.made = len(self.recorded)
        #: Rows of this scope exist or are on their way: else there are none below it, and a prune has nothing to do.
        self.rows = bool(self.recorded)
        self._rng: random.Random | None = None

    # -- looks -------------------------------------------------------------------------------------

    @property
    def where(self) -> str:
        """The location as people read it."""
        parts = []
        scope: Scope | None = self
        while scope is not None and scope.parent is not None:
            parts.append(scope.label)
            scope = scope.parent
        return "/".join(reversed(parts))

    def at(self, name: str, occurrence: int = 1) -> str:
        """The location of an entry of this scope as people read it."""
        where, last = self.where, numbered(name, occurrence)
        return f"{where}/{last}" if where else last

    def draw(self, what: str) -> random.Random:
        """Random numbers, seeded by the actor and the place: a replay draws the same.

        That holds only where they are drawn on the way that a replay goes: a body that it may not enter again (an
        earlier iteration, a lost branch) must draw from its own context.
        """
        machine = self.machine
        inside = machine.tasks.current is not None and machine.tasks.current is not self.task
        if inside or (self.loop is not None and self.loop.alive()):
            machine.report(
                EntryInProgress(
                    f"ctx.{what} was used on the outer context inside the body of a loop, branch or block: use the "
                    "context that was handed to it"
                )
            )
        if self._rng is None:
            self._rng = random.Random(f"{self.machine.actor_id}:{self.path}")  # must be predictable
        return self._rng

    def unmet(self) -> list[Entry]:
        """Recorded entries of this and the enclosing scopes that were neither met nor declared removed.

        Siblings of a branch are not its ancestors, so concurrent branches cannot disturb each other here.
        """
        found: list[Entry] = []
        scope: Scope | None = self
        while scope is not None:
            if scope.recorded:
                found += [entry for entry, _ in scope.recorded.values() if not self._may_miss(entry)]
            scope = scope.parent
        return found

    def _may_miss(self, entry: Entry) -> bool:
        """Nothing happened there, or the code declares it removed."""
        return entry.kind is Kind.REMOVED or self.machine.program.declares_removed(entry)

    # -- calls -------------------------------------------------------------------------------------

    def check_usable(self, kind: Kind, name: Any) -> None:
        """Refuse a call on this scope that no replay could place; :meth:`gate` has let it through. Raises
        :class:`Stopped`; the reason is reported."""
        machine, over = self.machine, self.closed or self.task.over
        if self.busy is None and self.loop is None and not over:
            return
        what = f"{kind.label} {name!r}"
        if over:
            machine.report(
                EntryInProgress(
                    f"{what} was called on a context whose {self.where or 'run'} is over: inside a loop, branch or "
                    "block use the context that was handed to it"
                )
            )
        if self.loop is not None:
            if self.loop.alive():
                machine.report(
                    EntryInProgress(
                        f"{what} was called on the outer context inside the body of loop {self.loop.entry.name!r}: "
                        "use the context that the loop gives to each iteration"
                    )
                )
            self.loop.end()
        if self.busy is not None:
            machine.report(
                EntryInProgress(
                    f"{what} was called while {self.busy.what} on the same context is unfinished. Is an await missing "
                    f"before {self.busy.what}? Branches of a join, race or map must use their own context"
                )
            )

    def enter(self, kind: Kind, name: Any) -> tuple[Entry, dict[str, Any] | None, bool]:
        """Register the call ``kind(name)``: its entry, its open record if it is open, and whether it is new."""
        self.check_usable(kind, name)
        if not isinstance(name, str) or not name:
            raise TypeError(f"a {kind.label} needs a name: a non-empty str, not {name!r}")
        if len(name) > MAX_NAME:
            raise ValueError(
                f"the name of a {kind.label} is longer than {MAX_NAME} characters: {name[:40]!r}…"
            )
        machine = self.machine
        occurrence = self.counts.get(name, 0) + 1
        if self.removed:
            while (name, occurrence) in self.removed:
                occurrence += 1
            if (name, 0) in self.removed:
                machine.report(
                    HistoryDiverged(
                        f"{self.at(name)} was declared removed and is used again as a {kind.label}"
                    )
                )
        if occurrence > 1 and (kind in _UNIQUE or machine.program.unique_names):
            machine.report(
                HistoryDiverged(
                    f"duplicate entry name: {self.at(name)} is used a second time (as {kind.label})"
                    + ("; the actor says unique_names=True" if machine.program.unique_names else "")
                )
            )
        self.counts[name] = occurrence
        found = self.recorded.pop((name, occurrence), None)
        if found is not None:
            entry, rec = found
            if entry.kind != kind:
                machine.report(
                    HistoryDiverged(
                        f"{self.at(name, occurrence)} is recorded as a {entry.kind.label} (entry {entry.seq}) and the "
                        f"code calls a {kind.label} there: give the new call another name and declare the old one "
                        f'with ctx.removed("{name}", "{entry.kind.label}"), or restore it'
                    )
                )
            return entry, rec, False
        self._check_new(kind, name, occurrence)
        return self._new(kind, name, occurrence), None, True

    def _new(self, kind: Kind, name: str, occurrence: int) -> Entry:
        self.rows = True
        machine = self.machine
        return Entry(machine.take_seq(), self.path, name, kind, occurrence, started_at=machine.now)

    def _check_new(self, kind: Kind, name: str, occurrence: int) -> None:
        machine = self.machine
        if kind not in _BRIDGES:
            unmet = self.unmet()
            if unmet or self.sealed:
                machine.report(HistoryDiverged(self._new_text(kind, name, occurrence, unmet)))
        machine.replaying = False
        if len(self.path) > MAX_SCOPE:
            depth = sum(1 for _ in scope_steps(self.path))
            raise RivetError(
                f"{name!r} lies {depth} loops, branches and blocks deep, which is more than a history can hold: "
                "call another actor with ctx.child, or use a loop in the place of the recursion"
            )
        if self.made >= machine.limits.max_scope_entries:
            raise RivetError(
                f"{self.where or 'run'} has made {self.made} entries, the most one scope may hold "
                "(MAX_SCOPE_ENTRIES): use ctx.loop, whose finished iterations are pruned, or ctx.map"
            )
        self.made += 1

    def _new_text(self, kind: Kind, name: str, occurrence: int, unmet: list[Entry]) -> str:
        call = f"the code calls {kind.label} {self.at(name, occurrence)!r}, which is not in the history"
        if not unmet:
            return (
                f"{call}, inside something that the history holds as finished: "
                "gate it with ctx.get_version, or restore the code"
            )
        old = unmet[0]
        more = f" and {len(unmet) - 1} more" if len(unmet) > 1 else ""
        return (
            f"{call}, while the history holds {old.kind.label} {old.name!r} (entry {old.seq}){more} that was not met. "
            f'If it was renamed or dropped say ctx.removed("{old.name}", "{old.kind.label}"); if the change is new '
            "behaviour gate it with ctx.get_version; or restore the code"
        )

    def remove(self, name: str, kind: str) -> None:
        """An entry of this name and kind used to be here: met, if it is recorded; else a placeholder says so."""
        self.check_usable(Kind.REMOVED, name)
        machine = self.machine
        plain, _, digits = name.rpartition("#")
        if not (plain and digits.isdigit()):
            plain, digits = name, ""
        number = int(digits or 0)
        found = [key for key in self.recorded if key[0] == plain and number in (0, key[1])]
        for key in found:
            entry, rec = self.recorded.pop(key)
            if entry.kind.label not in (kind, Kind.REMOVED.label):
                machine.report(
                    HistoryDiverged(
                        f"removed({name!r}, {kind!r}): the history holds a {entry.kind.label} there (entry "
                        f'{entry.seq}): say ctx.removed("{name}", "{entry.kind.label}"), or restore it'
                    )
                )
            self._give_up(entry, rec)
        if not found and self.counts.get(plain, 0) < max(number, 1):
            self._place_removed(self._new(Kind.REMOVED, plain, number or 1), kind)
        self.removed |= {(plain, number)}

    def _give_up(self, entry: Entry, rec: dict[str, Any] | None) -> None:
        """A recorded entry was removed from the code: what is open of it ends here."""
        if rec is not None or self.machine.held:
            self.machine.abandon(entry)
        if rec is not None:
            kind, entry.kind = entry.kind, Kind.REMOVED
            self._place_removed(entry, kind.label)

    def _place_removed(self, entry: Entry, kind: str) -> None:
        entry.input = json.dumps(kind)
        self.machine.record(entry, EntryStatus.REMOVED)

    # -- end ---------------------------------------------------------------------------------------

    def end(self, *, well: bool) -> None:
        """The scope is over. Checks, when it ended well, that nothing recorded was left out (R-DIV-05)."""
        if self.loop is not None:
            self.loop.end(well=well)
        machine = self.machine
        if well:
            if self.busy is not None:
                machine.report(
                    EntryInProgress(
                        f"{self.where or 'run'} ended while {self.busy.what} is unfinished: "
                        "is an await missing before it?"
                    )
                )
            for entry, rec in self.recorded.values():
                if not self._may_miss(entry):
                    machine.report(
                        HistoryDiverged(
                            f"{self.at(entry.name, entry.occurrence)} ({entry.kind.label}, entry {entry.seq}) "
                            f"exists in the history and was not met. Code may have changed: say "
                            f'ctx.removed("{entry.name}", "{entry.kind.label}"), or restore it'
                        )
                    )
                self._give_up(entry, rec)
            machine.settle(self)
        elif self.busy is not None and not machine.stopped:
            machine.cancel(self.busy)
        self.closed = True

    def gate(self) -> Dead | None:
        """Sticky stopping (D-09): once stopped every call raises :class:`Stopped`, whatever caught the last one.

        Code that swallows it in an endless loop gets, after a number of tries, something that only suspends, so
        that the thread comes back and the coroutine can be dropped.
        """
        if not self.is_stopped():
            return None
        self.task.refusals += 1
        if self.task.refusals <= MAX_REFUSALS:
            raise Stopped
        return Dead()

    def is_stopped(self) -> bool:
        """The run was, or the coroutine that may use this scope. Whoever uses it once that one is over is another,
        which must be told instead of being stopped too."""
        return self.machine.stopped or (self.task.stopped and not self.task.over)

    def child(self, entry: Entry, index: int, task: Task, label: str, *, sealed: bool) -> Scope:
        """The scope of branch or iteration ``index`` of ``entry``."""
        return Scope(self.machine, child_scope(self.path, entry.seq, index), self, task, label, sealed)
