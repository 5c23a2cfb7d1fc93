"""How a run ends: with a result, in failure, refused, or set aside. Pure.

What ends a run is decided here and never by what the coroutine does once it was stopped (D-09).
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, NoReturn

from ..exceptions import (
    ErrorInfo,
    HistoryDiverged,
    NotReplaySafe,
    RivetError,
    RollbackCheckpointError,
    SerializationError,
    StepFailed,
    failure_record,
)
from ..records import Blocked, Entry, Kind, Lifecycle
from .rollback import Rollback
from .scope import Stopped
from .source import line_of_raise, placed
from .turn import Failure, Outcome, SetAside, Turn

if TYPE_CHECKING:
    from .machine import Machine

#: Kinds that answer at once from what the history holds; in a turn that is refused they must leave no trace.
_ANSWERS = (Kind.VERSION_CHECK, Kind.REMOVED)


class Ending:
    """The end of one machine's run."""

    __slots__ = ("_machine", "_refusal")

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        #: What the code did that cannot be, to be told once its coroutines rest.
        self._refusal: tuple[RivetError, Blocked | None] | None = None

    # -- refusals ------------------------------------------------------------------------------------

    def refuse(self, error: RivetError) -> None:
        """The code did what a replay could not repeat, or does not fit the history. The first word counts."""
        self._refuse(error, Blocked.DIVERGED if isinstance(error, HistoryDiverged) else None)

    def unreadable(self, what: str, error: SerializationError) -> None:
        """A stored value cannot be decoded with the code that is loaded."""
        self._refuse(SerializationError(f"{what} cannot be read: {error}"), Blocked.UNREADABLE)

    def poisoned(self, what: str, entry: Entry, starts: int) -> NoReturn:
        """A step was started too often without ever reporting back."""
        text = (
            f"{what} (entry {entry.seq}) was started {starts} times and its worker never reported back: it seems to "
            "take its process down. recover() tries again"
        )
        self._refuse(RivetError(text), Blocked.POISONED)
        raise Stopped

    def _refuse(self, error: RivetError, reason: Blocked | None) -> None:
        if self._refusal is None:
            self._refusal = error, reason
        self._machine.stopped = True

    def conclude(self, starting: bool) -> None:
        """The coroutines rest: act on a refusal. ``starting``: nothing has come from outside in this turn."""
        machine = self._machine
        if self._refusal is None or machine.over:
            return
        error, reason = self._refusal
        if reason is None:
            self.fail(error)
            return
        turn = machine.turn
        if starting:
            # Nothing but the code made this turn: the position stays to the letter what it was.
            machine.keep_stored()
            machine.turn = Turn()
            machine.turn.notes.extend(turn.notes)
        else:
            turn.rows = [row for row in turn.rows if row.kind not in _ANSWERS]
        self.set_aside(reason, error)

    def set_aside(self, reason: Blocked, error: RivetError) -> None:
        """The actor may not go on until somebody or something changes; nothing is lost."""
        turn = self._machine.turn
        info = ErrorInfo.from_exception(error, with_traceback=False)
        turn.set_aside = SetAside(reason, info)
        turn.failures.append(Failure("workflow", info, set_aside=reason))
        self._stop()

    # -- ends ----------------------------------------------------------------------------------------

    def root_done(self, ok: bool, value: Any) -> None:
        """``run`` has returned, or raised."""
        machine = self._machine
        assert machine.root is not None
        if not ok:
            self.fail(value)
            return
        machine.root.end(well=True)
        try:
            text = machine.codec.dumps(value, what="the result of run")
            if len(text) > machine.limits.max_value:
                raise SerializationError(
                    f"the result of run is {len(text)} bytes, more than {machine.limits.max_value}"
                )
        except SerializationError as exc:
            self.fail(exc)
            return
        machine.open.clear()
        machine.turn.takes += machine.held
        machine.turn.unanswered += machine.held
        machine.held.clear()
        self._over(Outcome(Lifecycle.COMPLETED, machine.now, output=text))

    def fail(self, exc: BaseException) -> None:
        """An error left ``run``, or was reported of it; roll back what open checkpoints cover (D-14)."""
        machine = self._machine
        machine.stopped = True
        if machine.root is not None:
            machine.root.end(well=False)
        if isinstance(exc, RuntimeError) and str(exc) == "no running event loop":
            # What asyncio says where no loop may be: it raises before it suspends.
            text = (
                "run used asyncio (sleep, timeout, create_task, gather, …), which a replay cannot repeat: use "
                "ctx.sleep, ctx.race, ctx.join and timeouts of steps, and await everything else inside a step"
            )
            exc = NotReplaySafe(placed(text, line_of_raise(exc)))
        record = json.dumps(failure_record(exc))
        if not (isinstance(exc, StepFailed) and exc.step_name is not None):
            machine.turn.failures.append(Failure("workflow", ErrorInfo.from_exception(exc)))
        if not machine.checkpoints or isinstance(exc, RollbackCheckpointError):
            self.failed(record)
            return
        self._stop()
        machine.over = False
        machine.rollback = Rollback(machine, record, list(machine.checkpoints))
        machine.rollback.scan()
        machine.dispose()

    def failed(self, error: str) -> None:
        """The run is over with this error record (after its rollback, if there was one)."""
        self._over(Outcome(Lifecycle.FAILED, self._machine.now, error=error))

    def _over(self, outcome: Outcome) -> None:
        self._machine.turn.outcome = outcome
        self._stop()

    def _stop(self) -> None:
        machine, turn = self._machine, self._machine.turn
        turn.starts.clear()
        turn.cancels += sorted(machine.running)
        machine.running.clear()
        machine.timers.clear()
        turn.dirty = turn.must_commit = True
        machine.stopped = machine.over = True
