"""What a machine ordered, line by line, so that two machines of one actor can be compared and a person can read it.

Pure: reads the engine's turns and machines, changes nothing.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any

from rivet_workflows.engine import Machine, Turn
from rivet_workflows.engine.turn import StepOrder
from rivet_workflows.records import Entry, EntryStatus, Kind, load_open

__all__ = ["Line", "first_difference", "orders", "position"]

#: Addresses in texts of objects: another one each time.
_ADDRESS = re.compile(r"0x[0-9a-fA-F]{4,}")
_SHOWN = 300


@dataclass(frozen=True, slots=True)
class Line:
    """One order. ``key`` is what is compared, ``text`` what is shown."""

    key: str
    text: str


def first_difference(parked: list[Line], replayed: list[Line]) -> tuple[str, str] | None:
    """The first lines in which the two differ: (what the parked one did, what the replayed one did)."""
    for at in range(max(len(parked), len(replayed))):
        mine = parked[at] if at < len(parked) else None
        its = replayed[at] if at < len(replayed) else None
        if mine is None or its is None or mine.key != its.key:
            return (mine.text if mine else "nothing more", its.text if its else "nothing more")
    return None


def position(machine: Machine) -> list[Line]:
    """Where a machine stands: its open entries and what each waits for."""
    data = json.loads(json.dumps(load_open(machine.inflight())))
    lines = [_open_line(machine, rec) for rec in sorted(data.pop("e"), key=lambda rec: int(rec["s"]))]
    rest = {name: value for name, value in data.items() if value}
    key = json.dumps([rest, machine.next_seq, sorted(machine.running), sorted(machine.calls)], sort_keys=True)
    lines.append(Line(key, f"and its next entry is number {machine.next_seq}"))
    return lines


def _open_line(machine: Machine, rec: dict[str, Any]) -> Line:
    seq = rec["s"]
    call = machine.calls.get(seq)
    # How often a start was recorded is the worker's business, not the workflow's.
    rec = {name: value for name, value in rec.items() if name != "z"}
    met = None if call is None else [call.entry.name, getattr(call, "hash", None)]
    waits = (
        f"waits at {_entry(rec['k'], rec['n'], rec.get('o', 1), seq)}{_with(getattr(call, 'input', None))}"
    )
    if Kind(rec["k"]) in (Kind.STEP, Kind.SLEEP, Kind.MESSAGE) and call is None:
        waits = f"never comes to {_entry(rec['k'], rec['n'], rec.get('o', 1), seq)}"
    return Line(json.dumps([rec, met], sort_keys=True), waits)


def orders(turn: Turn, machine: Machine) -> list[Line]:
    """What one happening made the machine order, kind by kind."""
    lines = [_row_line(row) for row in turn.rows]
    lines += [_start_line(order, machine) for order in turn.starts]
    lines += [
        Line(repr(child), f'begins child "{child.actor}" {child.key} (entry {child.seq})')
        for child in turn.children
    ]
    for name in ("takes", "holds", "unholds", "completes", "unanswered", "cancels", "rolled_back"):
        lines += [Line(json.dumps([name, thing]), f"{name} {thing}") for thing in getattr(turn, name)]
    lines += [
        Line(f"send {send.queue} {send.body}", f'sends {_short(send.body)} to "{send.queue}"')
        for send in turn.sends
    ]
    lines += [Line(repr(prune), f"prunes {prune.first} to {prune.end}") for prune in turn.prunes]
    if turn.outcome is not None:
        end = turn.outcome
        shown = f"the workflow is {end.lifecycle.label}: {_short(end.output or end.error)}"
        lines.append(Line(json.dumps([end.lifecycle, end.output, _error(end.error)]), shown))
    if turn.set_aside is not None:
        aside = turn.set_aside
        lines.append(
            Line(f"aside {aside.reason} {aside.error.type}", f"it is refused: {aside.error.message}")
        )
    return lines


def _row_line(row: Entry) -> Line:
    what = f"{_entry(row.kind, row.name, row.occurrence, row.seq)} is {EntryStatus(row.status).label}"
    text = f"{what}{_with(row.input)}" + (f" and gives {_short(row.output)}" if row.output else "")
    key = [row.seq, row.scope, row.name, row.kind, row.occurrence, row.status, row.done_seq]
    key += [row.input, row.input_hash, row.output, _error(row.error), row.rollback]
    return Line(json.dumps(key), text)


def _start_line(order: StepOrder, machine: Machine) -> Line:
    call = machine.calls.get(order.seq)
    what = f"{_entry(Kind.STEP, order.name, 1, order.seq)} starts, attempt {order.attempt}"
    key = [order.seq, order.attempt, order.name, order.is_rollback, getattr(call, "hash", None)]
    return Line(json.dumps(key), what + _with(getattr(call, "input", None)))


def _entry(kind: int, name: str, occurrence: int, seq: int) -> str:
    again = f"#{occurrence}" if occurrence > 1 else ""
    return f'{Kind(kind).label} "{name}{again}" (entry {seq})'


def _with(text: str | None) -> str:
    if not text:
        return ""
    try:
        args, kwargs = json.loads(text)
    except (ValueError, TypeError):
        return ""
    if not isinstance(args, list) or not isinstance(kwargs, dict):
        return ""
    given = [json.dumps(arg) for arg in args] + [
        f"{name}={json.dumps(value)}" for name, value in kwargs.items()
    ]
    return f" with ({_short(', '.join(given))})"


def _short(text: str | None) -> str:
    text = text or "nothing"
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"


def _error(text: str | None) -> Any:
    """An error record without what differs from one raising to the next."""
    return None if text is None else _plain(json.loads(_ADDRESS.sub("0x…", text)))


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _plain(item) for name, item in value.items() if name != "traceback"}
    return [_plain(item) for item in value] if isinstance(value, list) else value
