"""The workflows that the simulation runs, and what must be true of their results.

Each is written as a user would write it, with one addition: its steps tell the world's ledger that they ran.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rivet_workflows.exceptions import CriticalError, JoinError, StepFailed
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


async def deadline(ctx: Any) -> Any:
    async def approved(b: Any) -> Any:
        return (await b.queue.next("approval", names=["work"])).body

    async def expired(b: Any) -> None:
        await b.sleep("expiry", 15)

    outcome = await ctx.race("approval", approved=approved, expired=expired)
    await ctx.step("record", effect, outcome.winner)
    return outcome.winner


class Expect:
    """A workflow, whether it wants messages, and what must hold at its end."""

    def __init__(
        self, run: Any, *, messages: bool = False, check: Callable[[Any, Any, list[Any]], None]
    ) -> None:
        self.run = run
        self.messages = messages
        self.check = check


def _output(expected: Any) -> Callable[[Any, Any, list[Any]], None]:
    def check(row: Any, output: Any, sent: list[Any]) -> None:
        assert row.lifecycle is Lifecycle.COMPLETED, (row.lifecycle.label, row.error)
        assert output == expected, f"output {output!r}, expected {expected!r}"

    return check


def _got_all(row: Any, output: Any, sent: list[Any]) -> None:
    assert row.lifecycle is Lifecycle.COMPLETED, (row.lifecycle.label, row.error)
    got = row.decoded_state()["got"]
    assert got == sent, f"received {got}, sent {sent}"
    events = [body for _, _, body in row.events]
    assert [int(e) for e in events] == sent, f"events {events}, sent {sent}"


def _together(row: Any, output: Any, sent: list[Any]) -> None:
    _output([{"left": 1, "right": 1}, True, [0, 1, 2, 3], False, ["bad"]])(row, output, sent)
    # join 1 + 2, the race's winner 1 or 2 and perhaps some of the loser's, the failing join's good branch 2.
    assert 6 <= row.decoded_state()["n"] <= 8, row.decoded_state()


def _four(row: Any, output: Any, sent: list[Any]) -> None:
    _output(None)(row, output, sent)
    assert row.decoded_state()["n"] == 4, row.decoded_state()


def _saga(row: Any, output: Any, sent: list[Any]) -> None:
    assert row.lifecycle is Lifecycle.FAILED, row.lifecycle.label
    assert row.decoded_state()["undone"] == [2, 1, 0], row.decoded_state()


def _rpc(row: Any, output: Any, sent: list[Any]) -> None:
    _output("done")(row, output, sent)
    assert not row.messages, row.messages


WORKFLOWS: dict[str, Expect] = {
    "steps": Expect(steps, check=_output([0, 1, 2, 3])),
    "worker_loop": Expect(worker_loop, messages=True, check=_got_all),
    "batches": Expect(batches, messages=True, check=_got_all),
    "naps": Expect(naps, check=_output("rested")),
    "together": Expect(together, check=_together),
    "retries": Expect(retries, check=_output(["ok", "critical", (True, 2)])),
    "saga": Expect(saga, check=_saga),
    "rpc": Expect(rpc, messages=True, check=_rpc),
    "self_sender": Expect(self_sender, check=_output([0, 1, 2])),
    "atomic": Expect(atomic, check=_four),
    "deadline": Expect(
        deadline,
        messages=True,
        check=lambda row, output, sent: _output("approved" if output == "approved" else "expired")(
            row, output, sent
        ),
    ),
}
