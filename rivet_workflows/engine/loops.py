"""Loops: ``async for it in ctx.loop(…)`` and the callable form. Pure.

A loop's position (iteration number, its starting state, how far it is pruned) lives in its open record, which every
commit writes anyway, so a turn of the loop costs no statement. A native loop has no "completed" record (D-06): a
replay enters its *last* iteration again, so ``break``, ``return``, exceptions and locals come out as they did.
"""

from __future__ import annotations

import inspect
import json
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ..exceptions import HistoryDiverged, NotReplaySafe, RivetError
from ..records import EntryStatus, Kind, Prune, child_scope
from .calls import Call, Done, Result
from .history import noted
from .options import whole
from .results import Loop

if TYPE_CHECKING:
    from .context import LoopContext
    from .scope import Scope

UNSET: Any = object()


class LoopCall(Call):
    """What both forms share: position, turn, prune."""

    __slots__ = ("current", "idle", "interval", "size", "start")
    kind = Kind.LOOP

    def __init__(self, scope: Scope, name: str, state: Any, interval: int | None, size: int | None) -> None:
        self.interval = 20 if interval is None else whole(interval, "history_prune_interval")
        self.size = self.interval if size is None else whole(size, "history_size")
        # Before anything is recorded: a state that cannot be stored fails at the call and leaves no trace.
        self.start = scope.machine.codec.dumps(
            None if state is UNSET else state, what=f"state of loop {name!r}"
        )
        self.current: Scope | None = None
        self.idle = 0
        super().__init__(scope, name)

    def fresh(self) -> None:
        assert self.rec is not None
        self.rec |= {"i": 0, "v": self.start, "f": 0, "m": self.scope.task.now}

    def recorded(self) -> None:
        position = noted(self.entry.input)
        self.rec = {"i": position["iteration"], "v": position["state"], "m": position["at"]}

    @property
    def finished(self) -> bool:
        """It is over in the history: its last iteration may be entered again, nothing more."""
        return self.entry.done_seq is not None

    def enter(self) -> LoopContext:
        """The context of the current iteration."""
        rec, task = self.rec, self.scope.task
        assert rec is not None
        task.now = max(task.now, rec["m"])
        label = f"{self.numbered}/~{rec['i']}"
        self.current = self.scope.child(self.entry, rec["i"], task, label, sealed=self.finished)
        machine, text = self.scope.machine, rec["v"]
        state = None if text == "null" else machine.decode(text, "the state of", self)
        return machine.loop_context(self.current, rec["i"], state)

    def turn(self, state: Any) -> None:
        """The current iteration is over; the next starts with ``state``."""
        machine, rec = self.scope.machine, self.rec
        assert rec is not None
        assert self.current is not None
        text = "null" if state is None else machine.codec.dumps(state, what=f"state of {self.what}")
        self.current.end(well=True)
        self._check_idle(self.current)
        if self.finished:
            machine.report(
                HistoryDiverged(
                    f"{self.what} ended in iteration {rec['i']} (entry {self.entry.seq}) and the code goes on: "
                    "gate the changed condition with ctx.get_version, or restore it"
                )
            )
        rec |= {"i": rec["i"] + 1, "v": text, "m": self.current.task.now}
        if rec["i"] % self.interval == 0:
            self.prune(rec["i"])

    def _check_idle(self, scope: Scope) -> None:
        self.idle = 0 if scope.counts else self.idle + 1
        if self.idle > self.scope.machine.limits.max_idle_iterations:
            self.scope.machine.report(
                NotReplaySafe(
                    f"{self.what} turned {self.idle} times without a single recorded call: it would hold its worker "
                    "for ever. Use a plain Python loop for pure computation, or put the work into a step"
                )
            )

    def prune(self, done: int) -> None:
        """Drop the entries of all but the last ``size`` of ``done`` iterations (R-LOOP-11 to -14)."""
        rec, path, seq = self.rec, self.scope.path, self.entry.seq
        assert rec is not None
        end = done - self.size
        if end > rec["f"]:
            keep = self.scope.checkpoint
            self.scope.machine.drop_rows(
                Prune(child_scope(path, seq, rec["f"]), child_scope(path, seq, end), keep)
            )
            rec["f"] = end

    def over(self, *, well: bool) -> None:
        """The loop is left: its position goes into the history with it. Whatever ends closes its record, so that
        the position holds only what is open."""
        rec = self.rec
        assert rec is not None
        if self.finished:
            return
        self.entry.input = json.dumps({"iteration": rec["i"], "state": rec["v"], "at": rec["m"]})
        if well:
            self.prune(rec["i"] + 1)
        now = self.scope.task.now
        self.scope.machine.close(self, EntryStatus.COMPLETED if well else EntryStatus.FAILED)
        self.scope.task.now = now


class NativeLoop(LoopCall):
    """``async for it in ctx.loop("name"): …``"""

    __slots__ = ("_iterator",)

    def __init__(self, scope: Scope, name: str, state: Any, interval: int | None, size: int | None) -> None:
        self._iterator: weakref.ref[LoopIterator] | None = None
        super().__init__(scope, name, state, interval, size)

    def __await__(self) -> Any:
        raise TypeError(
            f'{self.what} has no body: write "async for it in ctx.loop({self.entry.name!r}):", or pass one'
        )

    def __aiter__(self) -> LoopIterator:
        if self._iterator is not None:
            raise TypeError(f"{self.what} was already iterated: call ctx.loop again")
        self.scope.busy = None
        self.scope.loop = self
        iterator = LoopIterator(self)
        self._iterator = weakref.ref(iterator)
        return iterator

    def alive(self) -> bool:
        """The body is running. ``async for`` holds the only reference to the iterator and CPython drops it at once
        on ``break``, ``return`` and exceptions, before the next line (checked on 3.11 to 3.13)."""
        return self._iterator is not None and self._iterator() is not None

    def end(self, *, well: bool = True) -> None:
        """The loop was left. ``well`` False: by an error that ends its scope too."""
        self.scope.loop = None
        if self.current is not None:
            self.current.end(well=well)
        self.over(well=well)


class LoopIterator:
    """What ``async for`` holds; nobody else may."""

    __slots__ = ("__weakref__", "_context", "_loop")

    def __init__(self, loop: NativeLoop) -> None:
        self._loop = loop
        self._context: LoopContext | None = None

    def __aiter__(self) -> LoopIterator:
        return self

    def __anext__(self) -> Any:
        loop = self._loop
        dead = loop.scope.gate()
        if dead is not None:
            return dead
        if self._context is not None:
            loop.turn(self._context.loop_state)
        self._context = loop.enter()
        return Done(None, self._context, "")


class CallableLoop(LoopCall):
    """``await ctx.loop("name", body, state=…)``"""

    __slots__ = ("body", "stateful")

    def __init__(
        self,
        scope: Scope,
        name: str,
        body: Callable[..., Any],
        state: Any,
        interval: int | None,
        size: int | None,
    ) -> None:
        self.body = body
        self.stateful = state is not UNSET
        super().__init__(scope, name, state, interval, size)

    def fresh(self) -> None:
        super().fresh()
        self._iterate()

    def resume(self) -> None:
        self._iterate()

    def recorded(self) -> None:
        super().recorded()
        if self.entry.status is EntryStatus.FAILED:
            # Its last iteration is entered again, and fails again.
            self._iterate()
        else:
            self.scope.machine.tasks.replay_later(self)

    def replay(self) -> Result:
        assert self.entry.output is not None
        return True, self.scope.machine.decode(self.entry.output, "the result of", self)

    def _iterate(self) -> None:
        it = self.enter()
        assert self.current is not None
        arguments = (it, it.loop_state) if self.stateful or _takes_two(self.body) else (it,)
        self.scope.machine.spawn(
            self.current, self.body, arguments, lambda ok, value: self._body_done(it, ok, value)
        )

    def _body_done(self, it: LoopContext, ok: bool, value: Any) -> None:
        if ok:
            try:
                self._next(it, value)
            except RivetError as exc:
                ok, value = False, exc
        if not ok:
            assert self.current is not None
            self.current.end(well=False)
            self.scope.task.now = max(self.scope.task.now, self.current.task.now)
            self.over(well=False)
            self.scope.machine.tasks.resume(self, False, value)

    def _next(self, it: LoopContext, value: Any) -> None:
        if value is not None and not isinstance(value, Loop):
            raise RivetError(
                f"the body of {self.what} must return Loop.next(…), Loop.stop(…) or None, not {value!r}"
            )
        if value is None and self.stateful:
            raise RivetError(
                f"the body of {self.what} has a state and returned None: return Loop.next(state)"
            )
        if value is not None and value.stopped:
            self._stop(value.value)
        else:
            self.turn(value.value if value is not None else it.loop_state)
            self._iterate()

    def _stop(self, value: Any) -> None:
        machine = self.scope.machine
        assert self.current is not None
        value, self.entry.output = machine.codec.roundtrip(value, what=f"result of {self.what}")
        self.current.end(well=True)
        if self.finished:
            self.turn(None)  # recorded as failed in this iteration: says so
        self.over(well=True)
        self.scope.task.now = machine.now
        machine.tasks.resume(self, True, value)


def _takes_two(body: Callable[..., Any]) -> bool:
    try:
        parameters = inspect.signature(body).parameters.values()
    except (TypeError, ValueError):
        return False
    needed = [
        p
        for p in parameters
        if p.default is p.empty and p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)
    ]
    return len(needed) >= 2
