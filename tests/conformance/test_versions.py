"""Changed code: R-LOC, R-DIV, R-REM, R-VER, R-EIP, D-01, D-03, D-04, D-09; BR-055, BR-056."""

from __future__ import annotations

import asyncio
import functools
from typing import Any

import pytest

from rivet_workflows.engine import Limits, Loop
from rivet_workflows.exceptions import EntryInProgress, NotReplaySafe
from rivet_workflows.records import Blocked, EntryStatus, Kind, Lifecycle
from tests.conformance.conftest import Drive
from tests.engine.driver import Driver
from tests.engine.steps import Ledger, echo


def wait(name: str = "z") -> Any:
    return lambda c: c.sleep(name, 1)


# -- locations and names -----------------------------------------------------------------------------


def test_d_01_repeated_names_are_numbered(drive: Drive) -> None:
    async def run(ctx: Any) -> Any:
        return [await ctx.step("a", echo, i) for i in range(3)]

    driver = drive(run)
    assert driver.output == [0, 1, 2]
    assert [row.occurrence for row in driver.entries()] == [1, 2, 3]


def test_r_loc_04_r_div_01_unique_names(drive: Drive) -> None:
    async def run(ctx: Any) -> Any:
        await ctx.step("a", echo)
        await ctx.sleep("a", 1)

    assert "duplicate" in drive(run, unique_names=True).set_aside.error.message
    assert drive(run).advance(1).outcome.lifecycle is Lifecycle.COMPLETED


def test_r_loc_05_09_no_name_can_collide(drive: Drive) -> None:
    async def run(ctx: Any) -> Any:
        one = await ctx.step("a/b", echo, 1)
        two = await ctx.try_block("a", lambda b: b.step("b", echo, 2))
        three = await ctx.step("x:count", echo, 3)
        await ctx.queue.next_batch("x", timeout=0)
        four = await ctx.step("a#2", echo, 4)
        return one, two.value, three, four, await ctx.step("a", echo, 5), await ctx.step("a", echo, 6)

    assert drive(run).output == (1, 2, 3, 4, 5, 6)


def test_d_01_a_scope_is_bounded(drive: Drive) -> None:
    async def run(ctx: Any) -> Any:
        while True:
            await ctx.step("a", echo)

    driver = drive(run, limits=Limits(max_scope_entries=10))
    assert "ctx.loop" in driver.error.error.message
    assert len(driver.started) == 10


def test_names_are_checked(drive: Drive) -> None:
    async def run(ctx: Any) -> Any:
        for bad in ("", None, 5, "n" * 300):
            with pytest.raises((TypeError, ValueError)):
                ctx.sleep(bad, 1)
        with pytest.raises(TypeError, match=r"^a try needs a name: a non-empty str, not 5"):
            ctx.try_block(5, wait())
        with pytest.raises(TypeError, match=r"^a try needs a name: a non-empty str, not ''"):
            ctx.try_block("", wait())
        return 1

    assert drive(run).output == 1


# -- divergence --------------------------------------------------------------------------------------


async def _old(ctx: Any) -> Any:
    await ctx.step("first", echo, 1)
    await ctx.sleep("z", 1)
    return "old"


@pytest.mark.parametrize(
    "kind", ["step", "sleep", "message", "join", "race", "map", "loop", "try", "send", "child"]
)
def test_br_055_d_03_nothing_new_runs_on_a_history_that_does_not_fit(drive: Drive, kind: str) -> None:
    ledger = Ledger()

    async def body(c: Any, *_: Any) -> Any:
        await c.step("inside", ledger.write, "ran")
        return Loop.stop()

    async def new(ctx: Any) -> Any:
        await {
            "step": lambda: ctx.step("renamed", ledger.write),
            "sleep": lambda: ctx.sleep("renamed", 5),
            "message": lambda: ctx.queue.next("renamed"),
            "join": lambda: ctx.join("renamed", a=body),
            "race": lambda: ctx.race("renamed", a=body),
            "map": lambda: ctx.map("renamed", body, [1]),
            "loop": lambda: ctx.loop("renamed", body),
            "try": lambda: ctx.try_block("renamed", body),
            "send": lambda: ctx.queue.send("renamed", 1),
            "child": lambda: ctx.child("renamed", "x", "k"),
        }[kind]()

    driver = drive(_old)
    before = (driver.inflight, driver.next_seq, driver.names())
    driver.drop("q", 1)
    driver.deploy(new)
    assert driver.set_aside.reason is Blocked.DIVERGED
    for name in ("renamed", "first"):  # D-03: the call met, and the entry recorded
        assert name in driver.set_aside.error.message
    assert "removed" in driver.set_aside.error.message
    assert (driver.next_seq, driver.names()) == before[1:]
    assert len(driver.queue) == 1
    assert ledger.lines == []
    assert driver.outcome is None
    driver.deploy(_old).advance(1)  # restoring the code lets it go on
    assert driver.output == "old"


def test_br_055_r_div_11_position_stays_to_the_letter_and_fixed_code_goes_on() -> None:
    async def new(ctx: Any) -> Any:
        await ctx.get_version("gate", 2)
        await ctx.step("renamed", echo)

    driver = Driver(_old).start()
    before = (driver.inflight, driver.next_seq, driver.names())
    driver.run = new
    driver.crash()
    assert driver.set_aside.reason is Blocked.DIVERGED
    assert (driver.inflight, driver.next_seq, driver.names()) == before
    driver.deploy(_old).advance(1)
    assert driver.output == "old"


def test_d_03_enclosing_scopes_count(drive: Drive) -> None:
    async def old(ctx: Any) -> Any:
        await ctx.step("first", echo)
        await ctx.sleep("z", 1)

    async def new(ctx: Any) -> Any:
        async for it in ctx.loop("l"):
            await it.step("x", echo)

    driver = drive(old).deploy(new)
    assert driver.set_aside.reason is Blocked.DIVERGED
    assert driver.started == ["first"]


def test_d_03_enclosing_scopes_of_what_is_open_count(drive: Drive) -> None:
    async def old(ctx: Any) -> Any:
        await ctx.step("first", echo)
        await ctx.step("second", echo)
        await ctx.try_block("t", wait())

    async def new(ctx: Any) -> Any:
        async def body(b: Any) -> Any:
            await b.sleep("z", 1)
            await b.step("new", echo)

        await ctx.try_block("t", body)

    driver = drive(old).deploy(new).advance(1)
    assert "while the history holds step 'first' (entry 1) and 1 more that was not" in (
        driver.set_aside.error.message
    )
    assert "new" not in driver.started


def test_d_03_what_is_declared_removed_around_hides_nothing_within(drive: Drive) -> None:
    async def old(ctx: Any) -> Any:
        await ctx.step("gone", echo)
        await ctx.join("j", a=wait())

    async def new(ctx: Any) -> Any:
        await ctx.join("j", a=lambda b: b.step("new", echo))

    driver = drive(old).deploy(new, removed={"gone": "step"})
    assert "while the history holds sleep 'z'" in driver.set_aside.error.message


def test_r_div_11_the_position_stays_also_where_others_were_met_before(drive: Drive) -> None:
    async def old(ctx: Any) -> Any:
        await ctx.join("j", a=lambda b: b.step("s", echo), b=wait())

    async def new(ctx: Any) -> Any:
        await ctx.join("j", a=lambda b: b.step("s", echo), b=lambda b: b.step("z", echo))

    driver = drive(old, auto=False)
    before = driver.inflight, driver.next_seq
    driver.run = new
    assert driver.crash().set_aside.reason is Blocked.DIVERGED
    assert (driver.inflight, driver.next_seq) == before


def test_d_03_a_branch_diverges_while_others_have_just_finished(drive: Drive) -> None:
    async def old(ctx: Any) -> Any:
        async def a(b: Any) -> Any:
            await b.step("a1", echo)
            await b.step("a2", echo)

        await ctx.join("j", a=a, b=lambda b: b.step("b1", echo))

    async def new(ctx: Any) -> Any:
        async def a(b: Any) -> Any:
            await b.step("a2", echo)
            await b.step("a3", echo)

        await ctx.join("j", a=a, b=lambda b: b.step("b1", echo))

    driver = drive(old, auto=False)
    driver.finish("a1")
    driver.deploy(new)
    driver.finish("b1")
    driver.finish("a2")
    assert driver.set_aside.reason is Blocked.DIVERGED
    assert sorted(driver.names()) == ["a1", "a2", "b1"]  # what finished is kept
    driver.deploy(old)
    assert driver.outcome.lifecycle is Lifecycle.COMPLETED
    assert driver.started == ["a1", "b1", "a2"]


def test_r_div_06_the_root_is_checked(drive: Drive) -> None:
    async def new(ctx: Any) -> Any:
        return await ctx.sleep("z", 1)

    driver = drive(_old).deploy(new).advance(1)
    assert "first" in driver.set_aside.error.message
    assert driver.outcome is None


def test_r_div_08_09_order_and_settings_may_change(drive: Drive) -> None:
    async def old(ctx: Any) -> Any:
        await ctx.step("a", echo, 1)
        await ctx.step("b", echo, 2)
        await ctx.sleep("z", 1)

    async def new(ctx: Any) -> Any:
        b = await ctx.step("b", echo, 2, timeout=1, max_retries=9)
        a = await ctx.step("a", echo, 1)
        await ctx.sleep("z", 1)
        return a, b

    assert drive(old).deploy(new).advance(1).output == (1, 2)


@pytest.mark.parametrize("kind", list(Kind), ids=lambda k: k.label)
def test_br_056_r_div_02_every_kind_replays_as_itself(drive: Drive, kind: Kind) -> None:
    async def run(ctx: Any) -> Any:
        async def body(c: Any, *_: Any) -> Any:
            await c.sleep("in", 0)
            return Loop.stop(1)

        await ctx.step("step", echo)
        await ctx.loop("loop", body)
        await ctx.sleep("sleep", 0)
        await ctx.queue.next_batch("message", timeout=0)
        await ctx.rollback_checkpoint("rollback_checkpoint")
        await ctx.join("join", a=body)
        await ctx.race("race", a=body)
        await ctx.removed("removed", "step")
        await ctx.get_version("version_check", 1)
        await ctx.queue.send("send")
        await ctx.map("map", body, [1])
        await ctx.try_block("try", body)
        await ctx.sleep("z", 1)

    driver = drive(run)
    row = next((row for row in driver.rows if row.name == kind.label), None)
    if row is None:
        return  # child is tested with the branches
    assert row.kind is kind
    row.kind = Kind.CHILD
    driver.crash()
    assert driver.set_aside.reason is Blocked.DIVERGED
    assert f"recorded as a {Kind.CHILD.label}" in driver.set_aside.error.message or kind is Kind.REMOVED
    row.kind = kind
    assert driver.deploy(run).advance(1).outcome.lifecycle is Lifecycle.COMPLETED


# -- removed -----------------------------------------------------------------------------------------


def test_r_div_12_d_03_new_step_before_removed(drive: Drive) -> None:
    ledger = Ledger()

    async def new(ctx: Any) -> Any:
        await ctx.step("validate-v2", ledger.write, 2)
        await ctx.removed("first", "step")
        await ctx.removed("z", "sleep")
        await ctx.sleep("new-z", 1)
        return "new"

    driver = drive(_old).deploy(new).crash().advance(1)
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

    driver = drive(_old).deploy(other_kind)
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

    assert drive(_old).deploy(Flow().run, owner=Flow).output == "new"


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

    assert drive(_old).deploy(new, removed={"first": "step"}).advance(1).output == 1
    assert drive(_old).deploy(new, removed={"first": "sleep"}).advance(1).set_aside is not None


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

    driver = drive(_old).deploy(new)
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

    driver = drive(_old).deploy(gated)
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

    assert drive(_old).deploy(new).advance(1).output == 1


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
    assert "recorded as a step" in drive(_old).deploy(step_there).set_aside.error.message


# -- entry in progress, foreign awaits, sticky stopping ----------------------------------------------


@pytest.mark.parametrize(
    "second",
    ["step", "sleep", "loop", "join", "try_block", "rollback_checkpoint", "removed", "get_version", "send"],
)
def test_r_eip_01_a_call_while_another_is_unfinished(drive: Drive, second: str) -> None:
    async def run(ctx: Any) -> Any:
        ctx.step("left", echo)
        {
            "step": lambda: ctx.step("x", echo),
            "sleep": lambda: ctx.sleep("x", 1),
            "loop": lambda: ctx.loop("x"),
            "join": lambda: ctx.join("x"),
            "try_block": lambda: ctx.try_block("x", wait()),
            "rollback_checkpoint": lambda: ctx.rollback_checkpoint("x"),
            "removed": lambda: ctx.removed("x", "step"),
            "get_version": lambda: ctx.get_version("x", 1),
            "send": lambda: ctx.queue.send("x"),
        }[second]()

    driver = drive(run)
    assert driver.error.error.is_a(EntryInProgress.__name__)
    assert "'x' was called while step 'left' on the same context is unfinished" in driver.error.error.message
    assert "await missing" in driver.error.error.message
    assert driver.started == []


@pytest.mark.parametrize("call", ["rollback_checkpoint", "removed"])
def test_r_eip_01_calls_that_never_wait_are_awaited_too(drive: Drive, call: str) -> None:
    async def run(ctx: Any) -> Any:
        ctx.removed("cp", "step") if call == "removed" else ctx.rollback_checkpoint("cp")
        await ctx.step("x", echo)

    text = f"was called while {call} 'cp' on the same context is unfinished"
    assert text in drive(run).error.error.message


def test_r_eip_left_at_the_end(drive: Drive) -> None:
    async def run(ctx: Any) -> Any:
        ctx.step("left", echo)

    assert "'left'" in drive(run).error.error.message


def test_r_eip_the_outer_context_in_a_native_loop(drive: Drive) -> None:
    async def run(ctx: Any) -> Any:
        async for _ in ctx.loop("l"):
            await ctx.step("x", echo)

    driver = drive(run)
    assert driver.error.error.is_a(EntryInProgress.__name__)
    assert driver.started == []


def test_r_eip_a_context_whose_scope_is_over(drive: Drive) -> None:
    async def run(ctx: Any) -> Any:
        async for it in ctx.loop("l"):
            await it.step("x", echo)
            break
        await ctx.sleep("z", 0)
        await it.step("y", echo)

    assert "is over" in drive(run).error.error.message


def test_r_eip_awaited_twice(drive: Drive) -> None:
    async def run(ctx: Any) -> Any:
        call = ctx.step("x", echo)
        await call
        await call

    assert "awaited twice" in drive(run).error.error.message


@pytest.mark.parametrize("form", ["future", "sleep", "gather", "foreign call"])
def test_foreign_awaits_are_refused(drive: Drive, form: str) -> None:
    async def run(ctx: Any) -> Any:
        try:
            if form == "future":
                loop = asyncio.new_event_loop()
                try:
                    await loop.create_future()
                finally:
                    loop.close()
            elif form == "sleep":
                await asyncio.sleep(0)
            elif form == "gather":
                await asyncio.gather(ctx.step("a", echo))
            else:

                async def branch(_b: Any) -> Any:
                    await call

                call = ctx.step("a", echo)
                await ctx.join("j", a=branch)
        except RuntimeError:
            raise

    error = drive(run).error.error
    assert (
        error.is_a(NotReplaySafe.__name__) or "event loop" in error.message or error.is_a("EntryInProgress")
    )


def test_asyncio_in_run_is_named_with_the_mend(drive: Drive) -> None:
    async def sleeps(ctx: Any) -> Any:
        await asyncio.sleep(1)

    async def raises(ctx: Any) -> Any:
        raise RuntimeError("closed")

    error = drive(sleeps).error.error
    assert error.is_a(NotReplaySafe.__name__)
    assert error.message.startswith(
        "run used asyncio (sleep, timeout, create_task, gather, …), which a replay cannot"
    )
    error = drive(raises).error.error
    assert (error.type, error.message) == ("RuntimeError", "closed")


@pytest.mark.parametrize("name", ["state", "vars", "schedule", "cron", "client", "broadcast", "destroy"])
def test_what_belongs_into_steps_is_refused(drive: Drive, name: str) -> None:
    async def run(ctx: Any) -> Any:
        try:
            getattr(ctx, name)()
        except Exception:
            return "never"

    error = drive(run).error.error
    assert error.is_a(NotReplaySafe.__name__)
    call = f"{name}()" if name in ("client", "broadcast", "destroy") else name
    assert error.message.startswith(f"ctx.{call} is not available in run, ")


@pytest.mark.usefixtures("resisting")
@pytest.mark.parametrize(
    "call",
    [
        "step",
        "sleep",
        "next",
        "send",
        "loop",
        "join",
        "rollback_checkpoint",
        "removed",
        "get_version",
        "child",
    ],
)
def test_d_09_stopping_is_sticky_for_every_call(drive: Drive, call: str) -> None:
    """BR-085: code that swallows everything, for ever, does no harm and does not hang."""
    met: list[int] = []

    async def run(ctx: Any) -> Any:
        await ctx.step("a", echo)
        while True:
            try:
                met.append(1)
                if len(met) == 1:
                    await ctx.sleep("z", 5)
                await {
                    "step": lambda: ctx.step("x", echo),
                    "sleep": lambda: ctx.sleep("x", 1),
                    "next": lambda: ctx.queue.next("x"),
                    "send": lambda: ctx.queue.send("x"),
                    "loop": lambda: ctx.loop("x", wait()),
                    "join": lambda: ctx.join("x", a=wait()),
                    "rollback_checkpoint": lambda: ctx.rollback_checkpoint("x"),
                    "removed": lambda: ctx.removed("x", "step"),
                    "get_version": lambda: ctx.get_version("x", 1),
                    "child": lambda: ctx.child("x", "y", "k"),
                }[call]()
            except BaseException:
                pass

    driver = Driver(run).start()
    before = (driver.inflight, driver.names())
    driver.machine.dispose()
    assert (driver.machine.inflight(), driver.names()) == before
    assert 20 < len(met) < 200


@pytest.mark.usefixtures("resisting")
def test_d_09_a_message_cannot_be_completed_by_a_stopped_run() -> None:
    met: list[int] = []

    async def run(ctx: Any) -> Any:
        message = await ctx.queue.next("m", completable=True)
        while True:
            try:
                await ctx.sleep("z", 5)
            except BaseException:
                met.append(1)
                try:
                    await message.complete("no")
                except BaseException:
                    pass

    driver = Driver(run).start()
    driver.send("q", 1)
    driver.machine.dispose()
    assert driver.machine.held
    assert len(met) < 200


def test_d_09_the_outcome_is_the_engines(drive: Drive) -> None:
    async def run(ctx: Any) -> Any:
        try:
            ctx.step("left", echo)
            await ctx.step("other", echo)
        except BaseException:
            return "I am fine"

    assert drive(run).error.error.is_a(EntryInProgress.__name__)


def test_d_09_a_refused_run_that_returns_all_the_same_has_not_succeeded(drive: Drive) -> None:
    async def run(ctx: Any) -> Any:
        try:
            ctx.state
        except BaseException:
            return "I am fine"

    assert drive(run).error.error.is_a(NotReplaySafe.__name__)


def test_d_09_what_one_branch_is_refused_stops_the_others_at_once(drive: Drive) -> None:
    async def run(ctx: Any) -> Any:
        await ctx.join("j", a=lambda _b: ctx.step("outer", echo), b=lambda b: b.queue.send("q", 1))

    driver = drive(run)
    assert driver.error.error.is_a(EntryInProgress.__name__)
    assert driver.queue == []


def test_d_09_finally_with_a_step_does_no_harm(drive: Drive) -> None:
    ledger = Ledger()

    async def run(ctx: Any) -> Any:
        try:
            await ctx.sleep("z", 5)
        finally:
            await ctx.step("release", ledger.write, 1)

    driver = drive(run).evict().crash().advance(5)
    assert ledger.lines == [1]
    assert driver.outcome.lifecycle is Lifecycle.COMPLETED


# -- runs --------------------------------------------------------------------------------------------


def test_r_run_04_input_is_the_stored_one(drive: Drive) -> None:
    async def run(ctx: Any) -> Any:
        ctx.input["changed"] = True
        return ctx.input, ctx.key, ctx.name, ctx.actor_id.int

    assert drive(run, input={"a": (1,)}).output == ({"a": (1,)}, "k", "test", 7)


def test_r_run_05_a_finished_run_replays_to_the_same(drive: Drive) -> None:
    async def run(ctx: Any) -> Any:
        return [await ctx.step("a", echo, i) for i in range(3)]

    driver = drive(run)
    first, started = driver.output, list(driver.started)
    driver.outcome = None
    assert driver.crash().output == first
    assert driver.started == started


def test_r_run_11_r_err_04_failure_is_a_record(drive: Drive) -> None:
    class Shop(Exception):
        def __init__(self) -> None:
            super().__init__("closed")
            self.code, self.thing = 7, object()

    async def run(ctx: Any) -> Any:
        raise Shop

    driver = drive(run)
    error = driver.error.error
    assert (error.message, dict(error.metadata)) == ("closed", {"code": 7})
    assert error.type.endswith("Shop")
    assert "Shop" in error.traceback
    assert [(event.source, event.error) for event in driver.failures] == [("workflow", error)]


def test_a_call_left_by_a_failed_run_stays_as_it_was_for_recover(drive: Drive) -> None:
    async def run(ctx: Any) -> Any:
        call = ctx.sleep("z", 60)
        if mended:
            await call
            return "fine"
        raise ValueError("first")

    mended: list[bool] = []
    driver = drive(run)
    assert driver.error.error.message == "first"
    assert driver.names() == []
    mended.append(True)
    driver.control(driver.inflight)
    assert driver.advance(60).output == "fine"


def test_a_result_that_cannot_be_stored_fails_the_run(drive: Drive) -> None:
    async def lock(ctx: Any) -> Any:
        return open

    async def big(ctx: Any) -> Any:
        return "x" * 500

    assert "result of run" in drive(lock).error.error.message
    assert "502 bytes" in drive(big, limits=Limits(max_value=400)).error.error.message


def test_run_must_be_async(drive: Drive) -> None:
    def plain(_ctx: Any) -> Any:
        return 1

    text = "must be an async function (async def), it returned int"
    for run in (plain, functools.partial(plain)):
        name = getattr(run, "__qualname__", repr(run))
        assert drive(run).error.error.message == f"{name} {text}"


def test_d_09_a_stopped_run_is_told_at_its_next_call(drive: Drive) -> None:
    told = []

    async def run(ctx: Any) -> Any:
        ctx.step("left", echo)
        for _ in range(2):
            try:
                ctx.sleep("x", 1)
            except BaseException as exc:
                told.append(type(exc).__name__)

    assert drive(run).error.error.is_a(EntryInProgress.__name__)
    assert told == ["Stopped", "Stopped"]


@pytest.mark.usefixtures("resisting")
def test_d_09_a_run_that_resists_is_dropped() -> None:
    async def run(ctx: Any) -> Any:
        ctx.step("left", echo)
        while True:
            try:
                await ctx.sleep("x", 1)
            except BaseException:
                pass

    driver = Driver(run).start()
    assert driver.error.error.is_a(EntryInProgress.__name__)
    assert any("catches BaseException and was dropped" in note for note in driver.notes)


def test_d_09_what_was_stopped_is_unwound_once(drive: Drive) -> None:
    told = []

    async def run(ctx: Any) -> Any:
        async def waits(b: Any) -> Any:
            try:
                await b.sleep("z", 60)
            except BaseException as exc:
                told.append(type(exc).__name__)
                raise

        async def bad(b: Any) -> Any:
            b.sleep("left", 1)
            await b.sleep("next", 1)

        await ctx.join("j", a=waits, b=bad)

    driver = drive(run)
    assert driver.error.error.is_a(EntryInProgress.__name__)
    assert told == ["Stopped"]
    assert driver.notes == []


def test_the_log_is_silent_on_replay(drive: Drive) -> None:
    class Log(list):
        def info(self, text: str) -> None:
            self.append(text)

    log = Log()

    async def run(ctx: Any) -> Any:
        ctx.log.info("one")
        await ctx.step("a", echo)
        ctx.log.info("two")
        await ctx.sleep("z", 1)
        ctx.log.info("three")

    drive(run, log=log).evict().crash().advance(1)
    assert log == ["one", "two", "three"]
