"""What the engine alone costs per step: 50 machines of 20 steps each, no I/O, positions written as for a commit.

    python -m tests.benchmarks.engine_overhead [--profile]

Prints microseconds of Python time per step: one call of ``step_done``, and the position's text.
"""

from __future__ import annotations

import cProfile
import pstats
import sys
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from rivet_workflows import codec
from rivet_workflows.engine import Limits, Machine, Program
from rivet_workflows.exceptions import ErrorInfo
from rivet_workflows.records import Claimed

MACHINES, STEPS, ROUNDS = 50, 20, 20


@dataclass
class Done:
    ok: bool = True
    output: str | None = "1"
    value: Any = 1
    error: ErrorInfo | None = None
    timed_out: bool = False
    conflict: bool = False
    reruns: int = 0


def work(_step: Any) -> int:
    return 1


async def straight(ctx: Any) -> None:
    for _ in range(STEPS):
        await ctx.step("work", work)


async def loop(ctx: Any) -> None:
    async for it in ctx.loop("turns"):
        await it.step("work", work)
        if it.iteration == STEPS - 1:
            break


async def arguments(ctx: Any) -> None:
    for i in range(STEPS):
        await ctx.step("work", work, {"order": i, "lines": [1, 2, 3]})


def fleet(run: Any) -> None:
    done, now = Done(), 1_800_000_000_000_000
    for _ in range(MACHINES):
        claimed = Claimed(uuid.uuid4(), "bench", '["k"]', None, now, 1, 0, 1, "")
        machine = Machine(Program(run=run), claimed, codec, Limits())
        turn = machine.start(now)
        while turn.outcome is None:
            machine.inflight()
            machine.wants_look()
            _ = machine.next_due
            (order,) = turn.starts
            now += 10
            turn = machine.step_done(order.seq, order.attempt, done, now)
        machine.inflight()


def measure(run: Any) -> float:
    return best_of(ROUNDS, lambda: fleet(run)) / (MACHINES * STEPS)


def best_of(rounds: int, call: Callable[[], None]) -> float:
    """Microseconds of this thread that it takes, at best."""
    best = float("inf")
    for _ in range(rounds):
        began = time.thread_time()
        call()
        best = min(best, time.thread_time() - began)
    return best * 1e6


def main() -> None:
    print(f"Python {sys.version.split()[0]}, {MACHINES} machines x {STEPS} steps, best of {ROUNDS}")
    for run in (straight, loop, arguments):
        print(f"{run.__name__:10} {measure(run):6.1f} µs per step")
    if "--profile" in sys.argv:
        profile = cProfile.Profile()
        for _ in range(ROUNDS):
            profile.runcall(fleet, loop)
        pstats.Stats(profile).sort_stats("tottime").print_stats(25)


if __name__ == "__main__":
    main()
