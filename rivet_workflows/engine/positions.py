"""What ``recover``, ``replay_from`` and ``skip`` mean for a position and its history. Pure; no workflow code runs.

A position is the ``inflight`` text of a run that nobody holds; the history its finished rows. Each function says what
the position becomes, and which rows go, for whoever carries it out under the run's lock.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ..records import SCOPE_STEP, Entry, EntryStatus, Kind, MessageRow, dump_open, load_open

_BRANCHING = (Kind.JOIN, Kind.RACE, Kind.MAP, Kind.TRY)
#: Finished entries of these kinds can be opened again.
_REOPENED = (*_BRANCHING, Kind.STEP, Kind.LOOP, Kind.CHILD)


@dataclass(slots=True)
class NewPosition:
    """What a control operation makes of a run."""

    inflight: str
    #: Rows that go one by one: they are open again.
    delete: list[int] = field(default_factory=list)
    #: All rows from this ``seq`` on go.
    delete_from: int | None = None
    #: Rows that are written.
    rows: list[Entry] = field(default_factory=list)
    #: Messages that were consumed by rows that go: back into their queues, at their old place.
    give_back: list[MessageRow] = field(default_factory=list)
    next_seq: int | None = None


class _Position:
    """An ``inflight`` text taken apart."""

    def __init__(self, inflight: str) -> None:
        data = load_open(inflight)
        self.open: dict[int, dict[str, Any]] = {rec["s"]: rec for rec in data.pop("e")}
        self.more: dict[str, Any] = data

    def text(self) -> str:
        return dump_open([self.open[seq] for seq in sorted(self.open)], **self.more)

    def fresh_attempts(self) -> None:
        """Every open step gets its full number of attempts and starts again."""
        for rec in self.open.values():
            if rec["k"] == Kind.STEP:
                rec |= {"a": 1, "z": 0}
                rec.pop("b", None)
                rec.pop("x", None)

    def reopen(self, entry: Entry) -> None:
        self.open[entry.seq] = _reopened(entry)


def _reopened(entry: Entry) -> dict[str, Any]:
    """The open record of an entry that was finished."""
    rec: dict[str, Any] = {"s": entry.seq, "p": entry.scope, "n": entry.name, "k": int(entry.kind)}
    if entry.occurrence > 1:
        rec["o"] = entry.occurrence
    rec["t"] = entry.started_at
    given = json.loads(entry.input) if entry.input and entry.kind is not Kind.STEP else None
    if entry.kind is Kind.STEP:
        rec |= {"u": entry.started_at, "a": 1, "z": 0}
        if entry.input_hash:
            rec["h"] = entry.input_hash
        if entry.rollback:
            rec["r"] = entry.rollback
    elif entry.kind is Kind.LOOP:
        given = given or {}
        rec |= {
            "i": given.get("iteration", 0),
            "v": given.get("state", "null"),
            "f": 0,
            "m": given.get("at", 0),
        }
    elif entry.kind is Kind.CHILD:
        given = given or {}
        rec["c"] = [given.get("actor"), given.get("key")]
    else:
        rec["bn"] = given
    return rec


def _ancestors(scope: str) -> list[tuple[int, int]]:
    """``(seq, index)`` of the entries around a scope, outermost first."""
    parts = [scope[n : n + SCOPE_STEP] for n in range(0, len(scope), SCOPE_STEP)]
    half = SCOPE_STEP // 2
    return [(int(part[:half], 16), int(part[half:], 16)) for part in parts]


def _open_around(position: _Position, rows: dict[int, Entry], scope: str, delete: list[int]) -> None:
    """Open what encloses ``scope`` again: it is not finished any more."""
    for seq, _ in _ancestors(scope):
        row = rows.get(seq)
        if row is not None and seq not in position.open:
            position.reopen(row)
            delete.append(seq)


def recover(inflight: str, rows: Sequence[Entry]) -> NewPosition:
    """Run on after a failure: what failed and ended the run is open again, under the same ``seq`` (and so the same
    idempotency key), with all its attempts; failures that were handled stay as they are (D-19).

    A failure was handled when something was made after it where it happened, or around that place.
    """
    position = _Position(inflight)
    rollback = position.more.get("rb")
    if rollback is not None:
        rollback |= {"a": 1, "b": None, "z": 0}
        return NewPosition(position.text())
    position.fresh_attempts()
    made = [(row.scope, row.seq) for row in rows] + [(rec["p"], rec["s"]) for rec in position.open.values()]
    delete: list[int] = []
    for row in rows:
        if row.status is not EntryStatus.FAILED or row.kind not in _REOPENED:
            continue
        after = row.done_seq or row.seq
        if any(seq > after and row.scope.startswith(scope) for scope, seq in made):
            continue
        position.reopen(row)
        delete.append(row.seq)
    known = {row.seq: row for row in rows}
    for seq in delete:
        _open_around(position, known, known[seq].scope, delete)
    return NewPosition(position.text(), delete=sorted(set(delete)))


def retry_now(inflight: str) -> str | None:
    """Steps in backoff are due at once; None when there is none."""
    position = _Position(inflight)
    waiting = [rec for rec in position.open.values() if "b" in rec]
    for rec in waiting:
        rec["b"] = 0
    return position.text() if waiting else None


def replay_from(inflight: str, rows: Sequence[Entry], seq: int | None) -> NewPosition:
    """Forget the entry ``seq`` and all later ones (None: everything), and run again from there (D-20).

    Inside a loop the boundary is the beginning of the iteration when its starting state is kept, which is so for the
    current one; else the whole loop. Raises LookupError when there is no such entry.
    """
    position = _Position(inflight)
    position.more.pop("rb", None)
    if seq is None:
        return NewPosition("", delete_from=0, give_back=_messages(rows))
    entries = {row.seq: row for row in rows} | {s: _entry(rec) for s, rec in position.open.items()}
    if seq not in entries:
        raise LookupError(f"the history has no entry {seq}")
    first, scope = _boundary(position, entries, seq)
    position.open = {s: rec for s, rec in position.open.items() if s < first}
    if "held" in position.more:
        position.more["held"] = [held for held in position.more["held"] if held[1] < first]
    position.fresh_attempts()
    delete: list[int] = []
    _open_around(position, {row.seq: row for row in rows if row.seq < first}, scope, delete)
    gone = [row for row in rows if row.seq >= first]
    return NewPosition(position.text(), delete=delete, delete_from=first, give_back=_messages(gone))


def _boundary(position: _Position, entries: dict[int, Entry], seq: int) -> tuple[int, str]:
    """The first ``seq`` that goes, and the scope in which the run goes on."""
    target = entries[seq]
    first, scope = seq, target.scope
    path = ""
    for opener, index in _ancestors(target.scope):
        entry = entries.get(opener)
        part = f"{opener:012x}{index:012x}"
        if entry is not None and entry.kind is Kind.LOOP:
            rec = position.open.get(opener) or _reopened(entry)
            if rec["i"] != index:
                return opener, entry.scope
            inside = [e.seq for e in entries.values() if e.scope.startswith(path + part)]
            first, scope = min([*inside, seq]), path + part
        path += part
    return first, scope


def _entry(rec: dict[str, Any]) -> Entry:
    return Entry(rec["s"], rec["p"], rec["n"], Kind(rec["k"]), rec.get("o", 1), started_at=rec["t"])


def _messages(rows: Iterable[Entry]) -> list[MessageRow]:
    """The messages that these entries consumed, as they lay in their queues."""
    found = []
    for row in rows:
        if row.kind is not Kind.MESSAGE or not row.output:
            continue
        for number, queue, body, sent_at, *_ in json.loads(row.output):
            found.append(MessageRow(number, queue, json.dumps(body, separators=(",", ":")), sent_at))
    return found


def skip(
    inflight: str, rows: Sequence[Entry], seq: int, output: str, now: int, next_seq: int
) -> NewPosition | None:
    """Record ``output`` as the result of a failed or unfinished step and run on; None when it is no such step."""
    position = _Position(inflight)
    rec = position.open.get(seq)
    row = next((row for row in rows if row.seq == seq), None)
    if rec is not None and rec["k"] == Kind.STEP:
        step = replace(_entry(rec), input_hash=rec.get("h"), rollback=rec.get("r"))
        if rec.get("x"):
            step.attempts = json.dumps(rec["x"])
        del position.open[seq]
        made = NewPosition("")
    elif row is not None and row.kind is Kind.STEP and row.status is EntryStatus.FAILED:
        step = replace(row, error=None)
        made = recover(inflight, rows)
        position = _Position(made.inflight)
        position.open.pop(seq, None)
        made.delete = sorted({*made.delete, seq})
        _open_around(position, {r.seq: r for r in rows}, row.scope, made.delete)
    else:
        return None
    step.status, step.output, step.done_at, step.done_seq = EntryStatus.COMPLETED, output, now, next_seq
    made.rows, made.next_seq = [step], next_seq + 1
    made.inflight = position.text()
    return made
