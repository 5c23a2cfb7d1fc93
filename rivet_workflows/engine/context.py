"""``ctx``: what a workflow function is handed. Pure; the public face of the engine.

Every call registers when it is *made*, so a forgotten ``await`` is found at the next call. Only these calls and pure
Python belong into ``run``; what a replay cannot repeat is refused here with the mend.
"""

from __future__ import annotations

import json
import random
import uuid
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

from ..exceptions import HistoryDiverged, NotReplaySafe
from ..records import EntryStatus, Kind
from .branches import Branch, JoinCall, MapCall, RaceCall, TryCall
from .calls import EPOCH, Done, QueueCall, SleepCall, StepCall, instant
from .loops import UNSET, CallableLoop, NativeLoop
from .options import StepOptions, micros, whole
from .results import Message, RaceOutcome, TryResult

if TYPE_CHECKING:
    from .scope import Scope

T = TypeVar("T")

TRY_STEP_KINDS = ("critical", "timeout", "exhausted", "conflict")
TRY_BLOCK_KINDS = ("step", "join", "race")


class Context:
    """The workflow context: the same calls on ``ctx``, on loop iterations, branches and blocks."""

    __slots__ = ("_queue", "_scope")

    def __init__(self, scope: Scope) -> None:
        self._scope = scope
        self._queue: QueueFace | None = None

    # -- steps ---------------------------------------------------------------------------------------

    def step(
        self,
        name: Any,
        function: Any = None,
        /,
        *args: Any,
        kwargs: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> Awaitable[Any]:
        """Run ``function(step, *args, **kwargs)`` once, durably, and give its result.

        ``ctx.step("charge-card", charge_card, order_id)`` or ``ctx.step(charge_card, order_id)``. Options
        (``timeout``, ``max_retries``, …) are keyword arguments; see :class:`StepOptions`. Raises StepFailed.
        """
        return self._step(name, function, args, kwargs, options, None)

    def try_step(
        self,
        name: Any,
        function: Any = None,
        /,
        *args: Any,
        kwargs: Mapping[str, Any] | None = None,
        catch: Collection[Any] = TRY_STEP_KINDS,
        **options: Any,
    ) -> Awaitable[TryResult[Any]]:
        """Like :meth:`step`, with terminal failures of the kinds in ``catch`` as data: ``.ok .value .failure``."""
        return self._step(name, function, args, kwargs, options, tuple(catch))

    def _step(
        self,
        name: Any,
        function: Any,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any] | None,
        options: Mapping[str, Any],
        catch: tuple[Any, ...] | None,
    ) -> Awaitable[Any]:
        dead = self._scope.gate()
        if dead is not None:
            return dead
        if not isinstance(name, str):
            if function is not None:
                args = (function, *args)
            name, function = _function_name(name), name
        if not callable(function):
            raise TypeError(f"step {name!r} needs a function, not {function!r}")
        defaults = self._scope.machine.program.step_defaults
        own = getattr(function, "__rivet_step__", None)
        if own:
            defaults = defaults.merged({k: v for k, v in dict(own).items() if k != "name"})
        chosen: StepOptions = defaults.merged(options) if options else defaults
        return StepCall(self._scope, name, function, args, kwargs or {}, chosen, catch)

    # -- time ----------------------------------------------------------------------------------------

    def sleep(self, name: str, duration: float | timedelta) -> Awaitable[None]:
        """Wait ``duration`` seconds, durably. The first recorded deadline stays."""
        return self._sleep(
            name, self._scope.machine.now + micros(duration, f"the duration of sleep {name!r}")
        )

    def sleep_until(self, name: str, when: datetime | float) -> Awaitable[None]:
        """Wait until ``when``: an aware datetime, or epoch seconds. A time that has passed does not wait."""
        return self._sleep(name, moment(when, f"the time of sleep {name!r}"))

    def _sleep(self, name: str, deadline: int) -> Awaitable[None]:
        return self._scope.gate() or SleepCall(self._scope, name, deadline)

    # -- queues and loops ----------------------------------------------------------------------------

    @property
    def queue(self) -> QueueFace:
        """``queue.next``, ``queue.next_batch``, ``queue.send``."""
        if self._queue is None:
            self._queue = QueueFace(self._scope)
        return self._queue

    def loop(
        self,
        name: str,
        body: Callable[..., Awaitable[Any]] | None = None,
        *,
        state: Any = UNSET,
        history_prune_interval: int | None = None,
        history_size: int | None = None,
    ) -> Any:
        """``async for it in ctx.loop("name"):``, or ``await ctx.loop("name", body, state=…)``.

        Each iteration is a scope of its own. What must outlive one goes through ``it.loop_state``. Finished
        iterations are pruned every ``history_prune_interval`` (20), all but the last ``history_size`` of them.
        """
        dead = self._scope.gate()
        if dead is not None:
            return dead
        if body is None:
            return NativeLoop(self._scope, name, state, history_prune_interval, history_size)
        return CallableLoop(self._scope, name, body, state, history_prune_interval, history_size)

    # -- branches ------------------------------------------------------------------------------------

    def join(
        self, name: str, branches: Mapping[str, Branch] | None = None, /, **more: Branch
    ) -> Awaitable[dict[str, Any]]:
        """Run async functions concurrently, each with a context of its own; their values by name, or JoinError."""
        return self._scope.gate() or JoinCall(self._scope, name, {**(branches or {}), **more})

    def race(
        self, name: str, branches: Mapping[str, Branch] | None = None, /, **more: Branch
    ) -> Awaitable[RaceOutcome[Any]]:
        """The first branch to succeed: ``.winner .value``. RaceError when all fail."""
        chosen = {**(branches or {}), **more}
        if not chosen:
            raise ValueError(f"race {name!r} needs at least one branch")
        return self._scope.gate() or RaceCall(self._scope, name, chosen)

    def map(
        self, name: str, function: Branch, items: Iterable[T], *, concurrency: int | None = None
    ) -> Awaitable[list[Any]]:
        """``function(branch, item)`` for every item, at most ``concurrency`` at a time; ordered results.

        All items settle; failures are a JoinError keyed by index.
        """
        listed = list(items)
        at_once = (
            max(1, len(listed)) if concurrency is None else whole(concurrency, f"concurrency of map {name!r}")
        )
        return self._scope.gate() or MapCall(self._scope, name, function, listed, at_once)

    def try_block(
        self, name: str, body: Branch, *, catch: Collection[Any] = TRY_BLOCK_KINDS
    ) -> Awaitable[TryResult[Any]]:
        """Run ``body(block)``; terminal failures of steps, joins and races inside it become data."""
        return self._scope.gate() or TryCall(self._scope, name, body, tuple(catch))

    # -- calls that never wait -----------------------------------------------------------------------

    def rollback_checkpoint(self, name: str) -> Awaitable[None]:
        """From here on, in this scope, steps may have a ``rollback`` handler; it holds until the scope ends."""
        entry, _, new = self._scope.enter(Kind.ROLLBACK_CHECKPOINT, name)
        machine = self._scope.machine
        self._scope.checkpoint = True
        if new:
            machine.record(entry, EntryStatus.COMPLETED)
        machine.checkpoints.append((entry.seq, self._scope.path))
        return Done(self._scope, None, f"rollback_checkpoint {name!r}")

    def removed(self, name: str, kind: str) -> Awaitable[None]:
        """Say that an entry ``name`` of ``kind`` (``"step"``, ``"loop"``, …) used to be here (R-REM)."""
        scope, machine = self._scope, self._scope.machine
        scope.check_usable(f"removed {name!r}")
        if kind not in REMOVABLE:
            raise ValueError(
                f"removed({name!r}, {kind!r}): the kind must be one of {', '.join(sorted(REMOVABLE))}"
            )
        plain, _, number = name.rpartition("#") if name.rpartition("#")[2].isdigit() else (name, "", "")
        keys = [k for k in scope.recorded if k[0] == plain and (not number or k[1] == int(number))]
        for key in keys:
            entry = scope.recorded[key][0]
            if entry.kind.label not in (kind, "removed"):
                machine.report(
                    HistoryDiverged(
                        f"removed({name!r}, {kind!r}): the history holds a {entry.kind.label} there (entry {entry.seq})"
                    )
                )
            _, rec = scope.recorded.pop(key)
            if rec is not None:
                machine.abandon(entry.seq)
        if not keys and scope.counts.get(plain, 0) == 0:
            entry, _, _ = scope.enter(Kind.REMOVED, plain)
            entry.input = json.dumps(kind)
            machine.record(entry, EntryStatus.REMOVED)
        scope.removed.add(plain)
        return Done(scope, None, f"removed {name!r}")

    def get_version(self, name: str, latest: int) -> Awaitable[int]:
        """The version this run is pinned to here: ``latest`` for one that is new here, else 1 (R-VER)."""
        whole(latest, f"get_version({name!r}): latest")
        scope, machine = self._scope, self._scope.machine
        entry, _, new = scope.enter(Kind.VERSION_CHECK, name)
        if new:
            version = 1 if scope.unmet() else latest
            entry.output = json.dumps({"resolved": version, "latest": latest})
            machine.record(entry, EntryStatus.COMPLETED)
        else:
            version = json.loads(entry.output or "{}").get("resolved", 1)
        return Done(scope, version, f"get_version {name!r}")

    # -- the same on every replay --------------------------------------------------------------------

    def now(self) -> datetime:
        """The time of the last recorded result; the same on replay. For the real time use a step."""
        return instant(self._scope.task.now)

    def uuid4(self) -> uuid.UUID:
        """A random UUID that is the same on replay."""
        return uuid.UUID(int=self._scope.rng.getrandbits(128), version=4)

    @property
    def random(self) -> random.Random:
        """A random generator that draws the same on replay."""
        return self._scope.rng

    @property
    def actor_id(self) -> uuid.UUID:
        return self._scope.machine.actor_id

    @property
    def key(self) -> Any:
        return self._scope.machine.key

    @property
    def name(self) -> str:
        """The actor's registered name."""
        return self._scope.machine.program_name

    @property
    def input(self) -> Any:
        """What the actor was created with."""
        return self._scope.machine.input()

    @property
    def log(self) -> Any:
        """A logger that is silent while recorded history is replayed."""
        return self._scope.machine.log

    # -- what belongs into steps -----------------------------------------------------------------------

    def _only_in_steps(self, what: str) -> NoReturn:
        self._scope.machine.report(
            NotReplaySafe(
                f"ctx.{what} is not available in run, because a replay would see another value: use step.{what} inside "
                "a step, and return from the step what run needs"
            )
        )

    @property
    def state(self) -> NoReturn:
        self._only_in_steps("state")

    @property
    def vars(self) -> NoReturn:
        self._only_in_steps("vars")

    @property
    def schedule(self) -> NoReturn:
        self._only_in_steps("schedule")

    @property
    def cron(self) -> NoReturn:
        self._only_in_steps("cron")

    def client(self) -> NoReturn:
        self._only_in_steps("client()")

    def broadcast(self, *_args: Any) -> NoReturn:
        self._only_in_steps("broadcast()")

    def destroy(self) -> NoReturn:
        self._only_in_steps("destroy()")


class LoopContext(Context):
    """The context of one iteration. ``loop_state`` is what the next one starts with; ``iteration`` counts from 0."""

    __slots__ = ("iteration", "loop_state")

    def __init__(self, scope: Scope, iteration: int, state: Any) -> None:
        super().__init__(scope)
        self.iteration = iteration
        self.loop_state = state


class QueueFace:
    """``ctx.queue``."""

    __slots__ = ("_scope",)

    def __init__(self, scope: Scope) -> None:
        self._scope = scope

    def next(
        self,
        name: str,
        *,
        names: Any = None,
        timeout: float | timedelta | None = None,
        completable: bool = False,
    ) -> Awaitable[Message[Any]]:
        """Wait for one message of the queues ``names`` (none: any). ``name`` names the entry.

        Raises QueueTimeout after ``timeout`` seconds without one. ``completable``: the message stays hidden in the
        queue until ``message.complete(response)``.
        """
        return self._wait(name, names, 1, timeout, completable, single=True)

    def next_batch(
        self,
        name: str,
        *,
        names: Any = None,
        count: int = 1,
        timeout: float | timedelta | None = None,
        completable: bool = False,
    ) -> Awaitable[list[Message[Any]]]:
        """Up to ``count`` messages of those there now, waiting for the first; ``[]`` after ``timeout`` seconds."""
        whole(count, f"count of queue wait {name!r}")
        return self._wait(name, names, count, timeout, completable, single=False)

    def _wait(
        self, name: str, names: Any, count: int, timeout: Any, completable: bool, *, single: bool
    ) -> Awaitable[Any]:
        dead = self._scope.gate()
        if dead is not None:
            return dead
        program = self._scope.machine.program
        if names is not None and not isinstance(names, list | tuple | set | frozenset):
            names = (names,)
        wanted = tuple(dict.fromkeys(program.queue_name(n) for n in names or ())) or None
        limit = None if timeout is None else micros(timeout, f"the timeout of queue wait {name!r}")
        return QueueCall(self._scope, name, wanted, count, limit, bool(completable), single)

    def send(self, queue: Any, body: Any = None) -> Awaitable[None]:
        """Put a message into one of the actor's own queues, once, however often this is replayed."""
        scope, machine = self._scope, self._scope.machine
        dead = scope.gate()
        if dead is not None:
            return dead
        name = machine.program.queue_name(queue)
        text = machine.codec.dumps(machine.program.check_body(name, body), what=f"message to queue {name!r}")
        entry, _, new = scope.enter(Kind.SEND, name)
        if new:
            machine.send(entry, text)
        return Done(scope, None, f"send {name!r}")


REMOVABLE = frozenset(kind.label for kind in Kind if kind is not Kind.TRY)


def _function_name(function: Any) -> str:
    name = getattr(function, "__name__", None)
    if not isinstance(name, str) or name == "<lambda>":
        raise TypeError(
            f'a step needs a name: ctx.step("name", function, …); {function!r} has none of its own'
        )
    own = getattr(function, "__rivet_step__", None)
    return str(own["name"]) if isinstance(own, Mapping) and own.get("name") else name


def moment(when: Any, what: str) -> int:
    """``when`` (aware datetime or epoch seconds) in microseconds since the epoch."""
    if isinstance(when, datetime):
        if when.tzinfo is None:
            raise ValueError(
                f"{what} is a naive datetime: give it a time zone (django.utils.timezone.make_aware)"
            )
        return (when - EPOCH) // timedelta(microseconds=1)
    if isinstance(when, bool) or not isinstance(when, int | float):
        raise TypeError(f"{what} must be an aware datetime or epoch seconds, not {type(when).__name__}")
    if when != when or when in (float("inf"), float("-inf")):
        raise ValueError(f"{what} must be finite, not {when}")
    return round(when * 1_000_000)
