"""``ctx.step`` and ``ctx.try_step``. Pure.

A step is ordered, reports how an attempt ended, and is then done, tried again after a backoff, or failed for good.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING, Any

from ..exceptions import (
    CriticalError,
    ErrorInfo,
    HistoryDiverged,
    PayloadTooLarge,
    RivetError,
    RollbackCheckpointError,
    RollbackError,
    SerializationError,
    StepFailed,
    dotted_name,
    failure_from_record,
    failure_record,
)
from ..records import EntryStatus, Kind
from .calls import Call, Result
from .history import noted
from .options import StepOptions
from .results import StepFailure, TryResult
from .turn import Failure, StepOrder, StepResult

if TYPE_CHECKING:
    from .scope import Scope

_PAIRED = (
    "Calls of one name are paired by their order: it must be the same on a replay (sets and directory listings are "
    "not); sort what you iterate over, or give each call its own name"
)
#: Errors that another attempt would meet again.
_FINAL = (CriticalError, SerializationError, PayloadTooLarge)
#: Of the traceback of each attempt but the last: the position holds them, and is written with every commit.
_TRACEBACK_SHOWN = 4_000


class StepCall(Call):
    """``ctx.step`` and ``ctx.try_step``."""

    __slots__ = ("args", "catch", "function", "handler", "hash", "input", "kwargs", "options", "result")
    kind = Kind.STEP

    def __init__(
        self,
        scope: Scope,
        name: str,
        function: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        options: StepOptions,
        catch: Collection[Any] | None = None,
    ) -> None:
        self.function = function
        self.options = options
        self.catch = catch
        self.result: StepResult | None = None
        codec = scope.machine.codec
        if args or kwargs:
            # The function gets what a replay would give it: decoded copies, not the caller's own objects.
            self.args, self.kwargs, self.input = codec.roundtrip_call(
                args, kwargs, what=f"arguments of step {name!r}"
            )
            self.hash: str | None = codec.fingerprint(self.input)
        else:
            self.args, self.kwargs, self.input, self.hash = (), {}, "", None
        self.handler = (
            None if options.rollback is None else scope.machine.program.handler_path(options.rollback)
        )
        if name in scope.odd:
            _refuse_repeat(scope, name)
        super().__init__(scope, name)

    def fresh(self) -> None:
        rec = self.rec
        assert rec is not None
        rec |= {"u": self.entry.started_at, "a": 1, "z": 1}
        if self.hash:
            rec["h"] = self.hash
            self.entry.input_hash = self.hash
        if self.handler is not None:
            self._check_checkpoint()
            rec["r"] = self.entry.rollback = self.handler
        self._order(1)

    def _check_checkpoint(self) -> None:
        if not self.scope.checkpoint:
            self.scope.machine.report(
                RollbackCheckpointError(
                    f"{self.what} has a rollback handler and no checkpoint was set before it: "
                    "await ctx.rollback_checkpoint(name) first, in this scope or one around it"
                )
            )

    def _check_arguments(self) -> None:
        entry, machine = self.entry, self.scope.machine
        if entry.input_hash == self.hash:
            return
        repeated = entry.occurrence > 1 or (entry.name, 2) in self.scope.recorded
        where = self.scope.at(entry.name, entry.occurrence)
        if not repeated:
            self.scope.odd |= {entry.name}
        text = (
            f"{where} was recorded with {entry.input or 'other arguments'} and is met with {self.input[:500]}"
        )
        if repeated or machine.program.strict_args:
            machine.report(HistoryDiverged(f"{text}. {_PAIRED}"))
        machine.turn.notes.append(f"{text}: its recorded result is used")

    def recorded(self) -> None:
        self._check_arguments()
        super().recorded()

    def resume(self) -> None:
        rec, machine = self.rec, self.scope.machine
        assert rec is not None
        self.entry.input_hash, self.entry.rollback = rec.get("h"), rec.get("r")
        self._check_arguments()
        if "b" in rec:
            machine.calls[self.entry.seq] = self
            machine.timers.at(rec["b"], self.entry.seq)
            return
        rec["z"] += 1
        if rec["z"] > machine.limits.max_starts:
            machine.ending.poisoned(self.what, self.entry, rec["z"] - 1)
        self._order(rec["a"])

    def _order(self, attempt: int) -> None:
        machine = self.scope.machine
        machine.calls[self.entry.seq] = self
        machine.running[self.entry.seq] = None
        machine.turn.dirty = True
        machine.turn.must_commit |= not self.options.ephemeral
        machine.turn.starts.append(
            StepOrder(
                seq=self.entry.seq,
                attempt=attempt,
                name=self.entry.name,
                function=self.function,
                args=self.args,
                kwargs=self.kwargs,
                options=self.options,
                durable=not self.options.ephemeral,
                remaining_retries=self.options.remaining(attempt),
            )
        )

    def due(self) -> None:
        """The backoff is over: the next attempt."""
        rec = self.rec
        assert rec is not None
        del rec["b"]
        rec |= {"u": self.scope.machine.now, "z": 1}
        self._order(rec["a"])

    # -- the end of an attempt -----------------------------------------------------------------------

    def ended(self, result: StepResult) -> None:
        """An attempt has ended; decides between success, another attempt and failure."""
        machine, rec, entry = self.scope.machine, self.rec, self.entry
        assert rec is not None
        machine.running.pop(entry.seq, None)
        attempt = rec["a"]
        if result.ok:
            if rec.get("x") or result.reruns:
                self._note_attempt(None, result.reruns)
            self.result = result
            machine.turn.must_commit = not self.options.ephemeral
            machine.tasks.live.append(self)
            return
        error = result.error or ErrorInfo("Exception", "the step failed")
        self._note_attempt(error, result.reruns)
        kind = self._terminal_kind(result, error)
        machine.turn.must_commit = True
        options = self.options
        event = Failure(
            "step",
            error,
            entry.name,
            attempt,
            options.max_retries,
            options.remaining(attempt),
            kind is None,
        )
        machine.turn.failures.append(event)
        if kind is None:
            retry_at = rec["u"] + self.options.backoff(attempt)
            rec |= {"a": attempt + 1, "b": retry_at}
            event.retry_delay, event.retry_at = self.options.backoff(attempt) / 1_000_000, retry_at
            machine.timers.at(retry_at, entry.seq)
            return
        exc = StepFailed.from_record(entry.name, kind, attempt, error, retried=options.retry_on_timeout)
        entry.error = json.dumps(failure_record(exc))
        machine.tasks.live.append(self)

    def _note_attempt(self, error: ErrorInfo | None, reruns: int) -> None:
        rec, shown = self.rec, self.scope.machine.limits.attempts_shown
        assert rec is not None
        rec.pop("y", None)
        past = rec.setdefault("x", [])
        shown_error = error.to_dict() if error else None
        if shown_error and len(shown_error["traceback"]) > _TRACEBACK_SHOWN:
            shown_error["traceback"] = "…" + shown_error["traceback"][-_TRACEBACK_SHOWN:]
        past.append([rec["u"], self.scope.machine.now, shown_error, *([reruns] if reruns else [])])
        if len(past) > shown:
            del past[shown // 4]

    def _terminal_kind(self, result: StepResult, error: ErrorInfo) -> str | None:
        """The failure kind that ends the step, or None for another attempt (R-STEP-10 to -13, D-10)."""
        assert self.rec is not None
        options = self.options
        if error.is_a(dotted_name(RollbackError)):
            return "rollback"
        if any(error.is_a(dotted_name(cls)) for cls in (*_FINAL, *options.no_retry)):
            return "critical"
        if result.timed_out and not options.retry_on_timeout:
            return "timeout"
        if self.rec["a"] <= options.max_retries:
            return None
        return "timeout" if result.timed_out else "conflict" if result.conflict else "exhausted"

    def finish(self) -> Result:
        entry, rec, machine = self.entry, self.rec, self.scope.machine
        assert rec is not None
        entry.input = self.input[: machine.limits.input_shown] or None
        if rec.get("x"):
            entry.attempts = json.dumps(rec["x"])
        if self.result is not None:
            entry.output = self.result.output
            machine.close(self, EntryStatus.COMPLETED)
            return self._outcome(True, self.result.value)
        machine.close(self, EntryStatus.FAILED)
        return self._outcome(False, self._failure())

    def replay(self) -> Result:
        if self.entry.status is EntryStatus.FAILED:
            return self._outcome(False, self._failure())
        output = self.entry.output
        return self._outcome(
            True, None if output is None else self.scope.machine.decode(output, "the result of", self)
        )

    def _failure(self) -> StepFailed:
        failure = failure_from_record(noted(self.entry.error))
        assert isinstance(failure, StepFailed)
        return failure

    def _outcome(self, ok: bool, value: Any) -> Result:
        if self.catch is None:
            return ok, value
        if ok:
            return True, TryResult(True, value)
        if caught(value, self.catch, value.kind):
            return True, TryResult(False, None, step_failure(value))
        return False, value


def _refuse_repeat(scope: Scope, name: str) -> None:
    """The name is repeated after all, so its first call was paired with another's record."""
    scope.machine.report(
        HistoryDiverged(
            f"{scope.at(name)} was met with other arguments than recorded, and {name!r} is called again. {_PAIRED}"
        )
    )


def step_failure(exc: StepFailed) -> StepFailure:
    """A step's exception as data."""
    return StepFailure(
        exc.kind,
        exc.step_name or "",
        exc.attempts,
        ErrorInfo.from_exception(exc, with_traceback=False),
    )


def kinds_to_catch(catch: Any, known: Collection[str]) -> tuple[Any, ...]:
    """``catch=`` of the try calls, checked: kinds, or our exception classes. Raises TypeError."""
    if isinstance(catch, str):
        raise TypeError(f"catch must be a list of kinds, not {catch!r}")
    chosen = tuple(catch)
    for item in chosen:
        fits = (
            item in known
            if isinstance(item, str)
            else isinstance(item, type) and issubclass(item, RivetError)
        )
        if not fits:
            raise TypeError(f"catch: {item!r} is neither one of {', '.join(known)} nor a class of RivetError")
    return chosen


def caught(exc: BaseException, catch: Collection[Any], kind: str | None) -> bool:
    """Whether ``catch`` (kinds, or our exception classes) covers this failure."""
    return any(item == kind if isinstance(item, str) else isinstance(exc, item) for item in catch)
