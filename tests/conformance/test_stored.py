"""What is stored, to the letter: a release must read what an older one has written, and others read it too (the
inspector, the client's edits). A change of ``stored.txt`` other than an addition needs a way for what is there."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from rivet_workflows.engine import Loop
from rivet_workflows.exceptions import ChildFailed, MessageNotCompleted, QueueTimeout
from rivet_workflows.records import Entry
from tests.conformance.conftest import Drive
from tests.engine.driver import START, Driver
from tests.engine.steps import echo

STORED = Path(__file__).with_name("stored.txt")
LOST = {"error": {"type": "shop.Lost", "message": "gone"}}


def undo(_step: Any, _output: Any) -> None:
    """Nothing was done."""


async def count(it: Any, state: int) -> Loop:
    await it.sleep("z", 1)
    return Loop.stop("over") if state else Loop.next(state + 1)


async def calls(ctx: Any) -> list[Any]:
    seen: list[Any] = [await ctx.get_version("gate", 3)]
    await ctx.removed("old", "step")
    await ctx.rollback_checkpoint("cp")
    seen.append(await ctx.step("charge", echo, 7, rollback=undo))
    seen.append(await ctx.step("charge", echo, "again", kwargs={}))
    seen.append((await ctx.try_step("refused", echo, max_retries=1)).failure.kind)
    await ctx.sleep("nap", 60)
    message = await ctx.queue.next("order", names=["a", "b", "a"], timeout=60, completable=True)
    try:
        await ctx.queue.next("early")
    except MessageNotCompleted:
        await message.complete("thanks")
    seen += [m.body for m in await ctx.queue.next_batch("more", count=3)]
    try:
        await ctx.queue.next("none", names="never", timeout=1)
    except QueueTimeout:
        await ctx.queue.send("b", {"n": 1})
    seen.append(await ctx.child("ship", "Ship", ("eu", 5), input=[1]))
    try:
        await ctx.child("lost", "Ship", 6)
    except ChildFailed as exc:
        seen.append(str(exc))
    return seen


async def scopes(ctx: Any) -> list[Any]:
    seen: list[Any] = [
        await ctx.join("both", {"a": lambda b: b.step("s", echo, 1), "b": lambda b: b.sleep("z", 1)}),
        await ctx.race("first", slow=lambda b: b.sleep("z", 9), quick=lambda b: b.sleep("z", 1)),
        await ctx.map("each", lambda b, item: b.sleep("z", item), [1, 2, 1], concurrency=2),
        (await ctx.try_block("guarded", lambda b: b.step("s", echo, max_retries=0))).failure.name,
    ]
    async for it in ctx.loop("native", state={"n": 0}, history_prune_interval=2, history_size=1):
        await it.sleep("z", 1)
        it.loop_state = {"n": it.iteration + 1}
        if it.iteration == 4:
            break
    seen.append(await ctx.loop("called", count, state=0))
    return [json.loads(json.dumps(each, default=lambda outcome: outcome.winner)) for each in seen]


async def rolled_back(ctx: Any) -> None:
    await ctx.rollback_checkpoint("cp")
    await ctx.step("first", echo, 1, rollback=undo)
    await ctx.step("second", echo, 2, rollback=undo)
    await ctx.step("third", echo, max_retries=0)


class Told:
    """The story of some runs: what was stored after each thing that happened."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self._rows: dict[int, str] = {}

    def start(self, name: str) -> None:
        self.lines += ["", f"# {name}"]
        self._rows = {}

    def add(self, what: str, driver: Driver) -> None:
        self.lines += [f"== {what}", plain(driver.inflight)]
        rows = {row.seq: self._row(row) for row in driver.entries()}
        self.lines += [f"- seq={seq}" for seq in self._rows if seq not in rows]
        self.lines += [f"+ {text}" for seq, text in rows.items() if self._rows.get(seq) != text]
        self._rows = rows
        if driver.outcome is not None:
            self.lines.append(f"{driver.outcome.lifecycle.label}: {driver.outcome.output}")

    def _row(self, row: Entry) -> str:
        shown = {name: getattr(row, name) for name in Entry.__dataclass_fields__}
        shown |= {"kind": row.kind.label, "status": row.status.label}
        return " ".join(f"{name}={plain(value)}" for name, value in shown.items() if value not in (None, ""))


def plain(value: Any) -> str:
    """As people read it: seconds from the start, and of errors not what is Python's own."""

    def strip(data: Any) -> Any:
        if isinstance(data, dict):
            return {key: strip(part) for key, part in data.items() if key not in ("traceback", "bases")}
        if isinstance(data, str) and data.startswith("{"):
            return strip(json.loads(data))
        return [strip(part) for part in data] if isinstance(data, list) else data

    text = str(value)
    if text.startswith(("{", "[")):
        text = json.dumps(strip(json.loads(text)))
    return re.sub(r"\b18\d{14}\b", lambda time: f"T+{(int(time[0]) - START) / 1_000_000:g}", text)


def test_what_is_stored_stays_as_it_is(drive: Drive) -> None:
    told = Told()

    told.start("calls")
    driver = drive(calls, auto=False)
    driver.fail_next = {"refused": [ValueError("no"), KeyError("k")]}
    told.add("a step runs", driver)
    for step in ("charge", "charge", "refused"):
        driver.finish(step).settle()
    told.add("a step will be tried again", driver)
    driver.advance(1)
    driver.finish("refused").settle()
    told.add("a sleep", driver)
    driver.advance(60)
    told.add("a wait with a timeout", driver)
    driver.send("b", {"x": 1})
    told.add("a wait", driver)
    driver.send("c", 2)
    told.add("one that times out", driver)
    driver.advance(2)
    told.add("a child", driver)
    driver.child_done(next(iter(driver.children)), "parcel")
    driver.child_done(next(iter(driver.children)), error=LOST)
    told.add("the end", driver)

    told.start("scopes")
    driver = drive(scopes, auto=False)
    told.add("a join", driver)
    driver.finish("s").settle().advance(1)
    told.add("a race", driver)
    driver.advance(1)
    told.add("a map", driver)
    driver.advance(1)
    told.add("its third item", driver)
    driver.advance(1)
    told.add("a block", driver)
    driver.finish("s", error=ValueError("no")).settle()
    told.add("a loop", driver)
    driver.advance(4)
    told.add("its last iteration", driver)
    driver.advance(1)
    told.add("a loop with a function", driver)
    driver.advance(2)
    told.add("the end", driver)

    told.start("rollback")
    driver = drive(rolled_back, find_handler=lambda _path: undo, auto=False)
    for step in ("first", "second"):
        driver.finish(step).settle()
    driver.finish("third", error=ValueError("no")).settle()
    told.add("a rollback", driver)
    driver.finish("second", error=KeyError("closed")).settle()
    told.add("a handler will be tried again", driver)
    driver.advance(1)
    driver.finish("second").settle()
    told.add("the next handler", driver)
    driver.finish("first").settle()
    told.add("the end", driver)

    assert "\n".join(told.lines[1:]) + "\n" == STORED.read_text()
