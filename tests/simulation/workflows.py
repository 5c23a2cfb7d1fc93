"""The workflows that the simulation runs, and what must be true of their results.

Each is written as a user would write it, with one addition: its steps tell the world's ledger that they ran.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from rivet_workflows.exceptions import ChildFailed, CriticalError, JoinError, StepFailed
from rivet_workflows.records import Lifecycle


def effect(step: Any, value: Any = None) -> Any:
    """An outside effect: noted under the step's idempotency key."""
    step.effect(value)
    return value


def flaky(step: Any, times: int) -> str:
    step.effect("try")
    if step.attempt <= times:
        raise ValueError(f"attempt {step.attempt} fails")
    return "ok"


def hopeless(step: Any) -> None:
    step.effect("try")
    raise CriticalError("no")


def count(step: Any) -> int:
    step.effect("count")
    step.update(lambda state: {**state, "n": state["n"] + 1})
    return 1


def note(step: Any, body: Any) -> None:
    step.effect(body)
    step.update(lambda state: {**state, "got": [*state["got"], body]})
    step.broadcast("got", body)


def undo(step: Any, output: Any) -> None:
    step.effect(("undo", output))
    step.update(lambda state: {**state, "undone": [*state["undone"], output]})


def kill(step: Any) -> None:
    step.effect("kill")
    step.kill_process()


def answer(step: Any, message: Any) -> None:
    step.effect(message.body)
    step.complete(message, {"answer": message.body})


async def steps(ctx: Any) -> list[int]:
    return [await ctx.step("one", effect, n) for n in range(4)]


async def worker_loop(ctx: Any) -> str:
    async for it in ctx.loop("work", history_prune_interval=2, history_size=1):
        message = await it.queue.next("wait", names=["work", "control"])
        if message.name == "control":
            break
        await it.step("note", note, message.body)
        async for inner in it.loop("inner"):
            await inner.step("inner", effect, inner.iteration)
            if inner.iteration == 1:
                break
    return "stopped"


async def batches(ctx: Any) -> int:
    total = 0
    while True:
        messages = await ctx.queue.next_batch("drain", names=["work", "control"], count=3, timeout=20)
        for message in messages:
            if message.name == "control":
                return total
            await ctx.step("note", note, message.body)
            total += 1


async def naps(ctx: Any) -> str:
    for n in range(3):
        before = ctx.now()
        await ctx.sleep("nap", 5 + n)
        await ctx.step("after", awake, before.timestamp() + 5 + n)
    return "rested"


def awake(step: Any, not_before: float) -> None:
    step.effect("awake")
    step.not_before(not_before)


async def together(ctx: Any) -> Any:
    async def left(b: Any) -> int:
        await b.sleep("left", 3)
        return await b.step("count", count)  # type: ignore[no-any-return]

    async def right(b: Any) -> int:
        await b.step("count", count)
        return await b.step("count", count)  # type: ignore[no-any-return]

    async def bad(b: Any) -> None:
        await b.step("bad", hopeless)

    both = await ctx.join("both", left=left, right=right)
    first = await ctx.race("first", slow=left, fast=right)
    many = await ctx.map("many", lambda b, n: b.step("each", effect, n), range(4), concurrency=2)
    tried = await ctx.try_block("tried", bad)
    try:
        await ctx.join("failing", good=right, bad=bad)
    except JoinError as exc:
        return [both, first.winner in ("slow", "fast"), many, tried.ok, sorted(exc.errors)]


async def retries(ctx: Any) -> list[Any]:
    got = [await ctx.step("flaky", flaky, 2)]
    tried = await ctx.try_step("hopeless", hopeless)
    got.append(tried.failure.kind)
    try:
        await ctx.step("exhausted", flaky, 99, max_retries=1)
    except StepFailed as exc:
        got.append((exc.kind in ("exhausted", "conflict"), exc.attempts))
    return got


async def saga(ctx: Any) -> None:
    await ctx.rollback_checkpoint("saga")
    for n in range(3):
        await ctx.step("reserve", effect, n, rollback=undo)
    await ctx.step("charge", hopeless)


async def rpc(ctx: Any) -> str:
    async for it in ctx.loop("rpc"):
        message = await it.queue.next("wait", names=["work", "control"], completable=True)
        if message.name == "control":
            await message.complete("bye")
            break
        await it.step("answer", answer, message)
    return "done"


async def self_sender(ctx: Any) -> list[Any]:
    got = []
    for n in range(3):
        await ctx.queue.send("own", n)
    for _ in range(3):
        got.append((await ctx.queue.next("own", names=["own"])).body)
        await ctx.step("step", effect, got[-1])
    return got


def add(step: Any) -> int:
    step.effect("add")
    step.state["n"] += 1
    return int(step.state["n"])


async def atomic(ctx: Any) -> None:
    async def branch(b: Any) -> None:
        await b.step("add", add, atomic=True)

    await ctx.step("first", add, atomic=True)
    await ctx.join("both", one=branch, two=branch)
    await ctx.step("plain", effect, 1)
    await ctx.step("last", add, atomic=True)


async def leaf(ctx: Any) -> int:
    await ctx.sleep("think", ctx.input % 3)
    return 2 * await ctx.step("one", effect, ctx.input)  # type: ignore[no-any-return]


async def family(ctx: Any) -> list[Any]:
    """Children in branches, beside waits for messages: what one's look takes away is the other's end."""

    async def child(b: Any, n: int) -> Any:
        try:
            return await b.child("child", "leaf", f"{ctx.key}-{n}", input=n)
        except ChildFailed:
            return "gone"

    async def mail(b: Any) -> list[Any]:
        got: list[Any] = []
        while True:
            message = await b.queue.next("wait", names=["work", "control"])
            if message.name == "control":
                return got
            await b.step("note", note, message.body)
            got.append(message.body)

    first = await child(ctx, 0)
    outcome = await ctx.join("both", mail=mail, children=lambda b: b.map("many", child, [1, 2, 3]))
    return [first, *outcome["children"]]


async def order(ctx: Any) -> list[Any]:
    """Branches that leave their marks in a list: it says in which order they went on."""
    seen: list[int] = []

    async def branch(b: Any, n: int) -> None:
        for mark in (n, 10 + n):
            await b.step("mark", effect, mark)
            seen.append(mark)

    await ctx.map("all", branch, [1, 2, 3])
    told = await ctx.step("tell", effect, list(seen))
    await ctx.sleep("later", 3)
    return [seen, told]


async def merger(ctx: Any) -> None:
    """Its steps change a field of the state, actions another one meanwhile."""
    for _ in range(4):
        await ctx.step("add", add, max_retries=50, retry_backoff_base=0)


async def killer(ctx: Any) -> None:
    await ctx.step("kill", kill)


async def grown(ctx: Any) -> list[str]:
    got = [await ctx.step("first", effect, "first")]
    await ctx.sleep("between", 4)
    return [*got, await ctx.step("last", effect, "last")]


async def grown_2(ctx: Any) -> list[str]:
    got = [await ctx.step("first", effect, "first")]
    await ctx.sleep("between", 4)
    if await ctx.get_version("audit", 2) == 2:
        got.append(await ctx.step("audit", effect, "audit"))
    return [*got, await ctx.step("last", effect, "last")]


async def renamed(ctx: Any) -> list[str]:
    return [await ctx.step(name, effect, name) for name in ("one", "two", "three")]


async def renamed_2(ctx: Any) -> list[str]:
    return [await ctx.step(name, effect, name) for name in ("uno", "due", "tre")]


async def deadline(ctx: Any) -> Any:
    async def approved(b: Any) -> Any:
        return (await b.queue.next("approval", names=["work"])).body

    async def expired(b: Any) -> None:
        await b.sleep("expiry", 15)

    outcome = await ctx.race("approval", approved=approved, expired=expired)
    await ctx.step("record", effect, outcome.winner)
    return outcome.winner


@dataclass
class Result:
    """What is stored of an actor at the end, and what the world knows of it."""

    lifecycle: Lifecycle
    error: str | None
    output: Any
    state: dict[str, Any]
    #: Bodies of the events called ``got``; None once they were pruned.
    events: list[Any] | None
    #: Bodies sent, in order, and those that nobody has received.
    sent: list[int]
    left: int
    #: Replies to them.
    replies: list[tuple[str, Any] | None] = field(default_factory=list)


Check = Callable[[Result], None]


@dataclass
class Expect:
    """A workflow, and what must hold at its end."""

    run: Any
    check: Check
    #: It wants messages, until one says stop.
    messages: bool = False
    #: The same workflow in the next release.
    next_run: Any = None
    #: May be told to run again from one of its entries.
    replays: bool = False
    #: Made by others only.
    child: bool = False
    #: It ends set aside.
    set_aside: bool = False


def _completed(result: Result) -> None:
    assert result.lifecycle is Lifecycle.COMPLETED, (result.lifecycle.label, result.error)


def _output(*expected: Any) -> Check:
    """Its output is one of these."""

    def check(result: Result) -> None:
        _completed(result)
        assert result.output in expected, f"output {result.output!r}, expected one of {expected!r}"

    return check


def _got_all(result: Result) -> None:
    got, sent = result.state["got"], result.sent
    _completed(result)
    assert got == sent, f"received {got}, sent {sent}"
    assert result.events in (None, sent), f"events {result.events}, sent {sent}"


def _together(result: Result) -> None:
    _output([{"left": 1, "right": 1}, True, [0, 1, 2, 3], False, ["bad"]])(result)
    # join 1 + 2, the race's winner 1 or 2 and perhaps some of the loser's, the failing join's good branch 2.
    assert 6 <= result.state["n"] <= 8, result.state


def _four(result: Result) -> None:
    _output(None)(result)
    assert result.state["n"] == 4, result.state


def _saga(result: Result) -> None:
    assert result.lifecycle is Lifecycle.FAILED, result.lifecycle.label
    assert result.state["undone"] == [2, 1, 0], result.state


def _rpc(result: Result) -> None:
    _output("done")(result)
    assert result.left == 0, f"{result.left} messages are left"
    expected = [("completed", {"answer": body}) for body in result.sent]
    assert result.replies == expected, f"replies {result.replies}, expected {expected}"


def _in_order(result: Result) -> None:
    _completed(result)
    seen, told = result.output
    assert seen == told, f"went on in the order {told}, and after a replay in the order {seen}"


def _family(result: Result) -> None:
    _got_all(result)
    for n, output in enumerate(result.output):
        assert output in (2 * n, "gone"), result.output


def _poisoned(result: Result) -> None:
    assert result.lifecycle is Lifecycle.SET_ASIDE, result.lifecycle.label


WORKFLOWS: dict[str, Expect] = {
    "steps": Expect(steps, _output([0, 1, 2, 3]), replays=True),
    "worker_loop": Expect(worker_loop, _got_all, messages=True),
    "batches": Expect(batches, _got_all, messages=True),
    "naps": Expect(naps, _output("rested"), replays=True),
    "together": Expect(together, _together),
    "retries": Expect(retries, _output(["ok", "critical", (True, 2)]), replays=True),
    "saga": Expect(saga, _saga),
    "rpc": Expect(rpc, _rpc, messages=True),
    "self_sender": Expect(self_sender, _output([0, 1, 2])),
    "atomic": Expect(atomic, _four),
    "order": Expect(order, _in_order),
    "merger": Expect(merger, _four),
    "deadline": Expect(deadline, _output("approved", "expired"), messages=True),
    "family": Expect(family, _family, messages=True),
    "leaf": Expect(leaf, _output(0, 2, 4, 6), child=True),
    "grown": Expect(grown, _output(["first", "last"], ["first", "audit", "last"]), next_run=grown_2),
    "renamed": Expect(renamed, _output(["one", "two", "three"], ["uno", "due", "tre"]), next_run=renamed_2),
    "killer": Expect(killer, _poisoned, set_aside=True),
}
