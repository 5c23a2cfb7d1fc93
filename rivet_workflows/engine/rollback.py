"""Rolling back a failed run: handlers of completed steps, last completed first (D-14). Pure.

No workflow code runs here. What must be compensated are rows: entries with a handler, completed under a checkpoint
that was open when the run failed. Each handler is ordered like a step, with retries; each that has run is recorded.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ..exceptions import ErrorInfo, RivetError
from ..records import Blocked, Entry
from .options import DEFAULTS
from .turn import Failure, StepOrder, StepResult

if TYPE_CHECKING:
    from .machine import Machine


class Rollback:
    """The state of a rollback: the error that caused it, its checkpoints, and the handler that is running."""

    def __init__(
        self,
        machine: Machine,
        error: str,
        cps: Sequence[Sequence[Any]],
        a: int = 1,
        b: int | None = None,
        z: int = 0,
    ) -> None:
        self.machine = machine
        self.error = error
        self.checkpoints = [(int(seq), str(scope)) for seq, scope in cps]
        self.attempt = a
        self.starts = z
        #: When the next attempt of the failed handler is due.
        self.retry_at = b
        self.entries: list[Entry] = []

    def to_record(self) -> dict[str, Any]:
        return {
            "error": self.error,
            "cps": self.checkpoints,
            "a": self.attempt,
            "b": self.retry_at,
            "z": self.starts,
        }

    def scan(self) -> None:
        """Ask for the rows to compensate."""
        turn = self.machine.turn
        turn.rollback_scan = self.checkpoints
        turn.dirty = turn.must_commit = True

    def resume(self) -> None:
        self.scan()
        self.machine.turn.must_commit = False

    def begin(self, entries: Sequence[Entry]) -> None:
        self.entries = list(entries)
        if self.retry_at is not None and self.entries and self.retry_at > self.machine.now:
            self.machine.timers.at(self.retry_at, 0)
            return
        self._next()

    def due(self) -> None:
        self.retry_at = None
        self._next()

    def _next(self) -> None:
        machine = self.machine
        machine.turn.dirty = machine.turn.must_commit = True
        if not self.entries:
            machine.rollback = None
            machine.ending.failed(self.error)
            return
        entry = self.entries[0]
        assert entry.rollback is not None
        try:
            handler = machine.program.find_handler(entry.rollback)
        except LookupError as exc:
            self._stuck(entry, ErrorInfo.from_exception(exc, with_traceback=False))
            return
        self.retry_at = None
        self.starts += 1
        if self.starts > machine.limits.max_starts:
            self._stuck(
                entry, ErrorInfo("RivetError", "its worker never reported back; recover() tries again")
            )
            return
        output = None if entry.output is None else machine.codec.loads(entry.output)
        machine.running[entry.seq] = None
        machine.turn.starts.append(
            StepOrder(
                seq=entry.seq,
                attempt=self.attempt,
                name=entry.name,
                function=handler,
                args=(output,),
                kwargs={},
                options=DEFAULTS,
                is_rollback=True,
                remaining_retries=DEFAULTS.remaining(self.attempt),
            )
        )

    def handler_done(self, seq: int, attempt: int, result: StepResult) -> None:
        machine, turn = self.machine, self.machine.turn
        if seq not in machine.running or attempt != self.attempt:
            turn.notes.append(f"late result of rollback handler of entry {seq} dropped")
            return
        machine.running.pop(seq, None)
        turn.dirty = turn.must_commit = True
        if result.ok:
            turn.rolled_back.append((seq, machine.now))
            self.entries.pop(0)
            self.attempt, self.starts = 1, 0
            self._next()
            return
        entry, error = self.entries[0], result.error or ErrorInfo("Exception", "the rollback handler failed")
        retry = self.attempt <= DEFAULTS.max_retries
        delay = DEFAULTS.backoff(self.attempt)
        turn.failures.append(
            Failure(
                "rollback",
                error,
                entry.name,
                attempt,
                DEFAULTS.max_retries,
                DEFAULTS.remaining(attempt),
                retry,
            )
        )
        if not retry:
            self._stuck(entry, error)
            return
        self.attempt += 1
        self.starts = 0
        self.retry_at = machine.now + delay
        machine.timers.at(self.retry_at, 0)

    def _stuck(self, entry: Entry, error: ErrorInfo) -> None:
        """The actor stays in ``rolling_back``, visible, until ``recover``."""
        self.attempt, self.starts, self.retry_at = 1, 0, None
        text = (
            f"rollback handler {entry.rollback!r} of step {entry.name!r} (entry {entry.seq}) failed: {error}"
        )
        self.machine.ending.set_aside(
            Blocked.ROLLBACK_FAILED, RivetError(text, metadata={"error": json.dumps(error.to_dict())})
        )
