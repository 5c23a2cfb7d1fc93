"""The actors that the benchmarks measure. Their steps do nothing but what the experiment is about."""

from __future__ import annotations

import json
import os
import socket
import time
from collections import deque
from typing import Any

from rivet_workflows import Actor, Queue, action
from tests.benchmarks.models import Row
from tests.benchmarks.rig import LOG, SOCKET

#: Times of a loop's iterations that are kept, from its beginning and from its end: the worker's memory is measured.
KEPT = 10_001
_ran_at: dict[str, tuple[list[float], deque[float]]] = {}


async def nothing(step: Any, n: int) -> int:
    return n


def nothing_sync(step: Any, n: int) -> int:
    return n


def insert(step: Any, n: int) -> int:
    Row(number=n).save(force_insert=True)
    return n


#: The kinds of steps of experiment A.
MODES = {"async": nothing, "def": nothing_sync, "def, one ORM insert": insert}


class Steps(Actor, name="bench_steps"):
    """So many steps, one after the other."""

    state = {"calls": 0}

    async def run(self, ctx: Any) -> int:
        function = MODES[ctx.input["mode"]]
        for n in range(ctx.input["steps"]):
            await ctx.step("step", function, n)
        return int(ctx.input["steps"])

    @action
    def count(self, c: Any) -> int:
        c.state["calls"] += 1
        return int(c.state["calls"])

    @action(read_only=True)
    def get_count(self, c: Any) -> int:
        return int(c.state["calls"])


async def mark(step: Any, n: int) -> None:
    """Tell the sender when this step began. That it runs says that the commit of the step before it, which holds
    this one's start, is done."""
    at = time.perf_counter()
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as out:
        out.sendto(json.dumps([n, at]).encode(), os.environ[SOCKET])


class Receiver(Actor, name="bench_receiver"):
    """A step for each message. With ``mark`` another, which tells that the first is committed."""

    q = Queue()

    async def run(self, ctx: Any) -> int:
        for _ in range(ctx.input["messages"]):
            message = await ctx.queue.next("wait", names=["q"], timeout=ctx.input.get("timeout"))
            await ctx.step("work", nothing, message.body)
            if ctx.input.get("mark"):
                await ctx.step("mark", mark, message.body)
        return int(ctx.input["messages"])


class Replier(Actor, name="bench_replier"):
    """A step for each message, and its answer."""

    q = Queue()

    async def run(self, ctx: Any) -> None:
        for _ in range(ctx.input["messages"]):
            message = await ctx.queue.next("wait", names=["q"], completable=True)
            await message.complete(await ctx.step("work", nothing, message.body))


async def logged(step: Any, key: str, n: int) -> None:
    out = os.open(os.environ[LOG], os.O_APPEND | os.O_CREAT | os.O_WRONLY)
    os.write(out, f"{key} {n}\n".encode())
    os.close(out)


class Crashy(Actor, name="bench_crashy"):
    """Five steps, a nap, five steps; each leaves a line in a file."""

    async def run(self, ctx: Any) -> None:
        for n in range(10):
            if n == 5:
                await ctx.sleep("nap", ctx.input["nap"])
            await ctx.step("logged", logged, ctx.key, n)


async def ran(step: Any) -> None:
    first, last = _ran_at.setdefault(str(step.actor_id), ([], deque(maxlen=KEPT)))
    last.append(at := time.perf_counter())
    if len(first) < KEPT:
        first.append(at)


async def flaky(step: Any) -> None:
    if step.attempt == 1:
        raise RuntimeError("the first attempt fails")


async def failing(step: Any) -> None:
    raise RuntimeError("always")


async def figures(step: Any, window: int) -> dict[str, float]:
    """Milliseconds per iteration over the first and the last ``window`` of them."""
    first, last = _ran_at.pop(str(step.actor_id))
    early, late = first[window] - first[0], last[-1] - last[-1 - window]
    return {"first_ms": round(early / window * 1e3, 3), "last_ms": round(late / window * 1e3, 3)}


async def swift(branch: Any) -> int:
    return int(await branch.step("quick", nothing, 1))


async def slow(branch: Any) -> None:
    await branch.sleep("long", 3600)


class Looped(Actor, name="bench_looped"):
    """A step for each iteration. With ``mixed`` also, every ten iterations, a race, a retry and a failure."""

    async def run(self, ctx: Any) -> Any:
        async for it in ctx.loop("turns"):
            await it.step("ran", ran)
            if ctx.input.get("mixed"):
                match it.iteration % 10:
                    case 3:
                        await it.race("first", swift=swift, slow=slow)
                    case 6:
                        await it.step("flaky", flaky, retry_backoff_base=0.001)
                    case 9:
                        await it.try_step("failing", failing, max_retries=0)
            if it.iteration == ctx.input["iterations"] - 1:
                break
        return await ctx.step("figures", figures, ctx.input["window"])
