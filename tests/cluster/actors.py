"""Actors of the cluster project. Their steps write to a ledger that is a file, outside every database."""

from __future__ import annotations

import asyncio
import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rivet_workflows import Actor, CriticalError, Event, Queue, action, step


def ledger(step: Any, note: str = "") -> None:
    """One line per call, as ``cluster.Call`` reads it. Appends of one write are atomic."""
    path = os.environ.get("RIVET_LEDGER")
    if path:
        line = f"{step.idempotency_key} {step.attempt} {os.getpid()} {time.time():.6f} {note}\n".encode()
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


def nothing_sync(step: Any, n: int) -> int:
    return n


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


class Errand(Actor, name="errand"):
    """What :mod:`tests.cluster.load` counts: steps of all kinds, a timer, messages, a state, an atomic write, a child,
    branches. It takes ``messages`` numbered messages. Some steps take a while: there must be something to interrupt."""

    state = {"seen": [], "count": 0}
    work = Queue()

    async def run(self, ctx: Any) -> int:
        await ctx.step("first", slow, 0, 100)
        await ctx.sleep("nap", 0.05)
        async for it in ctx.loop("work"):
            message = await it.queue.next("wait", names=["work"])
            await it.step("note", note_message, message.body)
            await it.step("effect", write_effect, message.body, atomic=True)
            if message.body == ctx.input["messages"] - 1:
                break
        await ctx.child("child", SlowSteps, f"of-{ctx.key}", input={"steps": 2, "ms": 100})
        await ctx.join("both", left=branch, right=branch)
        return int(await ctx.step("last", sync_work, ctx.input["messages"]))

    @action(read_only=True)
    def get_state(self, c: Any) -> dict[str, Any]:
        return dict(c.state)


async def branch(ctx: Any) -> None:
    await ctx.step("count", count_up)


def count_up(step: Any) -> None:
    """The branches are at it side by side."""
    ledger(step, "count up")
    step.update(one_more)


def one_more(state: Any) -> None:
    state["count"] += 1


def note_message(step: Any, n: int) -> None:
    ledger(step, f"note {n}")
    step.state["seen"].append(n)


def write_effect(step: Any, n: int) -> None:
    """An ORM write of the step's own, without a key that would keep a second one out."""
    from django.db import connection

    ledger(step, f"effect {n}")
    with connection.cursor() as cursor:
        cursor.execute("INSERT INTO effect (actor, n) VALUES (%s, %s)", [str(step.key), n])


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


# -- one counter, changed by actions and in three ways by steps


@dataclass
class Count:
    n: int = 0


class Counter(
    Actor,
    name="counter",
    # An action may come between as often as it likes: that is no fault of the step's.
    step_defaults={"max_retries": 10_000, "retry_backoff_base": 0.002, "retry_backoff_max": 0.05},
):
    """Counted up by whoever calls, and by three branches of steps at once. ``input``: steps of each branch."""

    state = Count
    counted = Event(int)

    async def run(self, ctx: Any) -> dict[str, int]:
        ways = {"update": add_by_update, "assign": add_by_assignment, "atomic": add_atomically}
        branches = {way: (lambda b, way=way, add=add: many(b, way, add)) for way, add in ways.items()}
        return await ctx.join("ways", branches)  # type: ignore[no-any-return]

    @action
    def add(self, c: Any, loud: bool) -> None:
        c.state.n += 1
        if loud:
            c.broadcast("counted", c.state.n)

    @action(read_only=True)
    def get(self, c: Any) -> int:
        return int(c.state.n)


async def many(branch: Any, way: str, add: Any) -> int:
    times = branch.input[way]
    for n in range(times):
        await branch.step("add", add, n)
    return int(times)


@step
def add_by_update(step: Any, n: int) -> int:
    let_an_action_pass(step, n)
    step.update(plus_one)
    return int(step.attempt)


@step
def add_by_assignment(step: Any, n: int) -> int:
    step.state.n += 1
    let_an_action_pass(step, n)
    return int(step.attempt)


@step(atomic=True)
def add_atomically(step: Any, n: int) -> int:
    from django.db import connection

    with connection.cursor() as cursor:
        cursor.execute("INSERT INTO counted (idempotency_key) VALUES (%s)", [step.idempotency_key])
    step.state.n += 1
    # On SQLite it has the one right to write: there an action waits for it.
    let_an_action_pass(step, 1 if connection.vendor == "sqlite" else n)
    return int(step.attempt)


def plus_one(state: Count) -> None:
    state.n += 1


#: Keys of steps whose function this process has called.
_called: set[str] = set()


def let_an_action_pass(step: Any, n: int) -> None:
    """The outside effect. Every tenth step ends only after an action was committed that began later than the step:
    if actions waited for it, it would wait for ever.

    Who calls goes by the ``begun`` steps, so that there are actions between the steps from the first to the last; but
    each of them acts once for each ``waiting`` one, whatever its pace.
    """
    acted, folder = Path(os.environ["RIVET_ACTED"]), Path(os.environ["RIVET_ACTED"]).parent
    before = acted.stat().st_size
    ledger(step, f"add {n}")
    if step.idempotency_key in _called:
        return
    _called.add(step.idempotency_key)
    tick(folder / "begun")
    if n % 10:
        return
    tick(folder / "waiting")
    patience = time.monotonic() + 25
    while (now := acted.stat().st_size) <= before and now < int(os.environ["RIVET_ACTIONS"]):
        if time.monotonic() > patience:
            raise CriticalError("no action comes through while the step runs")
        time.sleep(0.001)


def tick(file: Path) -> None:
    """Count one more, in the size of a file."""
    with file.open("ab", buffering=0) as counted:
        counted.write(b".")
