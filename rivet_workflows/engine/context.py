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

from ..exceptions import NotReplaySafe
from ..records import REMOVABLE, EntryStatus, Kind
from .branches import Branch, JoinCall, MapCall, RaceCall, TryCall
from .calls import EPOCH, Done, SleepCall, instant
from .child import ChildCall
from .history import noted
from .loops import UNSET, CallableLoop, NativeLoop
from .options import micros, whole
from .queues import QueueFace
from .results import RaceOutcome, TryResult
from .steps import StepCall, kinds_to_catch

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
        return self._step(
            name, function, args, kwargs, options, kinds_to_catch(catch, (*TRY_STEP_KINDS, "rollback"))
        )

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
        return StepCall(self._scope, name, function, args, kwargs or {}, defaults.merged(options), catch)

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

        All items settle; failures are a JoinError keyed by index. Raises TypeError for a set.
        """
        if isinstance(items, set | frozenset):
            raise TypeError(
                f"map {name!r} was given a set, whose order is another after a restart, so that items would be done "
                "twice and others never: give it a list, like sorted(items)"
            )
        listed = list(items)
        at_once = len(listed) if concurrency is None else whole(concurrency, f"concurrency of map {name!r}")
        return self._scope.gate() or MapCall(self._scope, name, function, listed, at_once)

    def try_block(
        self, name: str, body: Branch, *, catch: Collection[Any] = TRY_BLOCK_KINDS
    ) -> Awaitable[TryResult[Any]]:
        """Run ``body(block)``; terminal failures of steps, joins and races inside it become data."""
        return self._scope.gate() or TryCall(
            self._scope, name, body, kinds_to_catch(catch, (*TRY_BLOCK_KINDS, "rollback"))
        )

    def child(self, name: str, actor: Any, key: Any, *, input: Any = None) -> Awaitable[Any]:
        """The workflow of another actor, to its result; ChildFailed where it failed.

        ``actor`` is a class or a registered name. One that exists is joined, not started again. Cancelling this
        workflow leaves the child alone.
        """
        program = self._scope.machine.program
        return self._scope.gate() or ChildCall(
            self._scope, name, program.actor_name(actor), program.actor_key(key), input
        )

    # -- calls that never wait -----------------------------------------------------------------------

    def rollback_checkpoint(self, name: str) -> Awaitable[None]:
        """From here on, in this scope, steps may have a ``rollback`` handler; it holds until the scope ends."""
        dead = self._scope.gate()
        if dead is not None:
            return dead
        entry, _, new = self._scope.enter(Kind.ROLLBACK_CHECKPOINT, name)
        machine = self._scope.machine
        self._scope.checkpoint = True
        if new:
            machine.record(entry, EntryStatus.COMPLETED)
        machine.checkpoints.append((entry.seq, self._scope.path))
        return Done(self._scope, None, f"rollback_checkpoint {name!r}")

    def removed(self, name: str, kind: str) -> Awaitable[None]:
        """Say that an entry ``name`` of ``kind`` (``"step"``, ``"loop"``, …) used to be here (R-REM).

        All occurrences of a repeated name, or one: ``"wait-work#2"``.
        """
        if kind not in REMOVABLE:
            raise ValueError(
                f"removed({name!r}, {kind!r}): the kind must be one of {', '.join(sorted(REMOVABLE))}"
            )
        dead = self._scope.gate()
        if dead is not None:
            return dead
        self._scope.remove(name, kind)
        return Done(self._scope, None, f"removed {name!r}")

    def get_version(self, name: str, latest: int) -> Awaitable[int]:
        """The version this run is pinned to here: ``latest`` for one that is new here, else 1 (R-VER)."""
        whole(latest, f"get_version({name!r}): latest")
        scope, machine = self._scope, self._scope.machine
        dead = scope.gate()
        if dead is not None:
            return dead
        entry, _, new = scope.enter(Kind.VERSION_CHECK, name)
        if new:
            # What is finished as a whole was run by the old code, as was a place before what is recorded.
            version = 1 if scope.sealed or scope.unmet() else latest
            entry.output = json.dumps({"resolved": version, "latest": latest})
            machine.record(entry, EntryStatus.COMPLETED)
        else:
            version = noted(entry.output)["resolved"]
        return Done(scope, version, f"get_version {name!r}")

    # -- the same on every replay --------------------------------------------------------------------

    def now(self) -> datetime:
        """The time of the last recorded result; the same on replay. For the real time use a step."""
        return instant(self._scope.task.now)

    def uuid4(self) -> uuid.UUID:
        """A random UUID that is the same on replay."""
        return uuid.UUID(int=self._scope.draw("uuid4()").getrandbits(128), version=4)

    @property
    def random(self) -> random.Random:
        """A random generator that draws the same on replay."""
        return self._scope.draw("random")

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
                f"ctx.{what} is not available in run, because a replay would see another value: "
                f"use step.{what} inside a step, and return from the step what run needs"
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
