"""Actors for worker processes. What a step does outside the database is a line in a file, the ledger."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

from rivet_workflows import Actor, Queue, action


def ledger() -> Path:
    return Path(os.environ["RIVET_TEST_LEDGER"])


def note(text: str) -> None:
    """One line, written at once: a process that is killed right after has written it."""
    with ledger().open("a") as file:
        file.write(text + "\n")


def hold() -> None:
    """Wait while the file named in the environment is there: how a test keeps a step running."""
    gate = os.environ.get("RIVET_TEST_GATE")
    while gate and Path(gate).exists():
        time.sleep(0.01)  # a file's going rings nobody in another process


class Ledgered(Actor):
    """Three steps and a short timer; each completed step is one line."""

    async def run(self, ctx: Any) -> Any:
        total = await ctx.step("one", mark, 1)
        await ctx.sleep("rest", 0.05)
        total += await ctx.step("two", amark, 2)
        return total + await ctx.step("three", mark, 3)


class Gated(Actor, step_defaults={"timeout": None}):
    """A step that runs until the test opens its gate."""

    async def run(self, ctx: Any) -> None:
        await ctx.step("gated", gated)


class Worked(Actor):
    """Works off a queue until it gets a negative number."""

    work = Queue(int)

    async def run(self, ctx: Any) -> None:
        async for it in ctx.loop("main"):
            message = await it.queue.next("wait", names=[Worked.work])
            if message.body < 0:
                break
            await it.step("apply", mark, message.body)


class Counter(Actor):
    """Counts in its state, and in the memory of the worker that holds it."""

    state = {"n": 0}
    vars = {"n": 0}

    async def run(self, ctx: Any) -> None:
        await ctx.queue.next("for-ever")

    @action
    def here(self, c: Any) -> int:
        c.state["n"] += 1
        return int(c.state["n"])

    @action(on_worker=True)
    def there(self, c: Any) -> tuple[int, int, int]:
        c.vars["n"] += 1
        c.state["n"] += 1
        return c.state["n"], c.vars["n"], os.getpid()

    @action(on_worker=True, timeout=90, read_only=True)
    def slow(self, c: Any) -> int:
        note("slow begun")
        hold()
        note("slow ended")
        return os.getpid()

    @action(on_worker=True, timeout=90)
    def heavy(self, c: Any) -> int:
        """On SQLite nobody else can write meanwhile."""
        c.state["n"] += 1_000
        process: int = self.slow(c)
        return process


class Plain(Actor):
    """No workflow, and a memory all the same."""

    vars = {"n": 0}

    @action(on_worker=True)
    def there(self, c: Any) -> tuple[int, int]:
        c.vars["n"] += 1
        return c.vars["n"], os.getpid()


def mark(step: Any, number: int) -> int:
    note(f"{step.key} {number}")
    return number


async def amark(step: Any, number: int) -> int:
    return mark(step, number)


def gated(step: Any) -> None:
    note(f"begun {step.key} {step.attempt}")
    hold()
    note(f"ended {step.key} {step.attempt}")
