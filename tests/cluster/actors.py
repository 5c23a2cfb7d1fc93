"""Actors of the cluster project. Their steps write to a ledger that is a file, outside every database."""

from __future__ import annotations

import asyncio
import os
from typing import Any

from rivet_workflows import Actor, Event, Queue, action


def ledger(step: Any, note: str = "") -> None:
    """One line per call: idempotency key, attempt, process, note. Appends of one write are atomic."""
    path = os.environ.get("RIVET_LEDGER")
    if path:
        line = f"{step.idempotency_key} {step.attempt} {os.getpid()} {note}\n".encode()
        fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        try:
            os.write(fd, line)
        finally:
            os.close(fd)


async def async_work(step: Any, n: int) -> int:
    ledger(step, f"async {n}")
    return n + 1


def sync_work(step: Any, n: int) -> int:
    ledger(step, f"sync {n}")
    return n + 1


async def nothing(step: Any, n: int) -> int:
    return n


def nothing_sync(step: Any, n: int) -> int:
    return n


class Steps(Actor, name="bench_steps"):
    """The benchmarks' workflow: steps that do nothing."""

    async def run(self, ctx: Any) -> int:
        function = nothing_sync if ctx.input.get("sync") else nothing
        for n in range(ctx.input["steps"]):
            await ctx.step("step", function, n)
        return int(ctx.input["steps"])


class Story(Actor, name="story"):
    """A bit of everything: steps of both kinds, a loop fed by a queue, a sleep, a prune."""

    state = {"count": 0}
    work = Queue()
    control = Queue()

    async def run(self, ctx: Any) -> int:
        total = await ctx.step("first", async_work, 0)
        await ctx.sleep("nap", 0.2)
        async for it in ctx.loop("work", history_prune_interval=2, history_size=1):
            message = await it.queue.next("wait", names=["work", "control"])
            if message.name == "control":
                break
            await it.step("sync", sync_work, message.body)
            await it.step("count", count)
        return int(await ctx.step("last", sync_work, total))

    @action(read_only=True)
    def get_count(self, c: Any) -> int:
        return int(c.state["count"])


class SlowSteps(Actor, name="slow_steps"):
    """Steps that take a while, so that a worker has some running whenever it is stopped."""

    async def run(self, ctx: Any) -> int:
        for n in range(ctx.input["steps"]):
            await ctx.step("slow", slow, n, ctx.input["ms"])
        return int(ctx.input["steps"])


async def slow(step: Any, n: int, ms: int) -> int:
    ledger(step, f"slow {n}")
    await asyncio.sleep(ms / 1000)
    return n


class Ticker(Actor, name="ticker"):
    """No workflow: an action that is called later, once or again and again."""

    state = {"ticks": 0}

    @action
    def once(self, c: Any) -> None:
        c.schedule.after(0.2, "tick")

    @action
    def again(self, c: Any) -> None:
        c.cron.every(name="tick", interval=5, action="tick")

    @action
    def tick(self, c: Any, fire: Any) -> None:
        c.state["ticks"] += 1

    @action(read_only=True)
    def get_ticks(self, c: Any) -> int:
        return int(c.state["ticks"])

    @action(read_only=True)
    def get_fires(self, c: Any) -> list[tuple[str, bool]]:
        return [(fire.result, fire.interrupted) for fire in c.cron.history("tick")]


def die(step: Any) -> None:
    os._exit(9)


class Killer(Actor, name="killer"):
    """Its step takes the whole process down, every time."""

    async def run(self, ctx: Any) -> None:
        await ctx.step("die", die)


class Named(Actor, name="named"):
    """Waits for one message, then three steps; an action changes its state and broadcasts."""

    state = {"name": ""}
    go = Queue()
    renamed = Event(str)

    async def run(self, ctx: Any) -> int:
        await ctx.queue.next("wait", names=["go"])
        total = 0
        for _ in range(3):
            total = await ctx.step("plus", nothing_sync, total) + 1
        return total

    @action
    def rename(self, c: Any, name: str) -> None:
        c.state["name"] = name
        c.broadcast("renamed", name)


def count(step: Any) -> None:
    ledger(step, "count")
    step.state["count"] += 1
