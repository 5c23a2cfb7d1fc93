"""A workflow's history as callers see it: finished rows and what is still open, merged, with readable locations.

Pure: works on :class:`~rivet_workflows.records.Entry` rows and on the ``inflight`` text of a run.

An open entry is ``{"s": seq, "p": scope, "n": name, "k": kind, "t": started_at}`` plus, where they apply:
``o`` occurrence (1 when absent), ``a`` number of the attempt, ``b`` when a failed step is tried again, ``x`` the
attempts that ended, ``d`` deadline, ``q`` the queue names waited for (null: any), ``i`` iteration of a loop and ``v``
its state, ``bn`` names of branches (of a map: how many items), ``in`` what the call was made with.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property
from typing import Any

from rivet_workflows import codec
from rivet_workflows.client.moments import from_micros, from_micros_or_none
from rivet_workflows.client.results import error_info
from rivet_workflows.exceptions import ErrorInfo, SerializationError
from rivet_workflows.records import Entry, EntryStatus, Kind, load_open, scope_steps

__all__ = ["Attempt", "HistoryEntry", "build"]

#: Kinds whose scopes are branches, with names; a loop's are iterations, with numbers.
_BRANCHING = frozenset({Kind.JOIN, Kind.RACE, Kind.MAP})


@dataclass(frozen=True, slots=True)
class Attempt:
    """One attempt of a step that has ended; ``error`` is None where it succeeded.

    ``reruns``: times that it was rolled back and its function called again, because the actor was changed meanwhile;
    only an ``atomic`` step's is, and that counts as no attempt.
    """

    started_at: datetime | None
    done_at: datetime | None
    error: ErrorInfo | None
    reruns: int = 0


@dataclass(frozen=True)
class HistoryEntry:
    """One recorded call of a workflow.

    ``path`` is where it was made, part by part: names (``"wait-work#2"`` where a name repeats) and numbers of loop
    iterations; ``location`` is the same as text, ``outer/~0/inner``. ``done_seq``, ``done_at`` and ``output`` are None
    while it is open. Times are aware datetimes.
    """

    seq: int
    done_seq: int | None
    kind: str
    name: str
    occurrence: int
    path: tuple[str | int, ...]
    status: str
    attempts: list[Attempt]
    error: ErrorInfo | None
    started_at: datetime | None
    done_at: datetime | None
    #: The stored texts behind :attr:`input` and :attr:`output`.
    input_text: str | None = field(default=None, repr=False)
    output_text: str | None = field(default=None, repr=False)

    @property
    def location(self) -> str:
        return "/".join(f"~{part}" if isinstance(part, int) else part for part in self.path)

    @cached_property
    def input(self) -> Any:
        """What the call was made with. One over 8 KiB was cut when it was recorded: then it is that text."""
        try:
            return self._decoded(self.input_text)
        except SerializationError:
            return self.input_text

    @cached_property
    def output(self) -> Any:
        return self._decoded(self.output_text)

    @staticmethod
    def _decoded(text: str | None) -> Any:
        return None if text is None else codec.loads(text)

    def __str__(self) -> str:
        return f"{self.location} ({self.kind}, {self.status})"


@dataclass(frozen=True, slots=True)
class _Opener:
    """What is needed of an entry to name the places inside it."""

    kind: Kind
    label: str
    branches: Sequence[Any]


def build(rows: Iterable[Entry], inflight: str) -> list[HistoryEntry]:
    """The history by ``seq``. Where a row and an open entry have one number, the row counts: it was finished since."""
    finished = {row.seq: row for row in rows}
    opened = {int(entry["s"]): entry for entry in load_open(inflight)["e"]}
    openers: dict[int, _Opener] = {}
    for seq, entry in opened.items():
        label = _label(entry["n"], entry.get("o", 1))
        branches = entry.get("bn")
        openers[seq] = _Opener(Kind(entry["k"]), label, branches if isinstance(branches, list) else ())
    for seq, row in finished.items():
        openers[seq] = _Opener(
            Kind(row.kind), _label(row.name, row.occurrence), _branches(row.kind, row.input)
        )
    entries = [_from_row(row, openers) for row in finished.values()]
    entries += [_from_open(entry, openers) for seq, entry in opened.items() if seq not in finished]
    return sorted((entry for entry in entries if entry.kind != Kind.TRY.label), key=lambda entry: entry.seq)


def _label(name: str, occurrence: int) -> str:
    return name if occurrence == 1 else f"{name}#{occurrence}"


def _branches(kind: int, recorded: str | None) -> Sequence[Any]:
    if kind not in _BRANCHING or not recorded:
        return ()
    try:
        names = json.loads(recorded)
    except ValueError:  # cut at 8 KiB: numbers must do
        return ()
    return names if isinstance(names, list) else ()


def _path(scope: str, own: str, openers: dict[int, _Opener]) -> tuple[str | int, ...]:
    path: list[str | int] = []
    for seq, index, _within in scope_steps(scope):
        opener = openers.get(seq)
        if opener is None:  # its own row is gone; what is inside can still be told apart
            path += [f"?{seq}", index]
            continue
        path.append(opener.label)
        if opener.kind == Kind.LOOP:
            path.append(index)
        elif opener.kind in _BRANCHING:
            path.append(str(opener.branches[index]) if index < len(opener.branches) else str(index))
    return (*path, own)


def _from_row(row: Entry, openers: dict[int, _Opener]) -> HistoryEntry:
    return HistoryEntry(
        seq=row.seq,
        done_seq=row.done_seq,
        kind=Kind(row.kind).label,
        name=row.name,
        occurrence=row.occurrence,
        path=_path(row.scope, _label(row.name, row.occurrence), openers),
        status=EntryStatus(row.status).label,
        attempts=_attempts(_recorded(row)),
        error=error_info(row.error, cause=True),
        started_at=from_micros(row.started_at) if row.started_at else None,
        done_at=from_micros_or_none(row.done_at),
        input_text=row.input,
        output_text=row.output,
    )


def _from_open(entry: dict[str, Any], openers: dict[int, _Opener]) -> HistoryEntry:
    retrying = entry.get("b") is not None
    ended = list(entry.get("x") or ())
    running = [(entry["u"], None, None)] if entry.get("u") and not retrying else []
    attempts = _attempts([*ended, *running])
    return HistoryEntry(
        seq=int(entry["s"]),
        done_seq=None,
        kind=Kind(entry["k"]).label,
        name=entry["n"],
        occurrence=entry.get("o", 1),
        path=_path(entry.get("p", ""), _label(entry["n"], entry.get("o", 1)), openers),
        status=(EntryStatus.RETRYING if retrying else EntryStatus.RUNNING).label,
        attempts=attempts,
        error=_attempts(ended)[-1].error if ended else None,
        started_at=from_micros_or_none(entry.get("t")),
        done_at=None,
        input_text=entry.get("in"),
    )


def _recorded(row: Entry) -> Sequence[Sequence[Any]]:
    """The attempts of a finished step. One that went well at once has none of its own in its row."""
    if row.attempts:
        return json.loads(row.attempts)  # type: ignore[no-any-return]
    return [(row.started_at, row.done_at, None)] if row.kind == Kind.STEP else []


def _attempts(recorded: Iterable[Sequence[Any]]) -> list[Attempt]:
    return [
        Attempt(
            from_micros_or_none(started),
            from_micros_or_none(done),
            None if error is None else ErrorInfo.from_dict(error),
            *reruns,
        )
        for started, done, error, *reruns in recorded
    ]
