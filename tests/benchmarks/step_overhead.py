"""What a step costs in a worker beside its own code and the database: in one thread, without I/O.

    DJANGO_SETTINGS_MODULE=tests.benchmarks.settings python -m tests.benchmarks.step_overhead

Fifty workflows of twenty steps, as in experiment A, through the real core, engine, codec and attempts; where the
database would be, the parameters of the group commit for PostgreSQL are made and thrown away. Prints microseconds and
calls per step. The calls are what the test beside this holds to a bound: they are the same on every machine.
"""

from __future__ import annotations

import sys
import uuid
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from rivet_workflows import codec
from rivet_workflows.engine import Program
from rivet_workflows.records import Claimed
from rivet_workflows.store.base import Meanwhile
from rivet_workflows.worker.attempt import Attempt, drive
from rivet_workflows.worker.context import StepEnvironment
from rivet_workflows.worker.core import Core
from rivet_workflows.worker.orders import StepReport, StepStart
from tests.benchmarks.engine_overhead import best_of

WORKFLOWS, STEPS, ROUNDS = 50, 20, 20
NOW = 1_800_000_000_000_000


def server() -> Any:
    """A store on PostgreSQL that calls whatever it is asked to commit committed."""
    from rivet_workflows.store.postgres import PostgresStore

    class Server(PostgresStore):
        def fast(
            self, sql: str, params: Sequence[Any] = (), meanwhile: Meanwhile | None = None
        ) -> list[tuple[Any, ...]]:
            actors = params[0].count(",") + 1
            return [(k,) for k in range(1, actors + 1)]

        def guarded(self) -> AbstractContextManager[Any]:
            return nullcontext()

    return Server("default")


async def later(_step: Any, number: int) -> int:
    return number


def at_once(_step: Any, number: int) -> int:
    return number


def straight(function: Any) -> Any:
    async def run(ctx: Any) -> None:
        for number in range(STEPS):
            await ctx.step("work", function, number)

    return run


def looped(function: Any) -> Any:
    async def run(ctx: Any) -> None:
        async for it in ctx.loop("turns"):
            await it.step("work", function, it.iteration)
            if it.iteration == STEPS - 1:
                break

    return run


def report(start: StepStart, env: StepEnvironment) -> StepReport:
    """What the runner would do with it on its own thread."""
    attempt = Attempt(start, env)
    if start.function is at_once:
        return attempt.succeeded(attempt.call())
    try:
        drive(attempt, None).send(None)
    except StopIteration as ended:
        return ended.value  # type: ignore[no-any-return]
    raise AssertionError("the step waited for something")


def fleet(run: Any) -> None:
    """All workflows, from being claimed to their end."""
    nothing: Any = None
    env = StepEnvironment(nothing, nothing, nothing, lambda: NOW, nothing, nothing)
    store, core = server(), Core(1, lambda _: Program(run=run, code="v1"), codec)
    now, succeeded = NOW, 0
    core.loaded(
        [Claimed(uuid.uuid4(), "bench", '["k"]', None, now, 1, 0, 1, "") for _ in range(WORKFLOWS)], now
    )
    while orders := core.orders():
        now += 1000
        starts = orders.starts
        if orders.commits:
            core.committed(store.commit_group(orders.commits), now)
            starts += core.take_starts()
        for start in starts:
            ended = report(start, env)
            core.step_done(start.token, ended, now)
            succeeded += ended.ok
    assert (succeeded, core.held) == (WORKFLOWS * STEPS, 0)


def microseconds(run: Any) -> float:
    """Of this thread, per step; the best of some rounds."""
    return best_of(ROUNDS, lambda: fleet(run)) / (WORKFLOWS * STEPS)


def calls(run: Any) -> tuple[float, float]:
    """Per step: of functions written in Python, and of others."""
    fleet(run)  # what is made once is there
    found = {"call": 0, "c_call": 0}

    def count(_frame: Any, event: str, _arg: Any) -> None:
        if event in found:
            found[event] += 1

    before = sys.getprofile()
    sys.setprofile(count)
    try:
        fleet(run)
    finally:
        sys.setprofile(before)
    steps = WORKFLOWS * STEPS
    return found["call"] / steps, found["c_call"] / steps


KINDS: dict[str, Callable[[], Any]] = {
    "async def": lambda: straight(later),
    "def": lambda: straight(at_once),
    "async def, looped": lambda: looped(later),
}


def main() -> None:
    import django

    django.setup()
    print(f"Python {sys.version.split()[0]}, {WORKFLOWS} workflows x {STEPS} steps, best of {ROUNDS}")
    for name, make in KINDS.items():
        python, others = calls(make())
        print(f"{name:18} {microseconds(make()):6.1f} µs, {python:6.1f} + {others:6.1f} calls per step")


if __name__ == "__main__":
    main()
