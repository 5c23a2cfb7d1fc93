"""One entry of a history, finished (a row) or open (in the run's position), as a line of the timeline. Pure.

Never raises: what cannot be read becomes a line with a ``problem``. The keys of an open entry are listed in
``client.history``.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, ngettext

from rivet_workflows.inspector import reads
from rivet_workflows.inspector.moments import Moment, moment, span
from rivet_workflows.inspector.values import Failure, Value, failure, failure_of, items, printable, value
from rivet_workflows.records import EntryStatus, Kind

__all__ = ["Attempt", "Line", "from_open", "from_row", "unread"]


@dataclass(frozen=True, slots=True)
class Attempt:
    """One attempt that ended."""

    number: int
    started_at: Moment | None
    took: str
    error: Failure | None
    #: Times that it was rolled back and has run again (an atomic step).
    reruns: int = 0


@dataclass(slots=True)
class Line:
    """What the timeline says about one entry."""

    seq: int
    scope: str
    label: str
    kind: Kind | None
    status: str
    #: In a few words, what it did or waits for.
    summary: str = ""
    started_at: Moment | None = None
    done_at: Moment | None = None
    #: How long after the actor was made it started, and how long it took.
    offset: str = ""
    took: str = ""
    due_at: Moment | None = None
    attempts: list[Attempt] = field(default_factory=list)
    #: The attempt that runs or comes next; 0 where there are no attempts.
    attempt: int = 0
    error: Failure | None = None
    input: Value | None = None
    output: Value | None = None
    #: Names of branches, or of a map how many items.
    branches: Sequence[Any] | int = ()
    #: What was asked of the queues: their names, None for any.
    queues: tuple[str, ...] | None = None
    rolled_back_at: Moment | None = None
    rollback: str = ""
    open: bool = False
    #: Why it cannot be read.
    problem: str = ""

    @property
    def kind_label(self) -> str:
        return str(_KIND_NAMES.get(self.kind, "?")) if self.kind else "?"

    @property
    def kind_class(self) -> str:
        return self.kind.label.replace("_", "-") if self.kind else "unknown"

    @property
    def status_label(self) -> str:
        """The status as people say it: a wait that is open does not run, it waits."""
        if self.status == "running":
            if self.kind in (Kind.MESSAGE, Kind.SLEEP, Kind.CHILD):
                return _("waiting")
            return _("running") if self.kind == Kind.STEP else _("open")
        return str(_STATUS_NAMES.get(self.status, self.status))

    def branch(self, index: int) -> str:
        """What a branch is called."""
        names = self.branches
        return printable(names[index]) if isinstance(names, list) and index < len(names) else str(index)


_KIND_NAMES: dict[Kind | None, str] = {
    Kind.STEP: "step",
    Kind.LOOP: "loop",
    Kind.SLEEP: "sleep",
    Kind.MESSAGE: "message",
    Kind.ROLLBACK_CHECKPOINT: "checkpoint",
    Kind.JOIN: "join",
    Kind.RACE: "race",
    Kind.REMOVED: "removed",
    Kind.VERSION_CHECK: "version",
    Kind.SEND: "send",
    Kind.MAP: "map",
    Kind.CHILD: "child",
    Kind.TRY: "try",
}
_STATUS_NAMES = {
    "retrying": gettext_lazy("retrying"),
    "completed": gettext_lazy("completed"),
    "failed": gettext_lazy("failed"),
    "cancelled": gettext_lazy("cancelled"),
    "removed": gettext_lazy("removed"),
    "unknown": gettext_lazy("unreadable"),
}
#: Kinds whose recorded input is the engine's own note, told in ``summary`` instead.
_NOTES = frozenset({Kind.LOOP, Kind.SLEEP, Kind.MESSAGE, Kind.JOIN, Kind.RACE, Kind.MAP, Kind.TRY})


def unread(seq: int, scope: str, problem: str, label: str = "") -> Line:
    """A line for what cannot be read."""
    return Line(seq, scope, label or f"?{seq}", None, "unknown", problem=problem)


def from_row(row: dict[str, Any], began: int | None) -> Line:
    """A finished entry."""
    try:
        return _from_row(row, began)
    except Exception as error:  # whatever a damaged row holds, the rest of the page is shown
        text = _("cannot be read: %(why)s") % {"why": printable(error)[:200]}
        return unread(row["seq"], str(row.get("scope") or ""), text, printable(row.get("name") or "")[:80])


def _from_row(row: dict[str, Any], began: int | None) -> Line:
    kind, done = Kind(row["kind"]), row["done_at"]
    note = _note(row["input_head"]) if kind in _NOTES else None
    started = row["started_at"] or done
    line = Line(
        seq=row["seq"],
        scope=row["scope"],
        label=_label(row["name"], row["occurrence"]),
        kind=kind,
        status=EntryStatus(row["status"]).label,
        started_at=moment(started),
        done_at=moment(done),
        offset=span(started - began) if began and started else "",
        took=span(done - started) if done and started else "",
        attempts=_attempts(items(row["attempts_head"])),
        error=failure(row["error_head"]),
        input=None if kind in _NOTES else value(_arguments(kind, row["input_head"]), reads.VALUE),
        output=value(_result(kind, row["output_head"]), reads.VALUE),
        rollback=printable(row["rollback"] or ""),
        rolled_back_at=moment(row["rolled_back_at"]),
    )
    if kind in (Kind.JOIN, Kind.RACE, Kind.MAP) and isinstance(note, list | int):
        line.branches = note
    line.summary = _summary(line, note, row["output_head"])
    return line


def from_open(entry: dict[str, Any], began: int | None) -> Line:
    """An entry that is not finished."""
    try:
        return _from_open(entry, began)
    except Exception as error:
        text = _("cannot be read: %(why)s") % {"why": printable(error)[:200]}
        seq, scope = entry.get("s"), entry.get("p")
        return unread(seq if isinstance(seq, int) else 0, scope if isinstance(scope, str) else "", text)


def _from_open(entry: dict[str, Any], began: int | None) -> Line:
    kind, started = Kind(entry["k"]), entry.get("t")
    retry_at, names, stored = entry.get("b"), entry.get("q"), entry.get("in")
    attempts = _attempts(entry.get("x") or ())
    line = Line(
        seq=int(entry["s"]),
        scope=str(entry.get("p", "")),
        label=_label(entry["n"], entry.get("o", 1)),
        kind=kind,
        status=(EntryStatus.RETRYING if retry_at is not None else EntryStatus.RUNNING).label,
        started_at=moment(started),
        offset=span(started - began) if began and started else "",
        due_at=moment(retry_at if retry_at is not None else entry.get("d")),
        attempts=attempts,
        attempt=int(entry.get("a") or 0),
        error=attempts[-1].error if attempts else None,
        input=value(_arguments(kind, stored), reads.VALUE) if isinstance(stored, str) else None,
        branches=entry.get("bn") or (),
        queues=None if names is None else tuple(printable(name) for name in names),
        open=True,
    )
    if kind == Kind.LOOP:
        line.summary = _("in iteration %(n)d") % {"n": entry.get("i", 0)}
        line.input = None
    elif kind == Kind.MESSAGE:
        line.summary = _from_queues(line.queues)
    elif kind in (Kind.JOIN, Kind.RACE, Kind.MAP):
        line.summary = _branches_in_words(line.branches)
    elif attempts:
        line.summary = _("attempt %(n)d") % {"n": line.attempt}
    return line


def _arguments(kind: Kind, stored: str | None) -> str | None:
    """A step's input as its arguments: ``[args, kwargs]`` without the half that is empty."""
    note = _note(stored) if kind == Kind.STEP else None
    if isinstance(note, list) and len(note) == 2 and isinstance(note[0], list) and note[1] in ({}, None):
        return json.dumps(note[0]) if note[0] else None
    return stored


def _result(kind: Kind, stored: str | None) -> str | None:
    """What a call gave back: of messages their bodies; nothing where it was nothing."""
    if stored == "null":
        return None
    note = _note(stored) if kind == Kind.MESSAGE else None
    if isinstance(note, list) and all(isinstance(message, list) and len(message) > 2 for message in note):
        bodies = [message[2] for message in note]
        return json.dumps(bodies[0] if len(bodies) == 1 else bodies) if bodies else None
    return stored


def _label(name: str, occurrence: int) -> str:
    name = printable(name)
    return name if occurrence == 1 else f"{name}#{occurrence}"


def _note(stored: str | None) -> Any:
    """What the engine noted of a call; None where it was cut or is none."""
    try:
        return json.loads(stored) if stored else None
    except ValueError:
        return None


def _attempts(recorded: Any) -> list[Attempt]:
    shown = []
    for number, (started, done, error, *reruns) in enumerate(recorded, 1):
        shown.append(
            Attempt(
                number,
                moment(started),
                span(done - started) if started and done else "",
                failure_of(error) if isinstance(error, dict) else None,
                *reruns,
            )
        )
    return shown


def _summary(line: Line, note: Any, output: str | None) -> str:
    kind = line.kind
    if kind == Kind.LOOP and isinstance(note, dict):
        turns = int(note.get("iteration", 0)) + 1
        return ngettext("%(n)d iteration", "%(n)d iterations", turns) % {"n": turns}
    if kind in (Kind.JOIN, Kind.RACE, Kind.MAP):
        return _branches_in_words(line.branches)
    if kind == Kind.MESSAGE and line.status == "completed":
        return _messages_in_words(note, output)
    if line.attempts:
        tried = len(line.attempts)
        return ngettext("%(n)d attempt", "%(n)d attempts", tried) % {"n": tried}
    return ""


def _branches_in_words(names: Sequence[Any] | int) -> str:
    if isinstance(names, int):
        return ngettext("%(n)d item", "%(n)d items", names) % {"n": names}
    return ", ".join(printable(name) for name in names[:6]) + (", …" if len(names) > 6 else "")


def _messages_in_words(note: Any, output: str | None) -> str:
    taken = [element for element in items(output) if isinstance(element, list) and len(element) > 1]
    if not taken:
        names = note.get("names") if isinstance(note, dict) else None
        where = _from_queues(None if names is None else tuple(map(printable, names)))
        return _("nothing came (%(where)s)") % {"where": where} if output in ("[]", None) else where
    queues = ", ".join(dict.fromkeys(printable(element[1]) for element in taken))
    if len(taken) == 1:
        return _("from %(queue)s") % {"queue": queues}
    return ngettext("%(n)d message from %(queue)s", "%(n)d messages from %(queue)s", len(taken)) % {
        "n": len(taken),
        "queue": queues,
    }


def _from_queues(names: tuple[str, ...] | None) -> str:
    return _("from any queue") if names is None else _("from %(queue)s") % {"queue": ", ".join(names)}
