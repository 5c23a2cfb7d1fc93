"""The harness: what a test drives its actors with. ``rivet`` in pytest, ``self.rivet`` in a ``TestCase``.

The same core, engine and store as in production, with a clock that stands still until it is moved, in the calling
thread and inside the test's transaction. A harness is for one test: it puts its clock into the store and itself in
the place of waiting, and takes both away in :meth:`Harness.close`, with all that the test declared and replaced.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Mapping
from datetime import datetime, timedelta
from functools import wraps
from typing import Any, Literal, ParamSpec, TypeVar

from asgiref.sync import sync_to_async

from rivet_workflows import client
from rivet_workflows.actors import Actor
from rivet_workflows.client import Handle, HistoryEntry, waiting
from rivet_workflows.client.moments import from_micros
from rivet_workflows.engine.options import micros
from rivet_workflows.registry import ActorType, registry
from rivet_workflows.replay_lint import lint
from rivet_workflows.store import get_store
from rivet_workflows.store.clock import VirtualClock
from rivet_workflows.testing import views
from rivet_workflows.testing.replay import NotDeterministic
from rivet_workflows.testing.rules import POINTS, Rules
from rivet_workflows.testing.worker import HereWorker
from rivet_workflows.worker import guard

__all__ = ["Harness", "Mode"]

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")
Mode = Literal["replay", "parked"]

#: Attempts of steps in one run without the clock moving; more is a loop that never waits.
LIMIT = 10_000


def _sync_only(method: Callable[P, R]) -> Callable[P, R]:
    """Refuse the call where an event loop runs: it would stand still meanwhile, and Django refuses the ORM there."""

    @wraps(method)
    def checked(*args: P.args, **kwargs: P.kwargs) -> R:
        if asyncio.events._get_running_loop() is not None:
            name = method.__name__
            raise RuntimeError(f"rivet.{name}() was called in async code: use `await rivet.a{name}()`")
        return method(*args, **kwargs)

    return checked


class Harness:
    """See the module. ``mode`` ``"replay"``: every commit evicts, and what a replayed workflow does is compared with
    what the parked one does; ``"parked"``: workflows wait in memory, as in a worker."""

    def __init__(self, mode: Mode = "replay", *, declared: Mapping[str, ActorType] | None = None) -> None:
        if mode not in ("replay", "parked"):
            raise ValueError(f'rivet_mode is "replay" or "parked", not {mode!r}')
        self.mode = mode
        #: ``rivet_workflows.client``, for convenience.
        self.client = client
        self._declared = registry.snapshot() if declared is None else declared
        self._store = get_store()
        self._clock_before = self._store.clock
        self._clock = VirtualClock(time.time_ns() // 1_000)
        self._store.clock = self._clock
        self._rules = Rules()
        self._worker = HereWorker(self._clock, self._rules, replay=mode == "replay")
        self._driver_before = waiting.set_driver(self._wait)
        self._closed = False
        guard.install()

    def close(self) -> None:
        """Put everything back. Calling it again does nothing."""
        if self._closed:
            return
        self._closed = True
        self._worker.close()
        guard.uninstall()
        waiting.set_driver(self._driver_before)
        self._store.clock = self._clock_before
        registry.restore(self._declared)

    # -- time and running

    def now(self) -> datetime:
        """The virtual time; aware, UTC. It begins at the real time and stands still until it is moved."""
        return from_micros(self._clock.now())

    @_sync_only
    def run_until_idle(self) -> None:
        """Run everything that can run now, whatever it takes; timers that are not due yet stay.

        Raises :class:`NotDeterministic` for a workflow that did something else when it was replayed, and
        AssertionError when actors do not come to rest.
        """
        try:
            self._worker.run(LIMIT)
        except NotDeterministic as found:
            raise self._explained(found) from None

    @_sync_only
    def advance(self, duration: float | timedelta | None = None, /, **parts: float) -> None:
        """Let time pass, from one due time to the next, running everything on the way.

        ``advance(90)`` (seconds), ``advance(timedelta(hours=1))``, ``advance(hours=24, minutes=1)``.
        """
        target = self._clock.now() + _span(duration, parts)
        self.run_until_idle()
        while (due := self._worker.next_due) is not None and due <= target:
            self._move_to(due)
        self._move_to(target)

    @_sync_only
    def jump(self, duration: float | timedelta | None = None, /, **parts: float) -> None:
        """Let time pass at once, as for a machine that slept: what was due meanwhile is late, and runs now."""
        self._move_to(self._clock.now() + _span(duration, parts))

    def _move_to(self, at: int) -> None:
        self._clock.at = max(self._clock.at, at)
        self.run_until_idle()

    def _wait(self, look: Callable[[], T | None], timeout: float | None) -> T | None:
        """In the place of waiting (``send(wait=True)``, ``result()``): first all that can run, then time passes."""
        until = None if timeout is None else self._clock.now() + micros(timeout, "timeout")
        self.run_until_idle()
        while (found := look()) is None:
            due = self._worker.next_due
            if until is None and due is None:
                raise AssertionError(
                    "this would wait for ever: nothing can run, nothing is due, and no timeout was given"
                )
            if until is not None and (due is None or due > until):
                self._move_to(until)
                return look()
            assert due is not None
            self._move_to(due)
        return found

    # -- what happens to workers

    @_sync_only
    def crash(self) -> None:
        """Forget all that was in memory, as ``kill -9`` would; the next run takes over what is stored and replays."""
        self._worker.die()

    @_sync_only
    def evict(self) -> None:
        """Stop the worker in an orderly way: everything is handed back, and the next run replays."""
        self._worker.stop()

    def crash_at(
        self,
        step: Any,
        point: str = "after_run",
        *,
        actor: Any = None,
        times: int | None = 1,
        rollback: bool = False,
    ) -> None:
        """Let the worker die once at an attempt of ``step``: ``"before"`` its function is called, ``"after_run"``
        (it has run, nothing is recorded), ``"after_commit"`` (it is recorded, nothing else has happened). The run goes
        on with a new worker."""
        if point not in POINTS:
            raise ValueError(f"crash_at takes one of {', '.join(POINTS)}, not {point!r}")
        self._rules.add(step, point, times=times, actor=actor, rollback=rollback)

    @_sync_only
    def deploy(
        self,
        old: str | type[Actor],
        new: type[Actor] | None = None,
        *,
        run: Callable[..., Coroutine[Any, Any, Any]] | None = None,
    ) -> None:
        """Change the code under running actors: the class ``old`` is what ``new`` says, or its ``run`` is another.

        Workers are stopped and started, as in a deploy. A workflow whose history does not fit the new code is set
        aside (``status().reason == "diverged"``) and goes on when code is deployed that fits.
        """
        if (new is None) == (run is None):
            raise TypeError("deploy takes the new class, or run=")
        self._worker.stop()
        registry.replace(old, new, run=run)
        self._worker.deployed()

    # -- what happens to steps

    def fail_step(
        self,
        step: Any,
        times: int | None = 1,
        error: BaseException | type[BaseException] | None = None,
        after: bool = False,
        actor: Any = None,
        *,
        rollback: bool = False,
    ) -> None:
        """Let the next ``times`` attempts of ``step`` fail with ``error``; None: always.

        The function is not called; with ``after=True`` it is, and fails after its work is done. ``actor``: only for
        this handle, class or name. ``rollback=True``: the step's rollback handler instead.
        """
        what = "fail_after" if after else "fail"
        self._rules.add(step, what, times=times, actor=actor, error=error, rollback=rollback)

    def time_out_step(
        self, step: Any, times: int | None = 1, *, actor: Any = None, rollback: bool = False
    ) -> None:
        """Let the next ``times`` attempts of ``step`` run into their timeout at once, without calling the function."""
        self._rules.add(step, "timeout", times=times, actor=actor, rollback=rollback)

    def stub_step(
        self, step: Any, function: Callable[..., Any], *, actor: Any = None, times: int | None = None
    ) -> None:
        """Call ``function`` in the place of the step's own, with the same arguments (the step context first)."""
        if not callable(function):
            raise TypeError(f"stub_step takes the function to call, not {function!r}")
        self._rules.add(step, "stub", times=times, actor=actor, function=function)

    # -- looking

    def history(self, handle: Handle) -> list[HistoryEntry]:
        """The actor's history, by ``seq``."""
        return handle.history()

    def events(self, handle: Handle) -> list[views.SeenEvent]:
        """Everything the actor has broadcast: ``.seq .name .payload``."""
        return views.events(handle)

    def messages(self, handle: Handle) -> list[views.SeenMessage]:
        """What waits in the actor's queues: ``.id .name .body``."""
        return views.messages(handle)

    def timers(self, handle: Handle) -> list[views.SeenTimer]:
        """What will happen to the actor by itself, the next first: ``.kind .due .name``."""
        return views.timers(handle)

    def report(self) -> str:
        """The histories of all actors as text, and the wishes that never came true: what a failing test prints."""
        try:
            text = views.history_text()
        except Exception as error:  # the failure being reported may have broken the transaction
            text = f"the histories cannot be read: {type(error).__name__}: {error}"
        unused = self._rules.unused()
        return text + (f"\n\nnever came true: {'; '.join(unused)}" if unused else "")

    # -- async twins

    async def arun_until_idle(self) -> None:
        """:meth:`run_until_idle` for async tests."""
        await _here(self.run_until_idle)

    async def aadvance(self, duration: float | timedelta | None = None, /, **parts: float) -> None:
        """:meth:`advance` for async tests."""
        await _here(self.advance, duration, **parts)

    async def ajump(self, duration: float | timedelta | None = None, /, **parts: float) -> None:
        """:meth:`jump` for async tests."""
        await _here(self.jump, duration, **parts)

    async def acrash(self) -> None:
        """:meth:`crash` for async tests."""
        await _here(self.crash)

    async def aevict(self) -> None:
        """:meth:`evict` for async tests."""
        await _here(self.evict)

    async def adeploy(self, old: Any, new: Any = None, *, run: Any = None) -> None:
        """:meth:`deploy` for async tests."""
        await _here(self.deploy, old, new, run=run)

    async def ahistory(self, handle: Handle) -> list[HistoryEntry]:
        """:meth:`history` for async tests."""
        return await _here(self.history, handle)

    async def aevents(self, handle: Handle) -> list[views.SeenEvent]:
        """:meth:`events` for async tests."""
        return await _here(self.events, handle)

    async def amessages(self, handle: Handle) -> list[views.SeenMessage]:
        """:meth:`messages` for async tests."""
        return await _here(self.messages, handle)

    async def atimers(self, handle: Handle) -> list[views.SeenTimer]:
        """:meth:`timers` for async tests."""
        return await _here(self.timers, handle)

    # -- within

    def _explained(self, found: NotDeterministic) -> NotDeterministic:
        kind = registry.find(found.actor_name)
        suspects = lint(kind) if kind is not None else []
        lines = [str(found)]
        if suspects:
            lines.append("Suspects:")
            lines += [f"  {s.filename}:{s.line}: {s.message} {s.hint}" for s in suspects]
        lines += ["", self.report()]
        return NotDeterministic("\n".join(lines), found.actor_id, found.actor_name)


def _span(duration: float | timedelta | None, parts: Mapping[str, float]) -> int:
    """Microseconds. TypeError and ValueError for what is no duration; time does not run backwards."""
    if (duration is None) == (not parts):
        raise TypeError("give seconds or a timedelta, or hours=, minutes=, …")
    return micros(timedelta(**parts) if duration is None else duration, "duration")


async def _here(function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
    """Call it in the thread that this async code's queries run in."""
    return await sync_to_async(function, thread_sensitive=True)(*args, **kwargs)
