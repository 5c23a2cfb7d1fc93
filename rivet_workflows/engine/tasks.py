"""The coroutines of one workflow, advanced by hand in a fixed order, with no event loop. Pure.

Everything that can run does, until every coroutine waits for a recorded call; then the next result is delivered to
one of them, and so on. On a replay the next result is the recorded one with the smallest ``done_seq``; at the
frontier it is what has just happened. Both take the same path, so a parked and a replayed run cannot differ (D-08).
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from ..exceptions import NotReplaySafe
from .calls import Call, Done, Result
from .scope import MAX_REFUSALS, Scope, Stopped
from .source import line_of_wait, placed

if TYPE_CHECKING:
    from .machine import Machine

Finished = Callable[[bool, Any], None]
#: What a coroutine of a workflow may wait for. A tuple: the union would be made anew each time.
_OWN = (Call, Done)


class Task:
    """One coroutine of the workflow: ``run`` itself, a branch, or the body of a callable loop."""

    __slots__ = (
        "arguments",
        "coro",
        "done",
        "function",
        "now",
        "over",
        "refusals",
        "scope",
        "stopped",
        "waiting",
    )

    def __init__(
        self, function: Callable[..., Any], arguments: tuple[Any, ...], now: int, done: Finished
    ) -> None:
        self.function = function
        self.arguments = arguments
        #: ``ctx.now()`` here: when the last result that it received was recorded.
        self.now = now
        self.done = done
        self.coro: Any = None
        self.scope: Scope | None = None
        self.waiting: Call | Done | None = None
        #: It may order nothing any more; and: its coroutine is at its end, so only others can still try.
        self.stopped = self.over = False
        #: How often it was told that it is stopped.
        self.refusals = 0


class Tasks:
    """The coroutines of one machine, what is ready for them, and what comes next."""

    __slots__ = ("_all", "_machine", "_ready", "_replay", "current", "live", "paused")

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._all: dict[Task, None] = {}
        self._ready: list[tuple[Task, Call | Done | None, bool, Any]] = []
        #: Calls that wait for their recorded result, by ``done_seq``.
        self._replay: list[tuple[int, Call]] = []
        #: Calls whose result has just come, in order of arrival.
        self.live: list[Call] = []
        self.current: Task | None = None
        #: The turn grew too long; it goes on with the next.
        self.paused = False

    # -- what becomes ready --------------------------------------------------------------------------

    def spawn(
        self, scope: Scope, function: Callable[..., Any], arguments: tuple[Any, ...], now: int, done: Finished
    ) -> None:
        """Start ``function(*arguments)`` in ``scope`` once the running coroutine waits."""
        task = Task(function, arguments, now, done)
        task.scope, scope.task = scope, task
        self._all[task] = None
        self._ready.append((task, None, True, None))

    def resume(self, call: Call, ok: bool, value: Any) -> None:
        """Give the result of ``call`` to the coroutine that awaits it."""
        self._ready.append((call.scope.task, call, ok, value))

    def replay_later(self, call: Call) -> None:
        """Deliver the recorded result of ``call`` when it is its turn."""
        heapq.heappush(self._replay, (call.entry.done_seq or 0, call))

    # -- driving -------------------------------------------------------------------------------------

    def drive(self) -> None:
        """Run until everything waits, the machine is stopped, or the turn has become long."""
        machine = self._machine
        self.paused = False
        while not machine.stopped:
            if self._ready:
                task, call, ok, value = self._ready.pop(0)
                if not task.stopped and task.waiting is call:
                    self._advance(task, call, ok, value)
                # A pause is only between calls that never wait: everything that has come is in the turn.
                if self.paused:
                    return
                continue
            try:
                found = self._next()
            except Stopped:
                return
            if found is None:
                return
            next_call, (ok, value) = found
            next_call.scope.task.now = next_call.entry.done_at or next_call.scope.task.now
            self.resume(next_call, ok, value)
            found = value = None

    def _next(self) -> tuple[Call, Result] | None:
        if self._replay:
            call = heapq.heappop(self._replay)[1]
            return call, call.replay()
        while self.live:
            call = self.live.pop(0)
            if not call.scope.task.stopped:
                return call, call.finish()
        if self._machine.turn_is_long():
            self.paused = self._machine.mailbox.next() is not None
            return None
        seq = self._machine.mailbox.next()
        if seq is None:
            return None
        call = self._machine.calls[seq]
        return call, call.finish()

    def _advance(self, task: Task, call: Call | Done | None, ok: bool, value: Any) -> None:
        if call is not None and call.scope is not None:
            call.scope.busy = None
        task.waiting = None
        self.current = task
        try:
            if task.coro is None:
                task.coro = _coroutine(task.function, task.arguments)
                yielded = task.coro.send(None)
            else:
                yielded = task.coro.send(value) if ok else task.coro.throw(value)
        except StopIteration as stop:
            self._done(task, True, stop.value)
        except Stopped:
            # It has ended with that: there is nothing left of it to unwind.
            self._all.pop(task, None)
        except BaseException as exc:
            self._done(task, False, exc)
        else:
            self._blocked(task, yielded)
        finally:
            # A thrown exception's traceback holds this frame, and it the exception: not left to the collector.
            value = self.current = None

    def _done(self, task: Task, ok: bool, value: Any) -> None:
        self._all.pop(task, None)
        if self._machine.stopped or task.stopped:
            return
        task.stopped = task.over = True
        with suppress(Stopped):
            task.done(ok, value)

    def _blocked(self, task: Task, yielded: Any) -> None:
        if self._machine.stopped:
            return
        own = isinstance(yielded, _OWN) and yielded.scope is not None and yielded.scope.task is task
        if own and yielded.scope.busy is yielded:
            task.waiting = yielded
            if isinstance(yielded, Done):
                self.paused = True
                self._ready.append((task, yielded, True, None))
            return
        shown = yielded.what if isinstance(yielded, Call) else f"{type(yielded).__name__} object"
        with suppress(Stopped):
            self._machine.report(
                NotReplaySafe(
                    f"run awaited {shown}, which is not a call on the context of its own branch. Only ctx calls may be "
                    "awaited in run (ctx.sleep for asyncio.sleep); await everything else inside a step"
                ),
                line_of_wait(task.coro),
            )

    # -- ends ----------------------------------------------------------------------------------------

    def kill(self, path: str) -> None:
        """Unwind every coroutine in the scope ``path`` or below."""
        for task in list(self._all):
            if task.scope is not None and task.scope.path.startswith(path):
                self._close(task)

    def dispose(self) -> None:
        """Unwind all of them."""
        for task in list(self._all):
            self._close(task)
        self._ready.clear()
        self._replay.clear()
        self.live.clear()

    def _close(self, task: Task) -> None:
        """Unwind a coroutine. Code that keeps catching :class:`Stopped` is dropped after a number of tries."""
        task.stopped = True
        self._all.pop(task, None)
        task.over = task.coro is None or self._unwind(task)

    def _unwind(self, task: Task) -> bool:
        """Whether it came to its end. One that was dropped may still try what it likes, and is still stopped."""
        notes = self._machine.turn.notes
        for _ in range(MAX_REFUSALS):
            try:
                task.coro.throw(Stopped())
            except (StopIteration, Stopped):
                return True
            except BaseException as exc:
                notes.append(f"{type(exc).__name__} while the workflow was unwound: {exc}")
                return True
        notes.append(
            placed("the workflow catches BaseException and was dropped: do not", line_of_wait(task.coro))
        )
        return False


def _coroutine(function: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
    coro = function(*arguments)
    if isinstance(coro, _OWN):
        return _awaited(coro)  # a lambda: ``lambda b: b.step("fetch", fetch)``
    if not hasattr(coro, "cr_code"):
        name = getattr(function, "__qualname__", repr(function))
        raise TypeError(f"{name} must be an async function (async def), it returned {type(coro).__name__}")
    return coro


async def _awaited(call: Call | Done) -> Any:
    return await call
