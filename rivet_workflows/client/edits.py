"""What control operations change in a run's history: pure functions from what is stored to an :class:`Edit`.

The store locks, fences and writes; here is decided which entries are tried again, dropped or given a result. An entry
that is opened again keeps its number, and with it its idempotency key and its place in the replay's order.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from rivet_workflows.records import (
    Blocked,
    Entry,
    EntryStatus,
    Kind,
    Lifecycle,
    MessageRow,
    child_scope,
    dump_open,
    load_open,
    scope_steps,
)
from rivet_workflows.store.rows import Edit, RunRow

__all__ = ["recover", "replay_from", "skip"]

#: Kinds that hold others in scopes of their own.
_HOLDING = frozenset({Kind.LOOP, Kind.JOIN, Kind.RACE, Kind.MAP, Kind.TRY})
#: The ways in which a run is over without its result.
_BROKEN = (Lifecycle.FAILED, Lifecycle.CANCELLED)


class _History:
    """Finished and open entries, and how they lie in each other."""

    def __init__(self, inflight: str, rows: Iterable[Entry]) -> None:
        position = load_open(inflight)
        self.rows = {row.seq: row for row in rows}
        self.open: dict[int, dict[str, Any]] = {rec["s"]: rec for rec in position.pop("e")}
        #: Messages that are held, a rollback that is under way.
        self.extra: dict[str, Any] = position
        self.dropped: list[int] = []

    def inflight(self) -> str:
        return dump_open([self.open[seq] for seq in sorted(self.open)], **self.extra)

    def scope_of(self, seq: int) -> str:
        return self.rows[seq].scope if seq in self.rows else str(self.open[seq]["p"])

    def ancestors(self, seq: int) -> Iterator[tuple[int, int]]:
        """``(seq, index of iteration or branch)`` of the entries around this one, the outermost first."""
        scope = self.scope_of(seq)
        for opener, index, _within in scope_steps(scope):
            yield opener, index

    def everything(self) -> list[int]:
        return sorted({*self.rows, *self.open})

    def reopen(self, seq: int, now: int) -> None:
        """A finished entry is open again; a step with all its attempts before it."""
        row = self.rows.pop(seq)
        self.dropped.append(seq)
        rec: dict[str, Any] = {"s": seq, "p": row.scope, "n": row.name, "k": int(row.kind)}
        if row.occurrence > 1:
            rec["o"] = row.occurrence
        rec["t"] = row.started_at
        shape = json.loads(row.input) if row.input and row.kind in _HOLDING else None
        if row.kind == Kind.LOOP:
            shape = shape or {}
            rec |= {
                "i": shape.get("iteration", 0),
                "v": shape.get("state", "null"),
                "f": 0,
                "m": shape.get("at", 0),
            }
        elif row.kind == Kind.CHILD:
            given = json.loads(row.input or "{}")
            rec["c"] = [given.get("actor"), given.get("key")]
        elif row.kind in _HOLDING:
            rec["bn"] = [] if shape is None else shape
        else:
            rec |= {"u": now, "a": 1, "z": 0}
            if row.input_hash:
                rec["h"] = row.input_hash
            if row.rollback:
                rec["r"] = row.rollback
            if row.attempts:
                rec["x"] = json.loads(row.attempts)
        self.open[seq] = rec

    def broke_the_run(self, seq: int) -> bool:
        """Did this failure leave its scope, and so on outwards? One that was caught has something after it, or around
        it something that ended well."""
        for at in (seq, *(outer for outer, _ in self.ancestors(seq))):
            row = self.rows.get(at)
            if row is None:
                continue  # around it, and still open
            if row.status != EntryStatus.FAILED:
                return False
            after = row.done_seq or row.seq
            if any(other > after and self.scope_of(other) == row.scope for other in self.everything()):
                return False
        return True

    def retry_failures(self, now: int) -> None:
        """Open again what broke the run: the steps, and the joins, loops and blocks that failed with them."""
        failed = [seq for seq, row in self.rows.items() if row.status == EntryStatus.FAILED]
        broken = [seq for seq in failed if self.broke_the_run(seq)]
        for seq in broken:
            if self.rows[seq].kind in _HOLDING or self.rows[seq].kind in (Kind.STEP, Kind.CHILD):
                self.reopen(seq, now)

    def forget_starts(self) -> None:
        """Starts that never reported back count no more."""
        for rec in self.open.values():
            if "z" in rec:
                rec["z"] = 0
        if "rb" in self.extra:
            self.extra["rb"] |= {"a": 1, "b": None, "z": 0}


def recover(run: RunRow, rows: Sequence[Entry], now: int) -> Edit | None:
    """Run on after a failure, a cancellation or a block; of a sleeping run, try steps in backoff now. None: nothing."""
    history = _History(run.inflight, rows)
    if run.blocked == Blocked.OVER:
        if run.lifecycle not in _BROKEN:
            return None
        history.retry_failures(now)
        history.forget_starts()
    elif run.blocked == Blocked.NO:
        if not _hasten(history, now):
            return None
    elif run.blocked == Blocked.PAUSED:
        return None
    else:
        history.forget_starts()
    inflight = history.inflight() if run.inflight or history.open else None
    # A cancellation gave them back to their queues (D-16).
    holds = tuple((message, seq) for message, seq, _ in history.extra.get("held", ()))
    return Edit(inflight=inflight, delete_seqs=tuple(history.dropped), holds=holds)


def _hasten(history: _History, now: int) -> bool:
    """Let steps in backoff be due now; False where there is none, or something else runs (it would run twice)."""
    steps = [rec for rec in history.open.values() if rec["k"] == Kind.STEP]
    if "rb" in history.extra or not steps or any("b" not in rec for rec in steps):
        return False
    for rec in steps:
        rec["b"] = now
    return True


def replay_from(run: RunRow, rows: Sequence[Entry], target: int | None, now: int) -> tuple[int, Edit] | None:
    """Run again from ``target`` (None: from the start). The first ``seq`` that goes, and the rest of the change.

    Inside a loop it begins with the iteration, where its starting state is still known, else with the loop (D-20).
    None: refused, a rollback is under way.
    """
    history = _History(run.inflight, rows)
    if "rb" in history.extra:
        return None
    if target is None:
        return 0, Edit(inflight="", give_back=_consumed(rows))
    first = _boundary(history, target)
    gone = [seq for seq in history.everything() if seq >= first]
    # What holds something that goes is not finished any more.
    around = {outer for seq in gone for outer, _ in history.ancestors(seq) if outer < first}
    for seq in gone:
        history.open.pop(seq, None)
    for outer in sorted(around):
        if outer in history.rows:
            history.reopen(outer, now)
    held = history.extra.get("held", ())
    history.extra["held"] = [entry for entry in held if entry[1] < first]
    history.forget_starts()
    return first, Edit(
        inflight=history.inflight(),
        delete_seqs=tuple(history.dropped),
        give_back=_consumed(row for row in rows if row.seq >= first),
    )


def _consumed(rows: Iterable[Entry]) -> list[MessageRow]:
    """The messages that these entries took, as they lay in their queues (D-16)."""
    found = []
    for row in rows:
        if row.kind == Kind.MESSAGE and row.output:
            for number, queue, body, sent_at, *_ in json.loads(row.output):
                # The body is part of an encoded text; this is how the codec writes.
                found.append(MessageRow(number, queue, json.dumps(body, separators=(",", ":")), sent_at))
    return found


def _boundary(history: _History, target: int) -> int:
    first, innermost = target, None
    for outer, index in history.ancestors(target):
        kind = Kind(history.rows[outer].kind if outer in history.rows else history.open[outer]["k"])
        if kind != Kind.LOOP:
            continue
        if index != _iteration(history, outer):
            return outer  # its starting state is gone: the loop begins again
        innermost = child_scope(history.scope_of(outer), outer, index)
    if innermost is not None:
        first = min(seq for seq in history.everything() if history.scope_of(seq).startswith(innermost))
    return first


def _iteration(history: _History, loop: int) -> int:
    """The iteration whose starting state is stored: the last one."""
    if loop in history.open:
        return int(history.open[loop].get("i", 0))
    return int(json.loads(history.rows[loop].input or "{}").get("iteration", 0))


def skip(run: RunRow, rows: Sequence[Entry], target: int, output: str, now: int) -> Edit | None:
    """Give a step that is open, or that broke the run, this result. None: it is no such step."""
    history = _History(run.inflight, rows)
    over = run.blocked == Blocked.OVER
    if "rb" in history.extra or (over and run.lifecycle not in _BROKEN):
        return None
    if target in history.rows:
        row = history.rows[target]
        if row.kind != Kind.STEP or row.status != EntryStatus.FAILED or not history.broke_the_run(target):
            return None
        done = replace(row, error=None)
    else:
        rec = history.open[target]
        if rec["k"] != Kind.STEP:
            return None
        done = _from_open(history.open.pop(target))
    done = replace(done, status=EntryStatus.COMPLETED, output=output, done_seq=run.next_seq, done_at=now)
    if over:
        # What failed with it goes on too. It is not one of them any more.
        history.rows[target] = done
        history.retry_failures(now)
        _reopen_around(history, target, now)
    history.forget_starts()
    return Edit(
        inflight=history.inflight(),
        next_seq=run.next_seq + 1,
        delete_seqs=tuple(seq for seq in history.dropped if seq != target),
        rows=[done],
    )


def _reopen_around(history: _History, target: int, now: int) -> None:
    for outer, _ in list(history.ancestors(target)):
        if outer in history.rows and history.rows[outer].status == EntryStatus.FAILED:
            history.reopen(outer, now)


def _from_open(rec: dict[str, Any]) -> Entry:
    return Entry(
        seq=rec["s"],
        scope=rec["p"],
        name=rec["n"],
        kind=Kind(rec["k"]),
        occurrence=rec.get("o", 1),
        started_at=rec["t"],
        input_hash=rec.get("h"),
        rollback=rec.get("r"),
        attempts=json.dumps(rec["x"]) if rec.get("x") else None,
    )
