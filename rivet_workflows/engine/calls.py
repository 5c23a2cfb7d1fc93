"""The calls that wait for something outside: steps, sleeps, queue waits. Pure.

Each call meets one of three situations when it is made: it is *new* (record it, order what it needs), *open* (the
history knows it, it is not finished: go on), or *finished* (the recorded result is delivered, in ``done_seq`` order).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Generator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, ClassVar

from ..exceptions import (
    EntryInProgress,
    ErrorInfo,
    HistoryDiverged,
    MessageNotCompleted,
    QueueTimeout,
    RollbackCheckpointError,
    StepFailed,
    dotted_name,
    failure_from_record,
    failure_record,
)
from ..records import Entry, EntryStatus, Kind, MessageRow
from .options import StepOptions
from .results import Message, StepFailure, TryResult
from .turn import Failure, StepOrder, StepResult

if TYPE_CHECKING:
    from .scope import Scope

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
#: What a call gives back: whether it went well, and the value or the exception.
Result = tuple[bool, Any]


def instant(at: int) -> datetime:
    """Microseconds since the epoch as an aware datetime (exact, unlike a float timestamp)."""
    return EPOCH + timedelta(microseconds=at)


class Done:
    """An awaitable that is there already: calls that never wait. Its ``await`` frees the context."""

    __slots__ = ("scope", "value", "what")

    def __init__(self, scope: Scope | None, value: Any, what: str) -> None:
        self.scope = scope
        self.value = value
        self.what = what
        if scope is not None:
            scope.busy = self

    def __await__(self) -> Generator[Any, Any, Any]:
        if self.scope is not None and self.scope.busy is self:
            self.scope.busy = None
        yield from ()
        return self.value


class Call:
    """A recorded call on a context; awaiting it gives its result."""

    __slots__ = ("awaited", "entry", "rec", "scope")
    kind: ClassVar[Kind]
    entry: Entry
    #: The open record, as it stands in the ``inflight`` text; None once the entry is finished in the history.
    rec: dict[str, Any] | None

    def __init__(self, scope: Scope, name: str) -> None:
        self.scope = scope
        self.awaited = False
        self.entry, self.rec, new = scope.enter(self.kind, name)
        scope.busy = self
        if new:
            self.rec = scope.machine.open_entry(self.entry)
            self.fresh()
        elif self.rec is not None:
            scope.machine.adopt(self.entry, self.rec)
            self.resume()
        else:
            self.recorded()

    @property
    def what(self) -> str:
        return f"{self.kind.label} {self.entry.name!r}"

    def __await__(self) -> Generator[Any, Any, Any]:
        dead = self.scope.gate()
        if dead is not None:
            yield from dead.__await__()
        if self.awaited:
            self.scope.machine.report(
                EntryInProgress(f"{self.what} was awaited twice: call it again instead")
            )
        self.awaited = True
        return (yield self)

    def fresh(self) -> None:
        """A new entry: order what it needs."""

    def resume(self) -> None:
        """An entry that is open in the history."""

    def recorded(self) -> None:
        """An entry that is finished in the history: its result comes when it is its turn (D-08)."""
        self.scope.machine.replay_later(self)

    def replay(self) -> Result:
        """The recorded result."""
        raise AssertionError(f"{self.kind.label} is not delivered from its record")

    def finish(self) -> Result:
        """The result is there, now: complete the entry, and say what the workflow gets."""
        raise AssertionError(f"{self.kind.label} does not wait")


class StepCall(Call):
    """``ctx.step`` and ``ctx.try_step``."""

    __slots__ = ("args", "catch", "function", "hash", "input", "kwargs", "options", "result")
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
            (copied, named), text = codec.roundtrip(
                [list(args), dict(kwargs)], what=f"arguments of step {name!r}"
            )
            self.args, self.kwargs, self.input = tuple(copied), named, text
            self.hash: str | None = codec.fingerprint(text)
        else:
            self.args, self.kwargs, self.input, self.hash = (), {}, "", None
        super().__init__(scope, name)

    def fresh(self) -> None:
        rec, options = self.rec, self.options
        assert rec is not None
        rec |= {"u": self.entry.started_at, "a": 1, "z": 1}
        if self.hash:
            rec["h"] = self.hash
            self.entry.input_hash = self.hash
        if options.rollback is not None:
            rec["r"] = self.entry.rollback = self._handler_path(options.rollback)
        self._order(1)

    def _handler_path(self, handler: Callable[..., Any]) -> str:
        machine = self.scope.machine
        if not self.scope.checkpoint:
            machine.report(
                RollbackCheckpointError(
                    f"{self.what} has a rollback handler and no checkpoint was set before it: "
                    "await ctx.rollback_checkpoint(name) first, in this scope or one around it"
                )
            )
        return machine.program.handler_path(handler)

    def _check_arguments(self) -> None:
        entry, machine = self.entry, self.scope.machine
        if entry.input_hash == self.hash:
            return
        repeated = entry.occurrence > 1 or (entry.name, 2) in self.scope.recorded
        where = self.scope.at(entry.name, entry.occurrence)
        text = (
            f"{where} was recorded with {entry.input or 'other arguments'} and is met with {self.input[:500]}"
        )
        if repeated or machine.program.strict_args:
            machine.report(
                HistoryDiverged(
                    f"{text}. Calls of one name are paired by their order: it must be the same on a replay (sets and "
                    "directory listings are not); sort what you iterate over, or give each call its own name"
                )
            )
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
            machine.at(rec["b"], self.entry.seq)
            return
        rec["z"] += 1
        if rec["z"] > machine.limits.max_starts:
            machine.poisoned(self.what, self.entry, rec)
            return
        self._order(rec["a"])

    def _order(self, attempt: int) -> None:
        machine = self.scope.machine
        machine.calls[self.entry.seq] = self
        machine.running.add(self.entry.seq)
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
                remaining_retries=max(0, self.options.max_retries - attempt + 1),
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
        machine.running.discard(entry.seq)
        machine.turn.dirty = True
        attempt = rec["a"]
        if result.ok:
            if rec.get("x"):
                self._note_attempt(None)
            self.result = result
            machine.turn.must_commit |= not self.options.ephemeral
            machine.live.append(self)
            return
        error = result.error or ErrorInfo("Exception", "the step failed")
        self._note_attempt(error)
        kind = self._terminal_kind(result, error)
        machine.turn.must_commit = True
        remaining = max(0, self.options.max_retries - (attempt - 1))
        event = Failure("step", error, entry.name, attempt, self.options.max_retries, remaining, kind is None)
        machine.turn.failures.append(event)
        if kind is None:
            retry_at = rec["u"] + self.options.backoff(attempt)
            rec |= {"a": attempt + 1, "b": retry_at}
            event.retry_delay, event.retry_at = self.options.backoff(attempt) / 1_000_000, retry_at
            machine.at(retry_at, entry.seq)
            return
        retried = attempt > self.options.max_retries and kind in ("exhausted", "timeout", "conflict")
        exc = StepFailed.from_record(entry.name, kind, attempt, error, retried=retried)
        entry.error = json.dumps(failure_record(exc))
        machine.live.append(self)

    def _note_attempt(self, error: ErrorInfo | None) -> None:
        rec, shown = self.rec, self.scope.machine.limits.attempts_shown
        assert rec is not None
        past = rec.setdefault("x", [])
        past.append([rec["u"], self.scope.machine.now, error.to_dict() if error else None])
        if len(past) > shown:
            del past[shown // 4]

    def _terminal_kind(self, result: StepResult, error: ErrorInfo) -> str | None:
        """The failure kind that ends the step, or None for another attempt (R-STEP-10 to -13, D-10)."""
        assert self.rec is not None
        options = self.options
        if error.is_a("rivet_workflows.exceptions.RollbackError"):
            return "rollback"
        final = ("rivet_workflows.exceptions.CriticalError", "rivet_workflows.exceptions.SerializationError")
        if any(map(error.is_a, final)) or error.is_a("rivet_workflows.exceptions.PayloadTooLarge"):
            return "critical"
        if any(error.is_a(dotted_name(cls)) for cls in options.no_retry):
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
        return self._outcome(True, None if output is None else self.scope.machine.codec.loads(output))

    def _failure(self) -> StepFailed:
        failure = failure_from_record(json.loads(self.entry.error or "{}"))
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


def step_failure(exc: StepFailed) -> StepFailure:
    """A step's exception as data."""
    return StepFailure(
        exc.kind,
        exc.step_name or "",
        exc.attempts,
        exc.error or ErrorInfo.from_exception(exc, with_traceback=False),
    )


def caught(exc: BaseException, catch: Collection[Any], kind: str | None) -> bool:
    """Whether ``catch`` (kinds, or our exception classes) covers this failure."""
    return any(item == kind if isinstance(item, str) else isinstance(exc, item) for item in catch)


class SleepCall(Call):
    """``ctx.sleep`` and ``ctx.sleep_until``. The first recorded deadline stays, whatever the code says later."""

    __slots__ = ("deadline",)
    kind = Kind.SLEEP

    def __init__(self, scope: Scope, name: str, deadline: int) -> None:
        self.deadline = deadline
        super().__init__(scope, name)

    def fresh(self) -> None:
        assert self.rec is not None
        self.rec["d"] = self.deadline
        self.scope.machine.turn.must_commit = True
        self.resume()

    def resume(self) -> None:
        assert self.rec is not None
        machine = self.scope.machine
        self.deadline = self.rec["d"]
        machine.calls[self.entry.seq] = self
        if self.deadline <= machine.now:
            machine.live.append(self)
        else:
            machine.at(self.deadline, self.entry.seq)

    def due(self) -> None:
        self.scope.machine.live.append(self)

    def finish(self) -> Result:
        self.entry.input = json.dumps({"deadline": self.deadline})
        self.scope.machine.turn.must_commit = True
        self.scope.machine.close(self, EntryStatus.COMPLETED)
        return True, None

    def replay(self) -> Result:
        return True, None


class QueueCall(Call):
    """``queue.next`` (``single``) and ``queue.next_batch``."""

    __slots__ = ("completable", "count", "deadline", "names", "single", "taken")
    kind = Kind.MESSAGE

    def __init__(
        self,
        scope: Scope,
        name: str,
        names: tuple[str, ...] | None,
        count: int,
        timeout: int | None,
        completable: bool,
        single: bool,
    ) -> None:
        self.names = names
        self.count = count
        self.deadline = None if timeout is None else scope.machine.now + timeout
        self.completable = completable
        self.single = single
        self.taken: list[MessageRow] = []
        super().__init__(scope, name)

    def fresh(self) -> None:
        machine, rec = self.scope.machine, self.rec
        assert rec is not None
        machine.turn.must_commit = True
        if machine.held:
            self.entry.error = json.dumps(
                failure_record(
                    MessageNotCompleted(
                        "Previous completable queue message is not completed. Complete message "
                        f"{next(iter(machine.held))} before {self.what}"
                    )
                )
            )
            machine.live.append(self)
            return
        rec |= {"q": self.names, "c": self.count}
        if self.deadline is not None:
            rec["d"] = self.deadline
        if self.completable:
            rec["m"] = 1
        self._wait()

    def resume(self) -> None:
        rec = self.rec
        assert rec is not None
        names = rec.get("q")
        self.names = None if names is None else tuple(names)
        self.count, self.deadline, self.completable = rec.get("c", 1), rec.get("d"), bool(rec.get("m"))
        self._wait()

    def _wait(self) -> None:
        machine = self.scope.machine
        machine.calls[self.entry.seq] = machine.waits[self.entry.seq] = self
        if self.deadline is not None:
            machine.at(self.deadline, self.entry.seq)

    def due(self) -> None:
        """The deadline has come. Whether nothing was sent by then only a look after it can tell (D-15)."""

    def wants(self, message: MessageRow) -> bool:
        if self.deadline is not None and message.sent_at > self.deadline:
            return False
        return self.names is None or message.queue in self.names

    def take(self, mailbox: list[MessageRow], nothing_more_by: int) -> bool:
        """Take what is there; or give up, if nothing that was sent by the deadline can still be coming."""
        self.taken = [message for message in mailbox if self.wants(message)][: self.count]
        if not self.taken:
            return self.deadline is not None and nothing_more_by >= self.deadline
        return True

    def finish(self) -> Result:
        machine, entry = self.scope.machine, self.entry
        machine.turn.must_commit = True
        if entry.error is not None:
            machine.close(self, EntryStatus.FAILED)
            return False, failure_from_record(json.loads(entry.error))
        machine.take_messages(self.taken, entry, completable=self.completable)
        entry.input = json.dumps({"names": self.names, "count": self.count, "deadline": self.deadline})
        # Bodies are encoded texts already: the whole is the encoding of a list of lists.
        parts = (
            f"[{m.id},{json.dumps(m.queue)},{m.body},{m.sent_at},{int(self.completable)}]" for m in self.taken
        )
        entry.output = f"[{','.join(parts)}]"
        machine.close(self, EntryStatus.COMPLETED)
        return self._result()

    def replay(self) -> Result:
        if self.entry.status is EntryStatus.FAILED:
            return False, failure_from_record(json.loads(self.entry.error or "{}"))
        return self._result()

    def _result(self) -> Result:
        machine = self.scope.machine
        records: Sequence[Sequence[Any]] = machine.codec.loads(self.entry.output or "[]")
        messages = [
            Message(id=number, name=name, body=body, created_at=instant(sent))._bind(machine, bool(completable))
            for number, name, body, sent, completable in records
        ]
        if not self.single:
            return True, messages
        if messages:
            return True, messages[0]
        return False, QueueTimeout(
            f"{self.what} timed out without a message; use queue.next_batch, which gives [], where that is expected"
        )
