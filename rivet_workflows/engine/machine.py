"""One actor's workflow as a state machine: happenings in, a :class:`Turn` of orders out. Pure.

The machine calls the workflow function from its top and advances its coroutines itself (``tasks.py``). It holds the
position, which every commit writes as text: the open entries, the messages held, a rollback under way.

The idea of a deterministic core that is fed events and answers with commands is h11's (sans-IO) and Temporal's
(workflow activations); the ``done_seq`` order is our own.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any, NoReturn

from ..exceptions import RivetError, SerializationError
from ..records import Claimed, Entry, EntryStatus, Kind, MessageRow, Prune, dump_open, load_open
from .calls import Call, Done
from .child import ChildCall
from .context import Context, LoopContext
from .ending import Ending
from .history import Index, index_entries, inside, whole_scope
from .mailbox import Mailbox
from .program import Codec, Limits, Program
from .replaylog import ReplayLog
from .results import Message
from .rollback import Rollback
from .scope import Scope, Stopped
from .source import line_of_call, placed
from .steps import StepCall
from .tasks import Finished, Task, Tasks
from .timers import Timers
from .turn import SelfSend, StepResult, Turn


class Machine:
    """Holds one actor's coroutines and position. Every happening is a method that returns a :class:`Turn`.

    Workers keep thousands of these that wait: it has slots, and no container costs much while it is empty.
    """

    __slots__ = (
        "_input",
        "_recorded",
        "_restore",
        "_stored",
        "actor_id",
        "calls",
        "checkpoints",
        "codec",
        "created_at",
        "ending",
        "held",
        "key",
        "limits",
        "log",
        "mailbox",
        "next_seq",
        "now",
        "open",
        "over",
        "program",
        "program_name",
        "recorded",
        "replaying",
        "rollback",
        "root",
        "running",
        "stopped",
        "tasks",
        "timers",
        "turn",
    )

    def __init__(self, program: Program, claimed: Claimed, codec: Codec, limits: Limits) -> None:
        self.program = program
        self.codec = codec
        self.limits = limits
        self.actor_id = claimed.actor_id
        self.program_name = claimed.name
        parts = json.loads(claimed.key)
        self.key: Any = parts[0] if len(parts) == 1 else tuple(parts)
        self.created_at = claimed.created_at
        self._input = claimed.input
        #: What is stored, for a turn that must not change it.
        self._stored = (claimed.inflight, claimed.next_seq)
        self._restore: str | None = None
        self.now = 0
        self.next_seq = claimed.next_seq
        position = load_open(claimed.inflight)
        #: Open entries by ``seq``, as they stand in the ``inflight`` text.
        self.open: dict[int, dict[str, Any]] = {rec["s"]: rec for rec in position["e"]}
        #: What the history holds and the code has not met yet; a scope takes its part when it opens.
        self.recorded: Index = index_entries(claimed.entries, self.open.values())
        self.mailbox = Mailbox({m: (seq, scope) for m, seq, scope in position.get("held", ())})
        self.held = self.mailbox.held
        self.timers = Timers()
        self.tasks = Tasks(self)
        #: Open calls that wait for something outside, by ``seq``, and the steps among them that run.
        self.calls: dict[int, Any] = {}
        self.running: dict[int, None] = {}
        #: Open checkpoints, ``(seq, scope)`` (D-14).
        self.checkpoints: list[tuple[int, str]] = []
        #: Nothing new has been met yet.
        self.replaying = claimed.next_seq > 1
        self.log = ReplayLog(self, program.log)
        #: The orders of the happening under way; and how many entries it has recorded, pruned ones included.
        self.turn: Turn
        self._recorded: int
        self.root: Scope | None = None
        self.ending = Ending(self)
        self.rollback: Rollback | None = Rollback(self, **position["rb"]) if "rb" in position else None
        #: No call orders anything any more; and: no happening does either.
        self.stopped = self.rollback is not None
        self.over = False

    # -- happenings ----------------------------------------------------------------------------------

    def start(self, now: int) -> Turn:
        """Run from the top: for the first time, or through the history to where work goes on."""
        self._begin(now)
        if self.rollback is not None:
            self.rollback.resume()
            return self._end()
        task = Task(self.program.run, (), self.created_at, self.ending.root_done)
        self.root = Scope(self, "", None, task, "")
        self.tasks.spawn(self.root, self.program.run, (Context(self.root),), self.created_at, task.done)
        return self._drive(starting=True)

    def step_done(self, seq: int, attempt: int, result: StepResult, now: int) -> Turn:
        """An attempt ended. One that is not current any more changes nothing."""
        self._begin(now)
        if self.rollback is not None:
            self.rollback.handler_done(seq, attempt, result)
            return self._end()
        call = self.calls.get(seq)
        if isinstance(call, StepCall) and self.runs(seq, attempt):
            call.ended(result)
            return self._drive()
        self.turn.notes.append(f"late result of entry {seq}, attempt {attempt}, dropped")
        return self._end()

    def runs(self, seq: int, attempt: int) -> bool:
        """Is this the attempt whose end a step waits for?"""
        rec = self.open.get(seq)
        return rec is not None and rec.get("a") == attempt and seq in self.running

    def child_done(self, seq: int, ok: bool, output: str | None, error: str | None, now: int) -> Turn:
        """The child actor of the entry ``seq`` is over, with this encoded output or this failure record."""
        self._begin(now)
        call = self.calls.get(seq)
        if isinstance(call, ChildCall) and call not in self.tasks.live:
            call.ended(ok, output, error)
            return self._drive()
        self.turn.notes.append(f"the end of the child of entry {seq} came late and was dropped")
        return self._end()

    def messages(
        self, found: Sequence[MessageRow], names: tuple[str, ...] | None, complete: bool, at: int, now: int
    ) -> Turn:
        """The answer to a look: what was visible at ``at`` in the queues ``names`` (None: any)."""
        self._begin(now)
        if self.stopped:
            return self._end()
        self.mailbox.show(found, names, complete, at)
        for due, seq in self.mailbox.early(at):
            self.timers.at(due, seq)
        return self._drive()

    def bell(self, now: int) -> Turn:
        """There may be new messages."""
        self._begin(now)
        self.mailbox.ring()
        return self._end()

    def time(self, now: int) -> Turn:
        """Time has passed; what is due by ``now`` happens."""
        self._begin(now)
        for seq in self.timers.pop_due(self.now):
            if self.rollback is not None:
                self.rollback.due()
            else:
                self.calls[seq].due()
        return self._end() if self.rollback is not None else self._drive()

    def rollback_rows(self, entries: Sequence[Entry], now: int) -> Turn:
        """The answer to ``rollback_scan``, asked once its turn is committed: completed entries with a handler, last
        completed first."""
        self._begin(now)
        if self.rollback is not None:
            self.rollback.begin(entries)
        return self._end()

    def committed(self, message_ids: Iterable[int]) -> None:
        """A commit is acknowledged: these messages were taken or hidden by it."""
        self.mailbox.committed(message_ids)

    def dispose(self) -> None:
        """Drop the coroutines. Nothing they still do is recorded."""
        self.stopped = True
        self.tasks.dispose()

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
        self._restore = self._stored[0] if inflight is None else inflight
        self.next_seq = self._stored[1]

    def place(self, seq: int) -> str:
        """Where an open entry is, in a form that holds without its number."""
        rec = self.open[seq]
        return f"{rec['p']}/{rec['n']}#{rec.get('o', 1)}"

    @property
    def at_rest(self) -> bool:
        """Nothing of it runs or can run: it waits for messages or time only."""
        return not self.running and not self.tasks.paused

    @property
    def next_due(self) -> int | None:
        """When :meth:`time` must be called by itself."""
        return self.now + 1 if self.tasks.paused else self.timers.next()

    def wants_look(self) -> tuple[tuple[str, ...] | None, int] | None:
        """The queues (None: any) to look into, and how many messages at most; None where no look is needed.

        Call it when the look is about to be ordered: a bell after that makes its answer stale.
        """
        return None if self.stopped else self.mailbox.wants()

    # -- driving -------------------------------------------------------------------------------------

    def _begin(self, now: int) -> None:
        # The estimate of the database's time may step back a little after a reconnect; a workflow's time never does.
        if now > self.now:
            self.now = now
        self.turn = Turn()
        self._recorded = 0

    def _drive(self, *, starting: bool = False) -> Turn:
        self.tasks.drive()
        if starting:
            self.replaying = False
        self.ending.conclude(starting)
        return self._end()

    def _end(self) -> Turn:
        if self.over:
            self.dispose()
        return self.turn

    def turn_is_long(self) -> bool:
        """This turn has recorded much without waiting for anything: commit it before it goes on."""
        return self._recorded >= self.limits.max_turn_rows

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
        return rec

    def close(self, call: Call, status: EntryStatus) -> None:
        """The entry is finished: out of the position, into the history."""
        self._forget(call.entry.seq)
        self.record(call.entry, status)
        call.scope.task.now = self.now

    def record(self, entry: Entry, status: EntryStatus) -> None:
        """Write a finished entry into the history."""
        entry.status, entry.done_at, entry.done_seq = status, self.now, self.take_seq()
        self.turn.rows.append(entry)
        self._recorded += 1
        self.turn.dirty = True
        # These go out with what follows them; a step that is not ephemeral says so itself.
        self.turn.must_commit |= entry.kind not in (Kind.STEP, Kind.LOOP)

    def _forget(self, seq: int) -> None:
        self.open.pop(seq, None)
        if self.calls.pop(seq, None) is not None:
            self.timers.cancel(seq)
            self.mailbox.forget(seq)

    def context(self, scope: Scope) -> Context:
        return Context(scope)

    def loop_context(self, scope: Scope, iteration: int, state: Any) -> LoopContext:
        return LoopContext(scope, iteration, state)

    def branch(self, parent: Scope, entry: Entry, index: int, label: str, *, sealed: bool) -> Scope:
        """The scope of a branch; :meth:`spawn` gives it its coroutine."""
        return parent.child(entry, index, parent.task, label, sealed=sealed)

    def spawn(
        self, scope: Scope, function: Callable[..., Any], arguments: tuple[Any, ...], done: Finished
    ) -> None:
        """Start ``function(*arguments)`` in ``scope`` once the running coroutine waits."""
        self.tasks.spawn(scope, function, arguments, scope.task.now, done)

    def kill(self, scope: Scope) -> None:
        """Stop everything in a branch and forget what it recorded (R-RACE-06)."""
        self.tasks.kill(scope.path)
        self.abandon_within(scope.path)
        self.checkpoints = [c for c in self.checkpoints if not c[1].startswith(scope.path)]
        if scope.rows:
            self.drop_rows(whole_scope(scope.path))

    def cancel(self, call: Call | Done) -> None:
        """An error ended the scope of a call that was not awaited: nobody will ask for its result."""
        if isinstance(call, Call) and call.entry.done_seq is None:
            self.abandon(call.entry)
            self.record(call.entry, EntryStatus.CANCELLED)

    def abandon(self, entry: Entry) -> None:
        """An entry is given up, open or finished, with all that is open within it."""
        self._abandon(entry.seq)
        self.abandon_within(inside(entry))

    def abandon_within(self, path: str) -> None:
        """Give up the open entries of the scopes that begin with ``path``; their messages become visible again."""
        for seq in [seq for seq, rec in self.open.items() if rec["p"].startswith(path)]:
            self._abandon(seq)
        for message in [m for m, (_, scope) in self.held.items() if scope.startswith(path)]:
            self._give_back(message)

    def _abandon(self, seq: int) -> None:
        self._forget(seq)
        if seq in self.running:
            del self.running[seq]
            self.turn.cancels.append(seq)
        for message in [m for m, (holder, _) in self.held.items() if holder == seq]:
            self._give_back(message)

    def _give_back(self, message: int) -> None:
        self.mailbox.give_back(message)
        self.turn.unholds.append(message)
        self.turn.dirty = self.turn.must_commit = True

    def drop_rows(self, prune: Prune) -> None:
        """Delete finished entries by scope, those of this turn included."""
        self.turn.prunes.append(prune)
        self.turn.rows = [row for row in self.turn.rows if not prune.covers(row)]

    def settle(self, scope: Scope) -> None:
        """A scope ended well: the checkpoints in it end with it (D-14)."""
        if self.checkpoints:
            self.checkpoints = [c for c in self.checkpoints if not c[1].startswith(scope.path)]

    def take_messages(self, taken: Sequence[MessageRow], entry: Entry, *, completable: bool) -> None:
        """Messages leave the queue, or are hidden in it until completed, with the entry that records them."""
        for message in taken:
            if completable:
                self.held[message.id] = (entry.seq, entry.scope)
                self.turn.holds.append((message.id, entry.seq))
                continue
            self.turn.takes.append(message.id)
            if message.wants_reply:
                self.turn.unanswered.append(message.id)
        self.mailbox.take(taken)

    def complete_message(self, message: Message[Any], response: Any) -> Awaitable[None]:
        """``message.complete(response)`` in run: immediate, and idempotent."""
        assert self.root is not None
        dead = self.root.gate()
        if dead is not None:
            return dead
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
        self.mailbox.ring()
        self.record(entry, EntryStatus.COMPLETED)

    def input(self) -> Any:
        return None if self._input is None else self.decode(self._input, "the actor's input")

    def decode(self, text: str, what: str, call: Call | None = None) -> Any:
        """A stored value; where it cannot be read the actor is set aside, and nothing is lost."""
        try:
            return self.codec.loads(text)
        except SerializationError as exc:
            self.ending.unreadable(what if call is None else f"{what} {call.what}", exc)
            raise Stopped from None

    def report(self, error: RivetError, line: str | None = None) -> NoReturn:
        """Refuse what the code does at ``line``, or in the call that is being made. Never raised into ``run`` as itself
        (D-09): the run is closed, then told."""
        error.message = placed(error.message, line or line_of_call())
        self.ending.refuse(error)
        raise Stopped
