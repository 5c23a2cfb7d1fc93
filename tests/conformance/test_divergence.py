"""Names, and code that does not fit its history: R-LOC, R-DIV, D-01, D-03; BR-055, BR-056."""

from __future__ import annotations

from typing import Any

import pytest

from rivet_workflows.engine import Limits, Loop
from rivet_workflows.records import Blocked, Kind, Lifecycle
from tests.conformance.conftest import Drive
from tests.engine.driver import Driver
from tests.engine.steps import Ledger, echo, old, wait

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

    driver = drive(old)
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
    driver.deploy(old).advance(1)  # restoring the code lets it go on
    assert driver.output == "old"


def test_br_055_r_div_11_position_stays_to_the_letter_and_fixed_code_goes_on() -> None:
    async def new(ctx: Any) -> Any:
        await ctx.get_version("gate", 2)
        await ctx.step("renamed", echo)

    driver = Driver(old).start()
    before = (driver.inflight, driver.next_seq, driver.names())
    driver.run = new
    driver.crash()
    assert driver.set_aside.reason is Blocked.DIVERGED
    assert (driver.inflight, driver.next_seq, driver.names()) == before
    driver.deploy(old).advance(1)
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

    driver = drive(old).deploy(new).advance(1)
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
