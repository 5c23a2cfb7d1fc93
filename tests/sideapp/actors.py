"""Actors for worker processes. What a step does outside the database is a line in a file, the ledger."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

from rivet_workflows import Actor, Queue


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
        time.sleep(0.01)


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


def mark(step: Any, number: int) -> int:
    note(f"{step.key} {number}")
    return number


async def amark(step: Any, number: int) -> int:
    return mark(step, number)


def gated(step: Any) -> None:
    note(f"begun {step.key} {step.attempt}")
    hold()
    note(f"ended {step.key} {step.attempt}")
