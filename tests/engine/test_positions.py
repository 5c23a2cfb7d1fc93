"""recover, replay_from and skip: what they make of a position, run on by the engine."""

from __future__ import annotations

from typing import Any

import pytest

from rivet_workflows.engine import positions
from rivet_workflows.exceptions import StepFailed
from tests.engine.driver import Driver

broken = {"yes": True}


def one(step: Any, n: int = 1) -> int:
    return n


def fragile(step: Any) -> str:
    if broken["yes"]:
        raise ValueError("broken")
    return "whole"


@pytest.fixture(autouse=True)
def _broken() -> None:
    broken["yes"] = True


def apply(driver: Driver, made: Any) -> Driver:
    gone = set(made.delete)
    written = {row.seq for row in made.rows}
    driver.rows = [
        row
        for row in driver.rows
        if row.seq not in gone | written and (made.delete_from is None or row.seq < made.delete_from)
    ] + made.rows
    driver.queue = sorted([*driver.queue, *made.give_back], key=lambda m: m.id)
    driver.inflight = made.inflight
    if made.next_seq is not None:
        driver.next_seq = made.next_seq
    driver.outcome = driver.set_aside = None
    driver.started.clear()
    return driver.start()


async def simple(ctx: Any) -> list[Any]:
    first = await ctx.step("one", one)
    return [first, await ctx.step("fragile", fragile, max_retries=0), await ctx.step("last", one, 9)]


def test_recover_runs_the_failed_step_again_under_its_own_seq_and_nothing_before_it():
    driver = Driver(simple).start()
    assert driver.outcome.error
    seq = next(r.seq for r in driver.rows if r.name == "fragile")
    broken["yes"] = False
    apply(driver, positions.recover(driver.inflight, driver.rows))
    assert driver.output == [1, "whole", 9]
    assert driver.started == ["fragile", "last"]
    assert next(r.seq for r in driver.rows if r.name == "fragile") == seq


async def nested(ctx: Any) -> Any:
    async def good(b: Any) -> Any:
        return await b.step("good", one)

    async def bad(b: Any) -> Any:
        async for it in b.loop("loop"):
            await it.step("before", one, it.iteration)
            if it.iteration == 1:
                return await it.step("fragile", fragile, max_retries=0)
        return None

    return await ctx.join("both", good=good, bad=bad)


def test_recover_opens_failed_branches_and_the_loops_in_them_where_they_stood():
    driver = Driver(nested).start()
    assert driver.outcome.error
    broken["yes"] = False
    apply(driver, positions.recover(driver.inflight, driver.rows))
    assert driver.output == {"good": 1, "bad": "whole"}
    assert driver.started == ["fragile"]


async def handled(ctx: Any) -> Any:
    try:
        await ctx.step("fragile", fragile, max_retries=0)
    except StepFailed:
        await ctx.step("instead", one)
    tried = await ctx.try_step("tried", fragile, max_retries=0)
    await ctx.step("after", one)
    await ctx.step("last", fragile, max_retries=0)
    return tried.ok


def test_recover_leaves_failures_that_were_handled_as_they_are():
    driver = Driver(handled).start()
    broken["yes"] = False
    apply(driver, positions.recover(driver.inflight, driver.rows))
    assert driver.output is False
    assert driver.started == ["last"]


def test_replay_from_runs_the_entry_and_all_later_ones_again_and_keeps_what_was_before():
    async def run(ctx: Any) -> Any:
        a = await ctx.step("a", one, 1)
        await ctx.sleep("nap", 0)
        b = await ctx.step("b", one, 2)
        return [a, b, await ctx.step("c", one, 3)]

    driver = Driver(run).start()
    b = next(r for r in driver.rows if r.name == "b")
    apply(driver, positions.replay_from(driver.inflight, driver.rows, b.seq))
    assert driver.output == [1, 2, 3]
    assert driver.started == ["b", "c"]
    assert next(r.seq for r in driver.rows if r.name == "b") > b.seq, (
        "a new entry, with a new idempotency key"
    )


def test_replay_from_gives_back_messages_of_entries_that_go():
    async def run(ctx: Any) -> Any:
        first = (await ctx.queue.next("wait")).body
        await ctx.step("a", one)
        return [first, (await ctx.queue.next("wait")).body, await ctx.step("b", one)]

    driver = Driver(run).start()
    for body in ({"n": 1}, {"n": 2}, {"n": 3}):
        driver.send("q", body)
    second = [r for r in driver.rows if r.name == "wait"][1]
    apply(driver, positions.replay_from(driver.inflight, driver.rows, second.seq))
    assert driver.output == [{"n": 1}, {"n": 2}, 1]
    apply(driver, positions.replay_from(driver.inflight, driver.rows, None))
    assert driver.output == [{"n": 1}, {"n": 2}, 1]
    assert driver.started == ["a", "b"]


def test_replay_inside_a_loop_goes_back_to_the_iteration_whose_state_is_kept_else_to_the_loop():
    async def run(ctx: Any) -> Any:
        async for it in ctx.loop("loop", state=0):
            await it.step("x", one, it.iteration)
            await it.step("y", one, it.iteration)
            it.loop_state += 1
            if it.iteration == 3:
                return it.loop_state
        return None

    driver = Driver(run).start()
    last = [r for r in driver.rows if r.name == "y"][-1]
    apply(driver, positions.replay_from(driver.inflight, driver.rows, last.seq))
    assert driver.output == 4
    assert driver.started == ["x", "y"]
    early = next(r for r in driver.rows if r.name == "y")
    apply(driver, positions.replay_from(driver.inflight, driver.rows, early.seq))
    assert driver.output == 4
    assert driver.started == ["x", "y"] * 4


def test_skip_records_a_result_for_a_failed_step_and_runs_on():
    driver = Driver(simple).start()
    seq = next(r.seq for r in driver.rows if r.name == "fragile")
    made = positions.skip(driver.inflight, driver.rows, seq, '"by hand"', driver.now, driver.next_seq)
    apply(driver, made)
    assert driver.output == [1, "by hand", 9]
    assert driver.started == ["last"]


def test_skip_records_a_result_for_a_step_in_backoff_and_in_a_failed_branch():
    async def run(ctx: Any) -> Any:
        return await ctx.step("fragile", fragile, retry_backoff_base=100)

    driver = Driver(run).start()
    made = positions.skip(driver.inflight, driver.rows, 1, "7", driver.now, driver.next_seq)
    apply(driver, made)
    assert driver.output == 7
    driver = Driver(nested).start()
    seq = next(r.seq for r in driver.rows if r.name == "fragile")
    apply(driver, positions.skip(driver.inflight, driver.rows, seq, "8", driver.now, driver.next_seq))
    assert driver.output == {"good": 1, "bad": 8}


def test_skip_is_for_steps_that_have_no_result():
    driver = Driver(simple).start()
    seq = next(r.seq for r in driver.rows if r.name == "one")
    assert positions.skip(driver.inflight, driver.rows, seq, "1", driver.now, driver.next_seq) is None
