"""A core's surroundings in memory: a store, its time, workers of one code; and steps for them."""

from __future__ import annotations

import uuid
from typing import Any

from rivet_workflows import codec
from rivet_workflows.engine import Program
from rivet_workflows.records import (
    Claimed,
    Lifecycle,
)
from rivet_workflows.worker.core import CoreLimits
from tests.simulation.memory_worker import MemoryStore
from tests.worker.by_hand import HandWorker

START = 1_800_000_000_000_000


class World:
    """A store, its time, and workers that all have the same code."""

    def __init__(self, run: Any, limits: CoreLimits | None = None, code: str = "v1") -> None:
        self.time = START
        self.limits = limits
        self.run = run
        self.code = code
        self.store = MemoryStore(lambda: self.time)
        self.workers: list[HandWorker] = []

    def program(self, _claimed: Claimed) -> Program:
        return Program(run=self.run, code=self.code)

    def worker(self) -> HandWorker:
        self.workers.append(HandWorker(self.store, self.program, {"test": self.code}, self.limits))
        return self.workers[-1]

    def actor(self, n: int = 1, **given: Any) -> uuid.UUID:
        actor_id = uuid.UUID(int=n)
        self.store.create(actor_id, "test", **given)
        return actor_id

    def output(self, actor_id: uuid.UUID) -> Any:
        row = self.store.rows[actor_id]
        assert row.lifecycle is Lifecycle.COMPLETED, (row.lifecycle, row.error, row.inflight)
        return codec.loads(row.output or "null")

    def state(self, actor_id: uuid.UUID) -> Any:
        return codec.loads(self.store.rows[actor_id].state or "null")

    def pass_time(self, seconds: float) -> None:
        self.time += round(seconds * 1_000_000)

    def finish_all(self, worker: HandWorker) -> None:
        """Everything that has started ends, until nothing more starts."""
        while worker.attempts or worker.settle():
            for start in list(worker.attempts):
                worker.finish(start)
            worker.settle()
            self.pass_time(0.001)


def plus(step: Any, n: int) -> int:
    return n + 1


def count(step: Any) -> None:
    step.state["n"] += 1


def bump(step: Any) -> None:
    step.update(lambda state: {**state, "n": state["n"] + 1})


async def three(ctx: Any) -> int:
    total = 0
    for _ in range(3):
        total = await ctx.step("plus", plus, total)
    return total


async def echo(ctx: Any) -> list[Any]:
    got = []
    for _ in range(3):
        got.append((await ctx.queue.next("wait")).body)
        await ctx.step("plus", plus, 0)
    return got


async def sleepy(ctx: Any) -> str:
    await ctx.sleep("nap", 10)
    return "awake"
