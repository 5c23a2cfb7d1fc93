"""What control operations write, met again by the engine: recover, replay_from, skip (D-19, D-20)."""

from __future__ import annotations

import uuid
from types import SimpleNamespace
from typing import Any

import pytest

from rivet_workflows.client import edits
from rivet_workflows.exceptions import JoinError
from rivet_workflows.records import Blocked, Lifecycle
from tests.engine.driver import Driver
from tests.engine.steps import Ledger, echo


@pytest.fixture(params=[False, True], ids=["parked", "replayed"])
def replay(request: pytest.FixtureRequest) -> Any:
    return request.param


def stored(driver: Driver) -> Any:
    lifecycle = Lifecycle.LIVE if driver.outcome is None else driver.outcome.lifecycle
    blocked = Blocked.NO if driver.outcome is None else Blocked.OVER
    if driver.set_aside is not None:
        lifecycle, blocked = Lifecycle.SET_ASIDE, driver.set_aside.reason
    return SimpleNamespace(
        actor_id=uuid.uuid4(),
        inflight=driver.inflight,
        next_seq=driver.next_seq,
        blocked=blocked,
        lifecycle=lifecycle,
    )


def apply(driver: Driver, edit: Any, first: int | None = None) -> Driver:
    gone = set(edit.delete_seqs)
    rows = [r for r in driver.rows if r.seq not in gone and (first is None or r.seq < first)]
    rows = [r for r in rows if r.seq not in {new.seq for new in edit.rows}] + list(edit.rows)
    inflight = driver.inflight if edit.inflight is None else edit.inflight
    return driver.control(inflight, rows, edit.next_seq or driver.next_seq)


def recover(driver: Driver) -> Driver:
    edit = edits.recover(stored(driver), driver.rows, driver.now)
    assert edit is not None
    return apply(driver, edit)


def replay_from(driver: Driver, seq: int | None) -> Driver:
    found = edits.replay_from(stored(driver), driver.rows, seq, driver.now)
    assert found is not None
    return apply(driver, found[1], found[0])


async def nested(ctx: Any) -> Any:
    await ctx.step("first", echo)

    async def branch(b: Any) -> Any:
        async for it in b.loop("l"):
            await it.step("ok", echo, it.iteration)
            if it.iteration == 2:
                return await it.step("bad", echo, "done", max_retries=1)
        return None

    handled = await ctx.try_step("handled", echo, max_retries=0)
    got = await ctx.join("j", a=branch, b=lambda b: b.step("other", echo, 2))
    return handled.ok, got


def test_recover_tries_again_what_broke_the_run_and_nothing_else(replay: bool) -> None:
    driver = Driver(nested, replay=replay)
    driver.fail_next = {"bad": [ValueError(str(i)) for i in range(3)], "handled": [ValueError()]}
    driver.start().advance(1)
    assert isinstance(driver.error, JoinError)
    seq, started = driver.row("bad").seq, len(driver.started)
    recover(driver)
    assert driver.outcome is None  # R-RECOVER-03: a full number of attempts, of which one has failed
    assert driver.opened("bad")["s"] == seq
    driver.advance(1)
    assert driver.output == (False, {"a": "done", "b": 2})
    assert driver.started[started:] == ["bad", "bad"]


def test_recover_of_a_poisoned_step(replay: bool) -> None:
    async def run(ctx: Any) -> Any:
        return await ctx.step("a", echo, 1)

    driver = Driver(run, replay=replay, auto=False).start()
    while driver.set_aside is None:
        driver.crash()
    assert driver.set_aside.reason is Blocked.POISONED
    driver.auto = True
    assert recover(driver).output == 1


def test_recover_of_a_diverged_run_changes_nothing(replay: bool) -> None:
    async def old(ctx: Any) -> Any:
        await ctx.step("a", echo)
        await ctx.sleep("z", 1)
        return "old"

    async def new(ctx: Any) -> Any:
        await ctx.step("b", echo)

    driver = Driver(old, replay=replay).start()
    before = driver.inflight
    driver.deploy(new)
    assert driver.set_aside.reason is Blocked.DIVERGED
    driver.run = old
    recover(driver)
    assert driver.inflight.replace('"z":1', '"z":0') == before.replace('"z":1', '"z":0')
    assert driver.advance(1).output == "old"


async def three(ctx: Any) -> Any:
    one = await ctx.step("one", ledger.write, "one")
    await ctx.sleep("z", 1)
    async for it in ctx.loop("l", state=0):
        await it.step("a", ledger.write, f"a{it.iteration}")
        await it.step("b", ledger.write, f"b{it.iteration}")
        it.loop_state += 1
        if it.iteration == 3:
            break
    return one, it.loop_state  # type: ignore[possibly-undefined]


ledger = Ledger()


@pytest.mark.parametrize(
    ("target", "again"),
    [
        ("one", ["one", *(f"{c}{i}" for i in range(4) for c in "ab")]),
        ("z", [f"{c}{i}" for i in range(4) for c in "ab"]),
        ("last a", ["a3", "b3"]),
        ("last b", ["a3", "b3"]),
        ("first a", [f"{c}{i}" for i in range(4) for c in "ab"]),
        (None, ["one", *(f"{c}{i}" for i in range(4) for c in "ab")]),
    ],
)
def test_d_20_replay_from(replay: bool, target: str | None, again: list[str]) -> None:
    ledger.lines.clear()
    driver = Driver(three, replay=replay).start().advance(1)
    first = driver.output
    named = [row for row in driver.entries() if target and row.name == target.split()[-1]]
    seq = None if target is None else named[-1 if target.startswith("last") else 0].seq
    ledger.lines.clear()
    replay_from(driver, seq).advance(1)
    assert driver.output == first
    assert ledger.lines == again


def test_skip_gives_the_step_a_result(replay: bool) -> None:
    driver = Driver(nested, replay=replay)
    driver.fail_next = {"bad": [ValueError(str(i)) for i in range(2)]}
    driver.start().advance(1)
    row = driver.row("bad")
    edit = edits.skip(stored(driver), driver.rows, row.seq, '"given"', driver.now)
    assert edit is not None
    assert apply(driver, edit).output == (True, {"a": "given", "b": 2})
