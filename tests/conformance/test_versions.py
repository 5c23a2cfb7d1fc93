"""Changed code that says so: R-REM, R-VER, D-03, D-04."""

from __future__ import annotations

from typing import Any

import pytest

from rivet_workflows.engine import Loop
from rivet_workflows.records import EntryStatus, Kind, Lifecycle
from tests.conformance.conftest import Drive
from tests.engine.steps import Ledger, echo, old

# -- removed -----------------------------------------------------------------------------------------


def test_r_div_12_d_03_new_step_before_removed(drive: Drive) -> None:
    ledger = Ledger()

    async def new(ctx: Any) -> Any:
        await ctx.step("validate-v2", ledger.write, 2)
        await ctx.removed("first", "step")
        await ctx.removed("z", "sleep")
        await ctx.sleep("new-z", 1)
        return "new"

    driver = drive(old).deploy(new).crash().advance(1)
    assert driver.output == "new"
    assert ledger.lines == [2]
    driver = drive(new).crash().advance(1)  # a fresh instance
    assert driver.row("first").status is EntryStatus.REMOVED
    assert driver.output == "new"


def test_r_rem_03_04_05(drive: Drive) -> None:
    async def other_kind(ctx: Any) -> Any:
        await ctx.removed("first", "sleep")

    async def used_again(ctx: Any) -> Any:
        await ctx.removed("new", "step")
        await ctx.step("new", echo)

    driver = drive(old).deploy(other_kind)
    assert "holds a step" in driver.set_aside.error.message
    assert "removed" in drive(used_again).set_aside.error.message

    async def bad(ctx: Any) -> Any:
        with pytest.raises(ValueError, match="one of"):
            ctx.removed("x", "steps")

    assert drive(bad).outcome.lifecycle is Lifecycle.COMPLETED


def test_placeholders_are_no_obstacle_once_removed_is_dropped(drive: Drive) -> None:
    async def middle(ctx: Any) -> Any:
        await ctx.removed("first", "step")
        await ctx.sleep("z", 1)

    async def newest(ctx: Any) -> Any:
        await ctx.sleep("z", 1)
        return await ctx.step("end", echo, 1)

    assert drive(middle).deploy(newest).advance(1).output == 1


async def _drain(ctx: Any) -> Any:
    got = [await ctx.queue.next_batch("wait-work", timeout=0) for _ in range(3)]
    await ctx.sleep("z", 1)
    return len(got)


@pytest.mark.parametrize("which", ["wait-work", "wait-work#2"])
def test_d_04_removed_names_all_occurrences_or_one(drive: Drive, which: str) -> None:
    async def all_gone(ctx: Any) -> Any:
        await ctx.removed("wait-work", "message")
        await ctx.sleep("z", 1)
        return 0

    async def one_gone(ctx: Any) -> Any:
        await ctx.removed("wait-work#2", "message")
        got = [await ctx.queue.next_batch("wait-work", timeout=0) for _ in range(2)]
        await ctx.sleep("z", 1)
        return len(got)

    new = one_gone if "#" in which else all_gone
    expected = 2 if "#" in which else 0
    assert drive(_drain).deploy(new).crash().advance(1).output == expected
    assert drive(new).crash().advance(1).output == expected


def test_d_04_what_the_class_declares_removed_waits_no_more_once_its_scope_ends(drive: Drive) -> None:
    async def old(ctx: Any) -> Any:
        async for it in ctx.loop("l"):
            await it.step("a", echo)
            await it.sleep("z", 60)

    async def new(ctx: Any) -> Any:
        async for it in ctx.loop("l"):
            await it.step("a", echo)
            if it.iteration == 1:
                await it.queue.next("m")

    driver = drive(old).deploy(new, removed={"z": "sleep"})
    assert driver.machine.next_due is None
    assert driver.row("z").status is EntryStatus.REMOVED
    assert {rec["n"] for rec in driver.machine.open.values()} == {"l", "m"}


def test_d_04_removed_ahead_in_a_method_of_the_actor(drive: Drive) -> None:
    class Flow:
        async def run(self, ctx: Any) -> Any:
            got = await ctx.step("new", echo, "new")
            await self.clean(ctx)
            return got

        async def clean(self, ctx: Any) -> Any:
            await ctx.removed("first", "step")
            await ctx.removed("z", "sleep")

    assert drive(old).deploy(Flow().run, owner=Flow).output == "new"


def test_d_04_removed_may_have_a_sign_of_numbers_in_the_name(drive: Drive) -> None:
    async def old(ctx: Any) -> Any:
        await ctx.step("a#b", echo)
        await ctx.step("#2", echo)
        await ctx.step("kept#", echo)
        await ctx.step("kept#", echo)
        await ctx.sleep("z", 1)

    second = "kept##2"  # no literal at the call: nothing is known of it ahead

    async def new(ctx: Any) -> Any:
        await ctx.removed("a#b", "step")
        await ctx.removed("#2", "step")
        await ctx.step("kept#", echo)
        await ctx.removed(second, "step")
        await ctx.sleep("z", 1)
        return "fine"

    assert drive(old).deploy(new).advance(1).output == "fine"


def test_d_04_removed_after_a_call_of_that_name_is_about_the_later_ones(drive: Drive) -> None:
    async def run(ctx: Any) -> Any:
        await ctx.step("a", echo)
        await ctx.removed("a", "step")
        await ctx.sleep("z", 1)
        return "fine"

    assert drive(run).crash().advance(1).output == "fine"


@pytest.mark.parametrize("gone", ["m", "other"])
def test_r_rem_a_wait_gives_back_what_it_holds_and_no_other_entry_does(drive: Drive, gone: str) -> None:
    async def run(ctx: Any) -> Any:
        for name in ("other", "m"):
            if name == removed:
                await ctx.removed(name, "message" if name == "m" else "step")
            elif name == "m":
                await ctx.queue.next("m", completable=True)
            else:
                await ctx.step("other", echo)
        await ctx.sleep("z", 60)

    removed = ""
    driver = drive(run)
    number = driver.send("q")
    assert driver.holders.keys() == {number}
    removed = gone
    driver.crash()
    assert driver.set_aside is None
    assert driver.holders.keys() == (set() if gone == "m" else {number})


def test_d_04_removed_on_the_class(drive: Drive) -> None:
    async def new(ctx: Any) -> Any:
        await ctx.sleep("z", 1)
        return await ctx.step("end", echo, 1)

    assert drive(old).deploy(new, removed={"first": "step"}).advance(1).output == 1
    assert drive(old).deploy(new, removed={"first": "sleep"}).advance(1).set_aside is not None


def test_r_rem_07_removing_an_open_join_gives_up_what_is_in_it(drive: Drive) -> None:
    async def old(ctx: Any) -> Any:
        async def holder(b: Any) -> Any:
            message = await b.queue.next("m", completable=True)
            await b.sleep("long", 50)
            await message.complete()

        await ctx.join("j", a=holder, b=lambda b: b.step("slow", echo))

    async def new(ctx: Any) -> Any:
        await ctx.removed("j", "join")
        return (await ctx.queue.next("m")).body

    driver = drive(old, auto=False)
    driver.send("q", "kept")
    assert driver.holders
    driver.deploy(new)
    assert driver.output == "kept"
    assert driver.row("j").kind is Kind.REMOVED
    assert driver.row("j").input == '"join"'  # what it was


def test_r_rem_open_wait_removed(drive: Drive) -> None:
    async def new(ctx: Any) -> Any:
        await ctx.step("first", echo, 1)
        await ctx.removed("z", "sleep")
        await ctx.queue.next("m")

    driver = drive(old).deploy(new)
    assert driver.machine.next_due is None
    assert driver.row("z").status is EntryStatus.REMOVED


# -- version gates -----------------------------------------------------------------------------------


@pytest.mark.parametrize("bad", [0, -1, 1.5, float("nan"), "2", True, None])
def test_r_ver_01(drive: Drive, bad: Any) -> None:
    async def run(ctx: Any) -> Any:
        with pytest.raises(ValueError, match="gate"):
            ctx.get_version("gate", bad)

    assert drive(run).outcome.lifecycle is Lifecycle.COMPLETED


def test_r_ver_02_03_04(drive: Drive) -> None:
    latest = [2]

    async def gated(ctx: Any) -> Any:
        before = await ctx.get_version("before", latest[0])
        await ctx.step("first", echo, 1)
        await ctx.sleep("z", 1)
        return before, await ctx.get_version("after", latest[0])

    driver = drive(old).deploy(gated)
    latest[0] = 5
    assert driver.crash().advance(1).output == (1, 5)
    driver = drive(gated)
    latest[0] = 9
    assert driver.crash().advance(1).output == (5, 9)


def test_r_ver_05_gates_in_loops_across_deploys(drive: Drive) -> None:
    async def old(ctx: Any) -> Any:
        async for it in ctx.loop("l"):
            await it.step("a", echo, it.iteration)
            await it.sleep("z", 1)

    async def new(ctx: Any) -> Any:
        versions = []
        async for it in ctx.loop("l", state=None):
            version = await it.get_version("g", 2)
            await it.step("a" if version == 1 else "a2", echo, it.iteration)
            await it.sleep("z", 1)
            it.loop_state = [*(it.loop_state or []), version]
            versions = it.loop_state
            if it.iteration == 3:
                break
        return versions

    driver = drive(old).advance(1).deploy(new).crash()
    driver.advance(1).crash().advance(2)
    assert driver.output == [1, 2, 2]


@pytest.mark.parametrize("form", ["callable", "native", "join", "race", "try"])
def test_r_ver_09_d_04_a_gate_after_something_finished(drive: Drive, form: str) -> None:
    async def run(ctx: Any) -> Any:
        async def body(c: Any) -> Any:
            await c.step("in", echo)
            return Loop.stop()

        if form == "callable":
            await ctx.loop("x", body)
        elif form == "native":
            async for it in ctx.loop("x"):
                await it.step("in", echo)
                if it.iteration == 3:
                    break
        elif form == "join":
            await ctx.join("x", a=body)
        elif form == "race":
            await ctx.race("x", a=body)
        else:
            await ctx.try_block("x", body)
        await ctx.sleep("z", 1)
        return await ctx.get_version("g", 3)

    assert drive(run).crash().advance(1).output == 3


@pytest.mark.parametrize("form", ["join", "native", "try"])
def test_a_new_gate_inside_something_finished_is_1(drive: Drive, form: str) -> None:
    gated = [False]

    async def run(ctx: Any) -> Any:
        async def body(c: Any) -> Any:
            await c.step("in", echo)
            if gated[0] and await c.get_version("g", 2) == 2:
                await c.step("more", echo)

        if form == "join":
            await ctx.join("x", a=body)
        elif form == "try":
            await ctx.try_block("x", body)
        else:
            async for it in ctx.loop("x"):
                await body(it)
                break
        await ctx.sleep("z", 1)
        return "fine"

    driver = drive(run)
    gated[0] = True
    assert driver.crash().evict().advance(1).output == "fine"
    assert "more" not in driver.started


def test_d_04_a_gate_looks_at_its_enclosing_scopes(drive: Drive) -> None:
    async def new(ctx: Any) -> Any:
        async def body(b: Any) -> Any:
            return await b.get_version("g", 2)

        gate = await ctx.get_version("block", 2)
        if gate == 2:
            await ctx.try_block("t", body)
        await ctx.step("first", echo, 1)
        await ctx.sleep("z", 1)
        return gate

    assert drive(old).deploy(new).advance(1).output == 1


def test_r_ver_06_07_08(drive: Drive) -> None:
    async def twice(ctx: Any) -> Any:
        await ctx.get_version("g", 1)
        await ctx.get_version("g", 1)

    async def gated(ctx: Any) -> Any:
        await ctx.get_version("g", 2)
        await ctx.sleep("z", 1)

    async def retired(ctx: Any) -> Any:
        await ctx.removed("g", "version_check")
        await ctx.sleep("z", 1)

    async def step_there(ctx: Any) -> Any:
        await ctx.get_version("first", 2)

    assert "duplicate" in drive(twice).set_aside.error.message
    assert drive(gated).deploy(retired).advance(1).outcome.lifecycle is Lifecycle.COMPLETED
    assert "recorded as a step" in drive(old).deploy(step_there).set_aside.error.message
