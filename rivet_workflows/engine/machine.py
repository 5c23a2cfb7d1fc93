"""One actor's workflow, driven by hand. Pure: happenings in, a :class:`Turn` of orders out.

The machine calls the workflow function from its top and advances its coroutines itself, with no event loop: all that
can run does, in a fixed order, until every coroutine waits for a recorded call; then the next result is delivered to
one of them, and so on. On a replay that next result is the recorded one with the smallest ``done_seq``; at the
frontier it is what has just happened. Both take the same path, so a parked and a replayed run cannot differ (D-08).

The idea of a deterministic core that is fed events and answers with commands is h11's (sans-IO) and Temporal's
(workflow activations); the ``done_seq`` order is our own.
"""

from __future__ import annotations

import heapq
import json
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import Any, NoReturn

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
from ..records import (
    Blocked,
    Claimed,
    Entry,
    EntryStatus,
    Kind,
    Lifecycle,
    MessageRow,
    Prune,
    dump_open,
    load_open,
)
from . import source
from .calls import Call, Done, QueueCall, StepCall
from .context import Context
from .program import Codec, Limits, Program
from .results import Message
from .rollback import Rollback
from .scope import MAX_REFUSALS, Dead, Scope, Stopped
from .turn import Failure, Outcome, SelfSend, SetAside, StepResult, Turn

Finished = Callable[[bool, Any], None]


class Task:
    """One coroutine of the workflow: ``run`` itself, a branch, or the body of a callable loop."""

    __slots__ = ("arguments", "coro", "done", "function", "now", "scope", "stopped", "waiting")

    def __init__(
        self, function: Callable[..., Any], arguments: tuple[Any, ...], now: int, done: Finished
    ) -> None:
        self.function = function
        self.arguments = arguments
        self.now = now
        self.done = done
        self.coro: Any = None
        self.scope: Scope | None = None
        self.waiting: Call | None = None
        self.stopped = False


class ReplayLog:
    """``ctx.log``: the project's logger, silent while what happened before is gone through again."""

    def __init__(self, machine: Machine, logger: Any) -> None:
        self._machine = machine
        self._logger = logger

    def __getattr__(self, name: str) -> Any:
        if self._machine.replaying or self._logger is None:
            return lambda *_args, **_kwargs: None
        return getattr(self._logger, name)


class Machine:
    """Holds one actor's coroutines and position. Every happening is a method that returns a :class:`Turn`."""

    def __init__(self, program: Program, claimed: Claimed, codec: Codec, limits: Limits) -> None:
        self.program = program
        self.codec = codec
        self.limits = limits
        self.claimed = claimed
        self.actor_id = claimed.actor_id
        self.program_name = claimed.name
        parts = json.loads(claimed.key)
        self.key: Any = parts[0] if len(parts) == 1 else tuple(parts)
        self.now = 0
        self.next_seq = claimed.next_seq
        position = load_open(claimed.inflight)
        #: Open entries by ``seq``, as they stand in the ``inflight`` text.
        self.open: dict[int, dict[str, Any]] = {rec["s"]: rec for rec in position["e"]}
        #: Completable messages that were received and not completed: id to (seq, scope) of their entry (D-16).
        self.held: dict[int, tuple[int, str]] = {
            m: (seq, scope) for m, seq, scope in position.get("held", ())
        }
        #: What the history holds and the code has not met yet, by scope and name.
        self.recorded: dict[str, dict[tuple[str, int], tuple[Entry, dict[str, Any] | None]]] = {}
        self._index(claimed.entries)
        #: Nothing new has been met yet.
        self.replaying = claimed.next_seq > 1
        self.log = ReplayLog(self, program.log)
        #: Open calls that wait for something outside, by ``seq``; of these the queue waits; and running steps.
        self.calls: dict[int, Any] = {}
        self.waits: dict[int, QueueCall] = {}
        self.running: set[int] = set()
        self.checkpoints: list[tuple[int, str]] = []
        #: Results that are there and not delivered: recorded ones by ``done_seq``, new ones in order of arrival.
        self._replay: list[tuple[int, Call]] = []
        self.live: deque[Call] = deque()
        self._ready: deque[tuple[Task, Call | None, bool, Any]] = deque()
        self._tasks: dict[Task, None] = {}
        self._due: list[tuple[int, int]] = []
        #: Messages seen and not taken; and what the last look covered.
        self.mailbox: list[MessageRow] = []
        self._gone: set[int] = set()
        self._fresh = self._more = False
        self._look_names: tuple[str, ...] | None = ()
        self._look_at = -1
        self.turn = Turn()
        self.stopped = False
        self.over = False
        self.refusals = 0
        self._reported: RivetError | None = None
        self.rollback: Rollback | None = Rollback(self, **position["rb"]) if "rb" in position else None
        self._restore: str | None = None
        self.root: Scope | None = None

    def _index(self, entries: Iterable[Entry]) -> None:
        for entry in entries:
            self.recorded.setdefault(entry.scope, {})[entry.location_key] = (entry, None)
        for rec in self.open.values():
            entry = Entry(rec["s"], rec["p"], rec["n"], Kind(rec["k"]), rec.get("o", 1), started_at=rec["t"])
            self.recorded.setdefault(entry.scope, {})[entry.location_key] = (entry, rec)

    # -- happenings ----------------------------------------------------------------------------------

    def start(self, now: int) -> Turn:
        """Run from the top: for the first time, or through the history to where work goes on."""
        self._begin(now)
        if self.rollback is not None:
            self.rollback.resume()
            return self._end()
        task = Task(self.program.run, (), self.claimed.created_at, self._root_done)
        self.root = task.scope = Scope(self, "", None, task, "")
        task.arguments = (Context(self.root),)
        self._tasks[task] = None
        self._ready.append((task, None, True, None))
        return self._drive(starting=True)

    def step_done(self, seq: int, attempt: int, result: StepResult, now: int) -> Turn:
        """An attempt ended. One that is not current any more changes nothing."""
        self._begin(now)
        if self.rollback is not None:
            self.rollback.handler_done(seq, attempt, result)
            return self._end()
        call, rec = self.calls.get(seq), self.open.get(seq)
        if isinstance(call, StepCall) and rec is not None and rec["a"] == attempt and seq in self.running:
            call.ended(result)
            return self._drive()
        self.turn.notes.append(f"late result of entry {seq}, attempt {attempt}, dropped")
        return self._end()

    def messages(
        self, found: Sequence[MessageRow], names: tuple[str, ...] | None, complete: bool, at: int, now: int
    ) -> Turn:
        """The answer to a look: what was visible at ``at`` in the queues ``names`` (None: any)."""
        self._begin(now)
        self.mailbox = [message for message in found if message.id not in self._gone]
        self._fresh, self._more, self._look_names, self._look_at = True, not complete, names, at
        return self._drive()

    def bell(self, now: int) -> Turn:
        """There may be new messages."""
        self._begin(now)
        self._fresh = False
        return self._end()

    def time(self, now: int) -> Turn:
        """Time has passed; what is due by ``now`` happens."""
        self._begin(now)
        while self._due and self._due[0][0] <= now:
            due, seq = heapq.heappop(self._due)
            if self._is_current(due, seq):
                if self.rollback is not None:
                    self.rollback.due()
                else:
                    self.calls[seq].due()
        return self._end() if self.rollback is not None else self._drive()

    def rollback_rows(self, entries: Sequence[Entry], now: int) -> Turn:
        """The answer to ``rollback_scan``: completed entries with a handler, last completed first."""
        self._begin(now)
        if self.rollback is not None:
            self.rollback.begin(entries)
        return self._end()

    def committed(self, message_ids: Iterable[int]) -> None:
        """These messages are gone from the queue for good; a later look cannot show them again."""
        self._gone.difference_update(message_ids)

    def dispose(self) -> None:
        """Drop the coroutines. Nothing they still do is recorded."""
        self.stopped = True
        for task in list(self._tasks):
            self._close(task)

    # -- position ------------------------------------------------------------------------------------

    def inflight(self) -> str:
        """The position as text, for the next commit."""
        if self._restore is not None:
            return self._restore
        extra: dict[str, Any] = {}
        if self.held:
            extra["held"] = [[message, seq, scope] for message, (seq, scope) in self.held.items()]
        if self.rollback is not None:
            extra["rb"] = self.rollback.to_record()
        return dump_open(list(self.open.values()), **extra)

    def keep_stored(self, inflight: str | None = None) -> None:
        """Whatever has happened here, the position to store is the one that was loaded."""
        self._restore = self.claimed.inflight if inflight is None else inflight
        self.next_seq = self.claimed.next_seq

    @property
    def at_rest(self) -> bool:
        """No step of it is running: it waits for messages or time only."""
        return not self.running

    @property
    def next_due(self) -> int | None:
        """When :meth:`time` must be called by itself."""
        while self._due and not self._is_current(*self._due[0]):
            heapq.heappop(self._due)
        return self._due[0][0] if self._due else None

    def wants_look(self) -> tuple[tuple[str, ...] | None, int] | None:
        """The queues (None: any) to look into, and how many messages at most; None where no look is needed."""
        names: dict[str, None] | None = {}
        limit, wanted = 20, False
        for call in self.waits.values():
            if self._covered(call) and not (
                call.deadline is not None and self._look_at < call.deadline <= self.now
            ):
                continue
            wanted = True
            limit = max(limit, call.count)
            if call.names is None:
                names = None
            elif names is not None:
                names |= dict.fromkeys(call.names)
        return (None if names is None else tuple(names), limit) if wanted else None

    def _covered(self, call: QueueCall) -> bool:
        """A look since the last bell has shown all there is for this wait."""
        if not self._fresh:
            return False
        if self._look_names is None:
            return True
        return call.names is not None and set(call.names) <= set(self._look_names)

    def at(self, due: int, seq: int) -> None:
        """Call ``due()`` of the entry ``seq`` at that time."""
        heapq.heappush(self._due, (due, seq))

    def _is_current(self, due: int, seq: int) -> bool:
        if self.rollback is not None:
            return self.rollback.retry_at == due
        call = self.calls.get(seq)
        if isinstance(call, StepCall):
            return call.rec is not None and call.rec.get("b") == due
        return call is not None and call.deadline == due

    # -- driving -------------------------------------------------------------------------------------

    def _begin(self, now: int) -> None:
        # The estimate of the database's time may step back a little after a reconnect; a workflow's time never does.
        self.now = max(self.now, now)
        self.turn = Turn()

    def _drive(self, *, starting: bool = False) -> Turn:
        while not self.stopped:
            if self._ready:
                task, call, ok, value = self._ready.popleft()
                if not task.stopped and task.waiting is call:
                    self._advance(task, call, ok, value)
                continue
            found = self._next_result()
            if found is None:
                break
            call, (ok, value) = found
            call.scope.task.now = call.entry.done_at or call.scope.task.now
            self.resume_parent(call, ok, value)
        if starting:
            self.replaying = False
        if self._reported is not None:
            self._refused(self._reported, starting)
        return self._end()

    def _end(self) -> Turn:
        turn = self.turn
        if self.over:
            turn.starts.clear()
            self.dispose()
        return turn

    def _next_result(self) -> tuple[Call, tuple[bool, Any]] | None:
        if self._replay:
            call = heapq.heappop(self._replay)[1]
            return call, call.replay()
        while self.live:
            call = self.live.popleft()
            if not call.scope.task.stopped and call.entry.done_seq is None:
                return call, call.finish()
        for seq in sorted(self.waits):
            wait = self.waits[seq]
            ready = wait.take(self.mailbox, self._look_at if self._covered(wait) and not self._more else -1)
            if ready and (self._covered(wait) or len(wait.taken) == wait.count):
                return wait, wait.finish()
        return None

    def _advance(self, task: Task, call: Call | None, ok: bool, value: Any) -> None:
        if call is not None:
            call.scope.busy = None
        task.waiting = None
        try:
            if task.coro is None:
                task.coro = _coroutine(task.function, task.arguments)
                yielded = task.coro.send(None)
            else:
                yielded = task.coro.send(value) if ok else task.coro.throw(value)
        except StopIteration as stop:
            self._task_done(task, True, stop.value)
        except Stopped:
            task.stopped = True
        except BaseException as exc:
            self._task_done(task, False, exc)
        else:
            self._blocked(task, yielded)

    def _task_done(self, task: Task, ok: bool, value: Any) -> None:
        self._tasks.pop(task, None)
        if self.stopped or task.stopped:
            return
        task.stopped = True
        with suppress(Stopped):
            task.done(ok, value)

    def _blocked(self, task: Task, yielded: Any) -> None:
        if self.stopped or isinstance(yielded, Dead):
            return
        if isinstance(yielded, Call) and yielded.scope.busy is yielded and yielded.scope.task is task:
            task.waiting = yielded
            return
        shown = yielded.what if isinstance(yielded, Call) else f"{type(yielded).__name__} object"
        try:
            self.report(
                NotReplaySafe(
                    f"run awaited {shown}, which is not a call on the context of its own branch. Only ctx calls may be "
                    "awaited in run (ctx.sleep for asyncio.sleep); await everything else inside a step"
                )
            )
        except Stopped:
            task.stopped = True

    def _close(self, task: Task) -> None:
        """Unwind a coroutine. Code that keeps catching :class:`Stopped` is dropped after a number of tries."""
        task.stopped = True
        self._tasks.pop(task, None)
        for _ in range(MAX_REFUSALS):
            if task.coro is None:
                return
            try:
                task.coro.throw(Stopped())
            except (StopIteration, Stopped):
                return
            except BaseException as exc:
                self.turn.notes.append(f"{type(exc).__name__} while the workflow was unwound: {exc}")
                return
        where = getattr(getattr(task.coro, "cr_frame", None), "f_lineno", "?")
        self.turn.notes.append(
            f"the workflow catches BaseException around line {where} and was dropped: do not"
        )

    # -- what calls ask of the machine -----------------------------------------------------------------

    def take_seq(self) -> int:
        self.next_seq += 1
        return self.next_seq - 1

    def open_entry(self, entry: Entry) -> dict[str, Any]:
        """The open record of a new entry, part of the position from now on."""
        rec: dict[str, Any] = {"s": entry.seq, "p": entry.scope, "n": entry.name, "k": int(entry.kind)}
        if entry.occurrence > 1:
            rec["o"] = entry.occurrence
        rec["t"] = entry.started_at
        self.open[entry.seq] = rec
        self.turn.dirty = True
        return rec

    def adopt(self, entry: Entry, rec: dict[str, Any]) -> None:
        """An open entry was met again."""
        self.open[entry.seq] = rec

    def replay_later(self, call: Call) -> None:
        """Deliver the recorded result of ``call`` when it is its turn."""
        heapq.heappush(self._replay, (call.entry.done_seq or 0, call))

    def resume_parent(self, call: Call, ok: bool, value: Any) -> None:
        """Give the result of ``call`` to the coroutine that awaits it."""
        self._ready.append((call.scope.task, call, ok, value))

    def close(self, call: Call, status: EntryStatus) -> None:
        """The entry is finished: out of the position, into the history."""
        seq = call.entry.seq
        self.open.pop(seq, None)
        self.calls.pop(seq, None)
        self.waits.pop(seq, None)
        self.record(call.entry, status)
        call.scope.task.now = self.now

    def record(self, entry: Entry, status: EntryStatus) -> None:
        """Write a finished entry into the history."""
        entry.status, entry.done_at, entry.done_seq = status, self.now, self.take_seq()
        self.turn.rows.append(entry)
        self.turn.dirty = True
        self.turn.must_commit |= entry.kind is not Kind.STEP and entry.kind is not Kind.LOOP

    def context(self, scope: Scope) -> Context:
        return Context(scope)

    def branch(self, parent: Scope, entry: Entry, index: int, label: str, *, sealed: bool) -> Scope:
        """The scope of a branch; :meth:`spawn` gives it its coroutine."""
        return parent.child(entry, index, parent.task, label, sealed=sealed)

    def spawn(
        self, scope: Scope, function: Callable[..., Any], arguments: tuple[Any, ...], done: Finished
    ) -> None:
        """Start ``function(*arguments)`` in ``scope`` once the running coroutine waits."""
        task = Task(function, arguments, scope.task.now, done)
        task.scope, scope.task = scope, task
        self._tasks[task] = None
        self._ready.append((task, None, True, None))

    def kill(self, scope: Scope) -> None:
        """Stop everything in a branch and forget what it recorded (R-RACE-06)."""
        path = scope.path
        scope.task.stopped = True
        for task in list(self._tasks):
            if task.scope is not None and task.scope.path.startswith(path):
                self._close(task)
        for seq, rec in list(self.open.items()):
            if rec["p"].startswith(path):
                self.abandon(seq)
        for message, (_, holder) in list(self.held.items()):
            if holder.startswith(path):
                del self.held[message]
                self.turn.unholds.append(message)
                self._fresh = False
        self.checkpoints = [c for c in self.checkpoints if not c[1].startswith(path)]
        if scope.rows:
            self.drop_rows(Prune(path, _after(path)))

    def abandon(self, seq: int) -> None:
        """An open entry is given up; its running function is told."""
        self.open.pop(seq, None)
        self.calls.pop(seq, None)
        self.waits.pop(seq, None)
        if seq in self.running:
            self.running.discard(seq)
            self.turn.cancels.append(seq)
        self.turn.dirty = True

    def drop_rows(self, prune: Prune) -> None:
        """Delete finished entries by scope, those of this turn included."""
        self.turn.prunes.append(prune)
        self.turn.rows = [row for row in self.turn.rows if not covers(prune, row)]

    def settle(self, scope: Scope) -> None:
        """A scope ended well: its checkpoints end with it (D-14)."""
        if self.checkpoints:
            self.checkpoints = [c for c in self.checkpoints if c[1] != scope.path]

    def take_messages(self, taken: Iterable[MessageRow], entry: Entry, *, completable: bool) -> None:
        ids = set()
        for message in taken:
            ids.add(message.id)
            if completable:
                self.held[message.id] = (entry.seq, entry.scope)
                self.turn.holds.append((message.id, entry.seq))
                continue
            self.turn.takes.append(message.id)
            if message.wants_reply:
                self.turn.unanswered.append(message.id)
        if ids:
            self._gone |= ids
            self.mailbox = [message for message in self.mailbox if message.id not in ids]
            self._fresh = self._fresh and not self._more

    def complete_message(self, message: Message[Any], response: Any) -> Done:
        """``message.complete(response)`` in run: immediate, and idempotent."""
        if self.stopped:
            raise Stopped
        if not message._completable:
            raise RivetError(
                f"message {message.id} of queue {message.name!r} was not received with completable=True "
                "and cannot be completed"
            )
        text = self.codec.dumps(response, what=f"response to message {message.id}")
        if self.held.pop(message.id, None) is not None:
            self.turn.completes.append((message.id, text))
            self.turn.dirty = self.turn.must_commit = True
        return Done(None, None, f"complete of message {message.id}")

    def completed_in_step(self, message_ids: Iterable[int]) -> None:
        """A step completed these messages; they hold nothing up any more."""
        for message in message_ids:
            self.held.pop(message, None)

    def send(self, entry: Entry, body: str) -> None:
        entry.input = body[: self.limits.input_shown]
        self.turn.sends.append(SelfSend(entry.name, body))
        self._fresh = False
        self.record(entry, EntryStatus.COMPLETED)

    def input(self) -> Any:
        return None if self.claimed.input is None else self.codec.loads(self.claimed.input)

    def is_removed(self, entry: Entry) -> bool:
        """The code declares this old entry removed: on the class, or anywhere ahead in it (D-03)."""
        kind = entry.kind.label
        for name in (entry.name, f"{entry.name}#{entry.occurrence}"):
            if self.program.removed.get(name) == kind:
                return True
            declared = source.removed_names(self.program.run, self.program.owner)
            if (name, kind) in declared or (name, None) in declared:
                return True
        return False

    # -- ends ------------------------------------------------------------------------------------------

    def report(self, error: RivetError) -> NoReturn:
        """Refuse what the code does. Never raised into ``run`` as itself (D-09): the run is closed, then told."""
        if self._reported is None:
            self._reported = error
        self.stopped = True
        raise Stopped

    def poisoned(self, what: str, entry: Entry, rec: dict[str, Any]) -> None:
        """A step was started too often without ever reporting back."""
        self._set_aside(
            Blocked.POISONED,
            RivetError(
                f"{what} (entry {entry.seq}) was started {rec['z'] - 1} times and its worker never reported back: it "
                "seems to take its process down. recover() tries again"
            ),
        )
        raise Stopped

    def _set_aside(self, reason: Blocked, error: RivetError) -> None:
        info = ErrorInfo.from_exception(error, with_traceback=False)
        self.turn.set_aside = SetAside(reason, info)
        self.turn.failures.append(Failure("workflow", info))
        self.stopped = self.over = True
        self.turn.must_commit = True
        self.turn.cancels += sorted(self.running)

    def _refused(self, error: RivetError, starting: bool) -> None:
        if isinstance(error, HistoryDiverged):
            if starting and not self.turn.rows:
                # Nothing has happened: the position stays to the letter what it was.
                self.keep_stored()
                self.turn = Turn(notes=self.turn.notes)
            self._set_aside(Blocked.DIVERGED, error)
        elif self.turn.set_aside is None:
            self._fail(error)

    def _root_done(self, ok: bool, value: Any) -> None:
        assert self.root is not None
        if not ok:
            self._fail(value)
            return
        self.root.end(well=True)
        try:
            text = self.codec.dumps(value, what="the result of run")
            if len(text) > self.limits.max_value:
                raise SerializationError(
                    f"the result of run is {len(text)} bytes, more than {self.limits.max_value}"
                )
        except SerializationError as exc:
            self._fail(exc)
            return
        for seq in list(self.open):
            self.abandon(seq)
        self.turn.takes += self.held
        self.turn.unanswered += self.held
        self.held.clear()
        self._over(Outcome(Lifecycle.COMPLETED, self.now, output=text))

    def _fail(self, exc: BaseException) -> None:
        if self.root is not None:
            self.stopped = True
            self.root.end(well=False)
        record = failure_record(exc)
        if not (isinstance(exc, StepFailed) and exc.step_name is not None):
            self.turn.failures.append(Failure("workflow", ErrorInfo.from_exception(exc)))
        self.turn.starts.clear()
        if self.checkpoints and not isinstance(exc, RollbackCheckpointError):
            self.rollback = Rollback(self, json.dumps(record), list(self.checkpoints))
            self.rollback.scan()
            self.dispose()
            return
        self.failed(json.dumps(record))

    def failed(self, error: str) -> None:
        """The run is over with this error record (after its rollback, if there was one)."""
        self._over(Outcome(Lifecycle.FAILED, self.now, error=error))

    def _over(self, outcome: Outcome) -> None:
        self.turn.outcome = outcome
        self.turn.cancels += sorted(self.running)
        self.running.clear()
        self.turn.dirty = self.turn.must_commit = True
        self.stopped = self.over = True


def _after(path: str) -> str:
    """The first scope after everything under ``path``."""
    return path[:-1] + chr(ord(path[-1]) + 1)


def covers(prune: Prune, row: Entry) -> bool:
    """Whether a prune deletes this row."""
    if not prune.first <= row.scope < prune.end:
        return False
    return not (prune.keep_handlers and row.rollback is not None and row.rolled_back_at is None)


def _coroutine(function: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
    coro = function(*arguments)
    if isinstance(coro, Call | Done):
        return _awaited(coro)  # a lambda: ``lambda b: b.step("fetch", fetch)``
    if not (hasattr(coro, "send") and hasattr(coro, "throw")) or not hasattr(coro, "cr_code"):
        name = getattr(function, "__qualname__", repr(function))
        raise TypeError(f"{name} must be an async function (async def), it returned {type(coro).__name__}")
    return coro


async def _awaited(call: Call | Done) -> Any:
    return await call
