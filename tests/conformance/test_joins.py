"""Joins and maps: R-JOIN, D-07, D-08, D-10, D-18; BR-063, BR-064."""

from __future__ import annotations

from typing import Any

import pytest

from rivet_workflows.exceptions import (
    EntryInProgress,
    JoinError,
)
from rivet_workflows.records import Blocked, EntryStatus, Lifecycle
from tests.conformance.conftest import Drive
from tests.engine.steps import Ledger, echo, fail, step

# -- join --------------------------------------------------------------------------------------------


def test_r_join_01_02_03(drive: Drive) -> None:
    async def run(ctx: Any) -> Any:
        return await ctx.join("j", {"a": step("s", 1)}, b=step("s", 2), c=lambda b: b.sleep("z", 1))

    driver = drive(run, auto=False)
    assert driver.opened("j")["bn"] == ["a", "b", "c"]
    assert [order.name for order in driver.pending] == ["s", "s"]
    driver.auto = True
    assert driver.settle().advance(1).output == {"a": 1, "b": 2, "c": None}


def test_r_join_03_04_05_08_failures_after_all_settled(drive: Drive) -> None:
    async def plain(b: Any) -> Any:
        raise KeyError("k")

    async def run(ctx: Any) -> Any:
        try:
            await ctx.join(
                "j",
                bad=lambda b: b.step("f", fail, "why: this", max_retries=0),
                plain=plain,
                slow=lambda b: b.sleep("z", 5),
                good=step("s", 1),
            )
        except JoinError as exc:
            await ctx.sleep("after", 1)
            return str(exc), {k: (e.type, e.message, e.traceback) for k, e in exc.errors.items()}, exc.name

    driver = drive(run)
    assert driver.outcome is None  # R-JOIN-07: not while a branch is open
    driver.advance(5)
    first = driver.row("j").error
    text, errors, name = driver.crash().advance(1).output
    assert "bad" in text
    assert "plain" in text
    assert name == "j"
    assert errors.keys() == {"bad", "plain"}
    assert errors["plain"][:2] == ("KeyError", "'k'")
    assert errors["bad"][0].endswith("StepExhausted")
    assert driver.row("j").error == first


def test_d_10_a_join_fails_as_it_did_whatever_its_branches_would_say_now(drive: Drive) -> None:
    says = ["then"]

    async def bad(_b: Any) -> Any:
        raise ValueError(says[0])

    async def run(ctx: Any) -> Any:
        try:
            await ctx.join("j", a=bad)
        except JoinError as exc:
            await ctx.sleep("z", 1)
            return exc.errors["a"].message

    driver = drive(run)
    says[0] = "now"
    assert driver.crash().advance(1).output == "then"


def test_a_branch_needs_a_name_and_a_function(drive: Drive) -> None:
    async def run(ctx: Any) -> Any:
        texts = []
        for branches in ({1: step("s")}, {"": step("s")}, {"a": 7}):
            with pytest.raises(TypeError) as caught:
                ctx.join("j", branches)
            texts.append(str(caught.value))
        return texts

    assert drive(run).output == [
        "a branch of join 'j' needs a name, not 1",
        "a branch of join 'j' needs a name, not ''",
        "branch 'a' of join 'j' must be an async function",
    ]


def test_a_join_is_stored_as_it_is_made_whatever_is_in_it(drive: Drive) -> None:
    async def run(ctx: Any) -> Any:
        await ctx.join("j", a=lambda b: b.step("s", echo, ephemeral=True))

    assert drive(run, auto=False).opened("j")["bn"] == ["a"]


def test_r_join_06_waits_of_all_branches(drive: Drive) -> None:
    async def run(ctx: Any) -> Any:
        await ctx.join(
            "j",
            a=lambda b: b.sleep("z", 5),
            b=lambda b: b.queue.next("m", names="x"),
            c=lambda b: b.sleep("z", 3),
        )

    driver = drive(run)
    assert driver.machine.next_due == driver.now + 3_000_000
    assert {w.names for w in driver.machine.mailbox.waits.values()} == {("x",)}


def test_d_07_r_join_09_15_finished_branches_are_entered_and_nothing_runs(drive: Drive) -> None:
    ledger = Ledger()

    async def run(ctx: Any) -> Any:
        shared = []

        async def one(b: Any) -> Any:
            shared.append(await b.step("s", ledger.write, "one"))

        async def two(b: Any) -> Any:
            await b.sleep("z", 1)
            shared.append(await b.step("s", ledger.write, "two"))

        await ctx.join("j", two=two, one=one)
        await ctx.sleep("after", 1)
        return shared

    driver = drive(run).advance(1).crash().evict().advance(1)
    assert driver.output == ["one", "two"]
    assert ledger.lines == ["one", "two"]
    assert sorted(driver.names()) == ["after", "j", "s", "s", "z"]  # R-JOIN-15


def test_r_join_10_br_063_nesting_and_empty(drive: Drive) -> None:
    async def run(ctx: Any) -> Any:
        async def deep(b: Any, level: int) -> Any:
            if level == 0:
                return await b.step("s", echo, 1)
            return await b.join("j", a=lambda c: deep(c, level - 1), b=step("t", level))

        assert await ctx.join("none") == {}
        assert await ctx.map("nothing", step("s"), []) == []
        with pytest.raises(ValueError, match="at least one"):
            ctx.race("empty")
        return await ctx.join("deep", a=lambda b: deep(b, 30))

    output = drive(run).output["a"]
    for level in range(30, 0, -1):
        assert output["b"] == level
        output = output["a"]
    assert output == 1


def test_r_join_11_r_div_05_a_branch_is_checked_at_its_end(drive: Drive) -> None:
    async def old(ctx: Any) -> Any:
        async def a(b: Any) -> Any:
            await b.step("one", echo)
            await b.sleep("z", 1)

        await ctx.join("j", a=a)

    async def new(ctx: Any) -> Any:
        await ctx.join("j", a=lambda b: b.sleep("z", 1))

    driver = drive(old).deploy(new).advance(1)
    assert driver.set_aside.reason is Blocked.DIVERGED
    assert "j/a/one" in driver.set_aside.error.message


def test_r_join_12_the_outer_context_in_a_branch(drive: Drive) -> None:
    async def run(ctx: Any) -> Any:
        await ctx.join("j", a=lambda _b: ctx.step("s", echo))

    assert drive(run).error.error.is_a(EntryInProgress.__name__)


@pytest.mark.parametrize("change", ["added", "removed", "order"])
@pytest.mark.parametrize("finished", [True, False])
def test_d_18_r_join_13_r_div_04_changed_branches(drive: Drive, change: str, finished: bool) -> None:
    branches = {"a": step("s", 1), "b": lambda b: b.sleep("z", 5)}

    async def run(ctx: Any) -> Any:
        got = await ctx.join("j", dict(branches))
        await ctx.sleep("after", 1)
        return got

    driver = drive(run)
    if finished:
        driver.advance(5)
    if change == "added":
        branches["c"] = step("s", 3)
    elif change == "removed":
        del branches["b"]
    else:
        branches = dict(reversed(branches.items()))
    driver.crash()
    if change == "order":
        assert driver.advance(6).output == {"a": 1, "b": None}
        return
    assert driver.set_aside.reason is Blocked.DIVERGED
    assert repr("c" if change == "added" else "b") in driver.set_aside.error.message
    assert driver.started == ["s"]


def test_d_08_results_are_delivered_in_the_order_they_were_recorded(drive: Drive) -> None:
    async def run(ctx: Any) -> Any:
        order: list[Any] = []

        async def branch(b: Any, name: str) -> Any:
            for i in range(3):
                await b.step(f"{name}{i}", echo)
                order.append((name, i, len(order)))

        await ctx.join("j", **{n: (lambda b, n=n: branch(b, n)) for n in "abc"})
        await ctx.sleep("z", 1)
        return order

    driver = drive(run, auto=False)
    finished = ["c0", "a0", "c1", "b0", "c2", "b1", "a1", "b2", "a2"]
    for name in finished:
        driver.finish(name)
    driver.crash().evict().advance(1)
    assert [f"{n}{i}" for n, i, _ in driver.output] == finished


def test_d_08_two_waits_for_one_queue(drive: Drive) -> None:
    async def run(ctx: Any) -> Any:
        async def taker(b: Any) -> Any:
            return [(await b.queue.next("m")).body for _ in range(2)]

        got = await ctx.join("j", a=taker, b=taker)
        await ctx.sleep("z", 1)
        return got

    driver = drive(run, start=False)
    for i in range(4):
        driver.drop("q", i)
    first = driver.start().machine
    assert first is not None
    output = driver.crash().advance(1).output
    assert output == {"a": [0, 2], "b": [1, 3]}


def test_values_of_branches_need_not_be_storable(drive: Drive) -> None:
    async def run(ctx: Any) -> Any:
        async def a(b: Any) -> Any:
            value = await b.step("s", echo, 2)
            return lambda x: x * value

        got = await ctx.join("j", a=a)
        await ctx.sleep("z", 1)
        return got["a"](4)

    assert drive(run).crash().advance(1).output == 8


def test_a_call_left_in_a_failed_branch_is_given_up(drive: Drive) -> None:
    async def run(ctx: Any) -> Any:
        async def a(b: Any) -> Any:
            b.step("left", echo)
            raise KeyError("a")

        with pytest.raises(JoinError):
            await ctx.join("j", a=a, b=lambda b: b.sleep("z", 1))
        await ctx.sleep("after", 1)

    driver = drive(run).advance(1)
    assert driver.inflight.count('"s":') == 1
    assert driver.started == []
    assert driver.crash().advance(1).outcome.lifecycle is Lifecycle.COMPLETED


def test_a_wait_that_was_refused_and_left_behind_is_over_once(drive: Drive) -> None:
    async def run(ctx: Any) -> Any:
        async def bad(b: Any) -> Any:
            b.queue.next("again")
            raise ValueError("first")

        held = await ctx.queue.next("m", completable=True)
        with pytest.raises(JoinError):
            await ctx.join("j", a=bad)
        await ctx.sleep("z", 1)
        await held.complete()

    driver = drive(run)
    driver.send("q")
    assert driver.advance(1).outcome.lifecycle is Lifecycle.COMPLETED
    assert [row.status for row in driver.rows if row.name == "again"] == [EntryStatus.CANCELLED]


def test_a_call_that_was_left_behind_and_is_awaited_now_does_not_hang(drive: Drive) -> None:
    awaited = [False]

    async def run(ctx: Any) -> Any:
        async def a(b: Any) -> Any:
            left = b.step("left", echo)
            if awaited[0]:
                await left
            raise KeyError("a")

        with pytest.raises(JoinError):
            await ctx.join("j", a=a)
        await ctx.sleep("after", 1)

    driver = drive(run)
    awaited[0] = True
    assert "left without await" in driver.crash().set_aside.error.message


def test_a_branch_that_now_ends_otherwise_is_a_divergence(drive: Drive) -> None:
    broken = [False]

    async def run(ctx: Any) -> Any:
        async def a(b: Any) -> Any:
            await b.step("s", echo)
            if broken[0]:
                raise KeyError("new")

        await ctx.join("j", a=a)
        await ctx.sleep("z", 1)

    driver = drive(run)
    broken[0] = True
    assert driver.crash().set_aside.reason is Blocked.DIVERGED


# -- map ---------------------------------------------------------------------------------------------


def test_map_is_ordered_bounded_and_settles_all(drive: Drive) -> None:
    async def run(ctx: Any) -> Any:
        async def one(b: Any, item: int) -> Any:
            if item == 3:
                await b.step("f", fail, max_retries=0)
            return await b.step("s", echo, item * 10)

        try:
            await ctx.map("m", one, range(6), concurrency=2)
        except JoinError as exc:
            await ctx.sleep("z", 1)
            return {index: error.is_a("StepExhausted") for index, error in exc.errors.items()}

    driver = drive(run, auto=False)
    running = []
    while driver.pending:
        running.append(len(driver.pending))
        driver.finish(driver.pending[-1])
    assert max(running) == 2
    assert driver.crash().advance(1).output == {3: True}


def test_map_over_other_items_is_a_divergence(drive: Drive) -> None:
    items = [1, 2]

    async def run(ctx: Any) -> Any:
        await ctx.map("m", lambda b, item: b.sleep("z", 1), items)

    driver = drive(run)
    items.append(3)
    assert "2 items" in driver.crash().set_aside.error.message


@pytest.mark.parametrize("bad", [0, -1, True, "2"])
def test_map_concurrency(drive: Drive, bad: Any) -> None:
    async def run(ctx: Any) -> Any:
        with pytest.raises(ValueError, match="concurrency"):
            ctx.map("m", step("s"), [1], concurrency=bad)

    assert drive(run).outcome.lifecycle is Lifecycle.COMPLETED
