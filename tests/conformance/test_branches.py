"""Joins, races, maps, try blocks: R-JOIN, R-RACE, R-TRY, D-07, D-08, D-18; BR-051, BR-063, BR-064, BR-088."""

from __future__ import annotations

import gc
import json
from typing import Any

import pytest

from rivet_workflows.exceptions import (
    ChildFailed,
    CriticalError,
    EntryInProgress,
    JoinError,
    MessageNotCompleted,
    QueueTimeout,
    RaceError,
    RollbackError,
    StepFailed,
    failure_record,
)
from rivet_workflows.records import Blocked, EntryStatus, Kind, Lifecycle
from tests.conformance.conftest import Drive
from tests.engine.driver import Driver
from tests.engine.steps import Ledger, echo, fail


def step(name: str, value: Any = None) -> Any:
    return lambda b: b.step(name, echo, value)


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


# -- race --------------------------------------------------------------------------------------------


def test_r_race_01_02_first_to_succeed(drive: Drive) -> None:
    async def run(ctx: Any) -> Any:
        outcome = await ctx.race("r", slow=lambda b: b.sleep("z", 5), fast=step("s", 7))
        await ctx.sleep("after", 1)
        return outcome.winner, outcome.value

    driver = drive(run)
    driver.crash().advance(1)
    assert driver.output == ("fast", 7)
    assert (
        driver.row("r").output == '{"winner": "fast", "branches": {"slow": "cancelled", "fast": "completed"}}'
    )
    assert driver.names() == ["r", "s", "after"]  # R-RACE-06


def test_r_race_02_at_the_same_time_the_first_in_the_list(drive: Drive) -> None:
    async def now(_b: Any) -> Any:
        return 1

    async def run(ctx: Any) -> Any:
        return (await ctx.race("r", a=now, b=now)).winner

    assert drive(run).output == "a"


@pytest.mark.parametrize("swallow", [True, False])
def test_r_race_03_04_d_18_losers_are_told_and_not_awaited(drive: Drive, swallow: bool) -> None:
    tried: list[str] = []

    async def run(ctx: Any) -> Any:
        async def loser(b: Any) -> Any:
            try:
                await b.step("long", echo)
            except BaseException:
                if not swallow:
                    raise
            finally:
                tried.append("finally")
                await b.step("cleanup", echo)

        outcome = await ctx.race("r", loser=loser, winner=lambda b: b.queue.next("m"))
        return await ctx.step("after", echo, outcome.winner)

    driver = drive(run, auto=False)
    late = driver.order("long")
    driver.send("q")
    assert driver.cancelled == [late.seq]
    assert [order.name for order in driver.pending] == ["after"]
    driver.pending.append(late)
    driver.finish(late)  # R-RACE-05: dropped and noted
    driver.finish("after")
    assert driver.output == "winner"
    assert driver.started == ["long", "after"]
    assert "cleanup" not in driver.names()


def test_r_race_06_losers_leave_nothing(drive: Drive) -> None:
    async def run(ctx: Any) -> Any:
        async def loser(b: Any) -> Any:
            await b.step("one", echo)
            await b.rollback_checkpoint("cp")
            async for it in b.loop("l"):
                await it.join("j", x=lambda c: c.queue.next("m", names="never"), y=lambda c: c.sleep("z", 50))

        async def winner(b: Any) -> Any:
            await b.step("w", echo)
            await b.sleep("z", 1)

        await ctx.race("r", loser=loser, winner=winner)
        await ctx.sleep("after", 1)

    driver = drive(run).advance(1)
    assert sorted(driver.names()) == ["r", "w", "z"]
    assert driver.inflight.count('"s":') == 1
    assert driver.machine.mailbox.waits == {}
    assert driver.machine.checkpoints == []


def test_r_race_06_a_loser_that_was_to_be_told_in_the_same_turn_leaves_nothing(drive: Drive) -> None:
    async def run(ctx: Any) -> Any:
        async def refused(b: Any) -> Any:
            try:
                await b.queue.next("second")
            except MessageNotCompleted:
                return "told"

        held = await ctx.queue.next("first", completable=True)
        outcome = await ctx.race("r", a=refused, b=refused)
        await ctx.sleep("z", 1)
        await held.complete()
        return outcome.winner

    driver = drive(run)
    driver.send("m", 1)
    assert driver.advance(1).output == "a"
    assert driver.names() == ["first", "r", "second", "z"]


def test_r_race_07_08_failures(drive: Drive) -> None:
    async def run(ctx: Any) -> Any:
        bad = {n: (lambda b, n=n: b.step("f", fail, n, max_retries=0)) for n in "ab"}
        won = (await ctx.race("r", {**bad, "late": lambda b: b.sleep("z", 5)})).winner
        try:
            await ctx.race("all", bad)
        except RaceError as exc:
            await ctx.sleep("after", 1)
            return won, {name: e.message.rsplit(" ", 1)[-1] for name, e in exc.errors.items()}

    driver = drive(run).advance(5)
    driver.crash().advance(1)
    assert driver.output == ("late", {"a": "a", "b": "b"})
    assert driver.row("all").status is EntryStatus.FAILED
    assert driver.started == ["f"] * 4
    branches = json.loads(driver.row("r").output or "")["branches"]
    assert branches == {"a": "failed", "b": "failed", "late": "completed"}


def test_r_race_10_a_step_in_backoff_keeps_it_open(drive: Drive) -> None:
    async def run(ctx: Any) -> Any:
        return (await ctx.race("r", a=step("s", 1), b=lambda b: b.sleep("z", 5))).winner

    driver = drive(run, start=False)
    driver.fail_next["s"] = [ValueError()]
    driver.start().crash().advance(1)
    assert driver.output == "a"


def test_r_race_09_d_07_of_a_won_race_the_winner_is_entered_and_nothing_runs(drive: Drive) -> None:
    ledger = Ledger()
    entered: list[str] = []

    async def run(ctx: Any) -> Any:
        async def wins(b: Any) -> Any:
            entered.append("wins")
            return await b.step("s", ledger.write, "won")

        async def loses(b: Any) -> Any:
            entered.append("loses")
            await b.sleep("z", 60)

        outcome = await ctx.race("r", loses=loses, wins=wins)
        await ctx.sleep("after", 1)
        return outcome.winner, outcome.value

    driver = drive(run)
    entered.clear()
    assert driver.crash().crash().advance(1).output == ("wins", "won")
    assert ledger.lines == ["won"]
    assert set(entered) == {"wins"}


def test_r_err_05_a_plain_error_in_a_branch_has_no_event_of_its_own(drive: Drive) -> None:
    async def bad(_b: Any) -> None:
        raise ValueError("plain")

    async def run(ctx: Any) -> Any:
        with pytest.raises(JoinError):
            await ctx.join("handled", a=bad)
        with pytest.raises(RaceError):
            await ctx.race("lost", a=bad)
        await ctx.join("fatal", a=bad, b=bad)

    driver = drive(run)
    assert [(event.source, event.error.type) for event in driver.failures] == [
        ("workflow", "rivet_workflows.exceptions.JoinError")
    ]


def test_r_race_11_unknown_branch(drive: Drive) -> None:
    branches = {"a": lambda b: b.sleep("z", 5)}

    async def run(ctx: Any) -> Any:
        await ctx.race("r", dict(branches))

    driver = drive(run)
    branches["b"] = step("s")
    assert "'b'" in driver.crash().set_aside.error.message


def test_a_step_of_a_loser_is_cancelled_also_where_the_run_ends_with_the_race(drive: Drive) -> None:
    async def run(ctx: Any) -> Any:
        return (await ctx.race("r", a=step("slow"), b=lambda b: b.queue.next("m"))).winner

    driver = drive(run, auto=False)
    seq = driver.order("slow").seq
    driver.send("q")
    assert driver.output == "b"
    assert driver.cancelled == [seq]
    assert driver.notes == []  # nothing was unwound twice


def test_d_18_of_a_won_race_the_branches_may_change_their_order_and_nothing_else(drive: Drive) -> None:
    branches = {"a": step("s", 1), "b": lambda b: b.sleep("z", 5)}

    async def run(ctx: Any) -> Any:
        outcome = await ctx.race("r", dict(branches))
        await ctx.sleep("after", 1)
        return outcome.winner, outcome.value

    driver = drive(run)
    branches["a"] = branches.pop("a")
    assert driver.crash().set_aside is None
    branches["c"] = step("s")
    assert "branch 'c' is new" in driver.crash().set_aside.error.message
    del branches["c"]
    assert driver.deploy(run).advance(1).output == ("a", 1)


def test_a_winner_that_fails_now_is_a_divergence(drive: Drive) -> None:
    fails = [False]

    async def run(ctx: Any) -> Any:
        async def wins(b: Any) -> Any:
            await b.step("s", echo)
            if fails[0]:
                raise ValueError("now")

        await ctx.race("r", a=wins, b=lambda b: b.sleep("z", 5))
        await ctx.sleep("after", 1)

    driver = drive(run)
    fails[0] = True
    assert "is recorded as completed and now fails" in driver.crash().set_aside.error.message


def test_a_branch_that_lost_before_it_began_does_not_begin(drive: Drive) -> None:
    entered = []

    async def now(_b: Any) -> Any:
        return 1

    async def late(_b: Any) -> Any:
        entered.append("late")

    async def run(ctx: Any) -> Any:
        return (await ctx.race("r", now=now, late=late)).winner

    assert drive(run).output == "now"
    assert entered == []


def test_r_race_13_nested_in_the_winner(drive: Drive) -> None:
    async def run(ctx: Any) -> Any:
        async def inner(b: Any) -> Any:
            got = await b.join("j", x=step("s", 1), y=step("s", 2))
            return got, (await b.race("r2", p=lambda c: c.sleep("z", 9), q=step("s", 3))).value

        value = (await ctx.race("r", a=inner, b=lambda b: b.sleep("z", 99))).value
        await ctx.sleep("after", 1)
        return value

    assert drive(run).crash().advance(1).output == ({"x": 1, "y": 2}, 3)


def test_r_race_14_15_what_is_refused_in_a_branch_ends_the_run_not_the_race(drive: Drive) -> None:
    async def run(ctx: Any) -> Any:
        async def bad(b: Any) -> Any:
            b.step("left", echo)
            return 1

        return await ctx.race("r", a=bad, b=lambda b: b.sleep("z", 1))

    assert drive(run).error.error.is_a(EntryInProgress.__name__)


@pytest.mark.usefixtures("resisting")
def test_a_loser_that_resists_is_dropped(drive: Drive) -> None:
    async def run(ctx: Any) -> Any:
        async def stubborn(b: Any) -> Any:
            while True:
                try:
                    await b.sleep("z", 5)
                except BaseException:
                    pass

        for _ in range(30):
            await ctx.race("r", a=stubborn, b=step("s", 1))
        return "on"

    driver = drive(run)
    assert driver.output == "on"
    assert any("BaseException" in note and "test_branches.py:" in note for note in driver.notes)


@pytest.mark.usefixtures("resisting")
def test_a_loser_that_was_dropped_stays_stopped_when_it_is_collected() -> None:
    async def run(ctx: Any) -> Any:
        async def stubborn(b: Any) -> Any:
            while True:
                try:
                    await b.sleep("z", 5)
                except BaseException:
                    pass

        await ctx.race("r", a=stubborn, b=step("s", 1))
        gc.collect()  # throws into it once more, and it calls once more
        return await ctx.step("after", echo, "on")

    assert Driver(run).start().output == "on"


def test_a_loser_that_fails_as_it_is_told_is_noted_and_is_over(drive: Drive) -> None:
    kept = []

    async def run(ctx: Any) -> Any:
        async def loser(b: Any) -> Any:
            kept.append(b)
            try:
                await b.sleep("z", 5)
            finally:
                raise ValueError("broken")

        await ctx.race("r", a=loser, b=step("s", 1))
        await kept[-1].step("late", echo)

    driver = drive(run)
    assert "ValueError while the workflow was unwound: broken" in driver.notes
    assert "is over" in driver.error.error.message


# -- try ---------------------------------------------------------------------------------------------


def test_r_try_01_02_05(drive: Drive) -> None:
    async def run(ctx: Any) -> Any:
        good = await ctx.try_step("a", echo, 1)
        bad = await ctx.try_step("b", fail, "text", max_retries=1)
        await ctx.sleep("z", 1)
        with pytest.raises(StepFailed):
            bad.unwrap()
        f = bad.failure
        return good.ok, good.value, good.unwrap(), bad.ok, f.kind, f.step_name, f.attempts, f.error.message

    driver = drive(run)
    assert driver.outcome is None
    driver.advance(1).crash().advance(2)
    assert driver.output == (True, 1, 1, False, "exhausted", "b", 2, "text")


@pytest.mark.parametrize("catch", [None, ["rollback"], [RollbackError], ["critical"]])
@pytest.mark.parametrize("error", [CriticalError("c"), RollbackError("r")])
def test_r_try_03_04_kinds(drive: Drive, catch: Any, error: Exception) -> None:
    async def run(ctx: Any) -> Any:
        options = {} if catch is None else {"catch": catch}
        return (await ctx.try_step("a", echo, **options)).failure.kind

    driver = drive(run, start=False)
    driver.fail_next["a"] = [error]
    driver.start()
    kind = "rollback" if isinstance(error, RollbackError) else "critical"
    caught = kind == "critical" if catch is None else catch[0] in (kind, type(error))
    if caught:
        assert driver.output == kind
    else:
        assert driver.error.kind == kind


@pytest.mark.parametrize("catch", [["exhaust"], [int], "step", [None]])
def test_an_unknown_kind_to_catch_is_refused(drive: Drive, catch: Any) -> None:
    async def run(ctx: Any) -> Any:
        with pytest.raises(TypeError, match="catch"):
            ctx.try_step("a", echo, catch=catch)

    assert drive(run).outcome.lifecycle is Lifecycle.COMPLETED


@pytest.mark.parametrize("how", ["step", "join", "race", "block", "step-rollback", "plain", "ok"])
def test_r_try_06_to_11(drive: Drive, how: str) -> None:
    async def body(b: Any) -> Any:
        bad = lambda c: c.step("f", fail, max_retries=0)  # noqa: E731
        await b.step("first", echo)
        if how == "step":
            await bad(b)
        elif how == "join":
            await b.join("j", a=bad)  # R-TRY-09
        elif how == "race":
            await b.race("r", a=bad)
        elif how == "block":
            raise RollbackError("direct")
        elif how == "step-rollback":
            await b.step("rb", echo)
        elif how == "plain":
            raise KeyError("plain")
        return "fine"

    async def run(ctx: Any) -> Any:
        catch = ["step", "join", "race", "rollback"]
        got = await ctx.try_block("block", body, catch=catch)
        await ctx.sleep("z", 1)
        f = got.failure
        return (got.value,) if got.ok else (f.source, f.name, f.step and f.step.kind)

    driver = drive(run, start=False)
    driver.fail_next["rb"] = [RollbackError("from a step")]
    driver.start()
    if how == "plain":
        assert driver.error.error.type == "KeyError"
        return
    driver.crash().advance(1)
    assert (
        driver.output
        == {
            "step": ("step", "f", "exhausted"),
            "join": ("join", "j", None),
            "race": ("race", "r", None),
            "block": ("block", "block", None),
            "step-rollback": ("step", "rb", "rollback"),
            "ok": ("fine",),
        }[how]
    )


@pytest.mark.parametrize("direct", [True, False])
def test_r_try_08_rollback_is_opt_in(drive: Drive, direct: bool) -> None:
    async def body(b: Any) -> Any:
        if direct:
            raise RollbackError("direct")
        await b.step("rb", echo)

    async def run(ctx: Any) -> Any:
        await ctx.try_block("block", body)

    driver = drive(run, start=False)
    driver.fail_next["rb"] = [RollbackError("from a step")]
    assert driver.start().error.kind == "rollback"


def test_r_try_12_r_div_05_the_body_runs_again_and_is_checked(drive: Drive) -> None:
    async def old(ctx: Any) -> Any:
        await ctx.try_block("t", step("a", 1))
        await ctx.sleep("z", 1)

    async def new(ctx: Any) -> Any:
        async def nothing(_b: Any) -> None: ...

        await ctx.try_block("t", nothing)
        await ctx.sleep("z", 1)

    driver = drive(old).deploy(new)
    assert "t/a" in driver.set_aside.error.message


def test_d_07_nothing_new_is_made_in_a_block_that_has_ended(drive: Drive) -> None:
    more = [False]

    async def run(ctx: Any) -> Any:
        async def body(c: Any) -> Any:
            await c.step("in", echo)
            if more[0]:
                await c.step("more", echo)

        await ctx.join("j", a=lambda b: b.try_block("t", body), b=lambda b: b.sleep("z", 60))

    driver = drive(run)
    more[0] = True
    assert "inside something that the history holds as finished" in driver.crash().set_aside.error.message


def test_r_try_14_no_workflow_event(drive: Drive) -> None:
    async def run(ctx: Any) -> Any:
        await ctx.try_step("a", fail, max_retries=0)

    assert [event.source for event in drive(run).failures] == ["step"]


# -- child -------------------------------------------------------------------------------------------


def test_child_is_ordered_and_its_result_replayed(drive: Drive) -> None:
    async def run(ctx: Any) -> Any:
        got = await ctx.child("ship", "shipping", ("order", 7), input={"a": (1,)})
        await ctx.sleep("z", 1)
        return got

    driver = drive(run)
    (order,) = driver.children.values()
    assert (order.actor, order.key, order.input) == ("shipping", '["order", 7]', driver_dumps({"a": (1,)}))
    driver.crash()
    assert driver.children.keys() == {order.seq}  # ordered again until its end is told
    driver.child_done(order.seq, (1, 2))
    assert driver.crash().advance(1).output == (1, 2)
    assert driver.row("ship").kind is Kind.CHILD
    assert driver.children == {}


def driver_dumps(value: Any) -> str:
    from rivet_workflows import codec

    return codec.dumps(value)


def test_child_failure_is_a_record(drive: Drive) -> None:
    async def run(ctx: Any) -> Any:
        try:
            await ctx.child("ship", "shipping", "k")
        except ChildFailed as exc:
            await ctx.sleep("z", 1)
            return exc.error and (exc.error.type, exc.error.message)

    driver = drive(run)
    driver.child_done(1, error=failure_record(KeyError("gone")))
    assert driver.crash().advance(1).output == ("KeyError", "'gone'")
    assert driver.row("ship").status is EntryStatus.FAILED


@pytest.mark.parametrize(
    "error", [JoinError("join 'j': failed branches: a", name="j"), QueueTimeout("message 'm' timed out")]
)
def test_child_that_failed_by_an_error_of_ours_says_which(drive: Drive, error: Exception) -> None:
    async def run(ctx: Any) -> Any:
        try:
            await ctx.child("ship", "shipping", "k")
        except ChildFailed as exc:
            await ctx.sleep("z", 1)
            return str(exc), exc.error and exc.error.is_a(type(error).__name__)

    driver = drive(run)
    driver.child_done(1, error=failure_record(error))
    text = f"child 'ship' (shipping [\"k\"]) failed: {type(error).__name__}: {error}"
    assert driver.crash().advance(1).output == (text, True)


def test_child_that_ends_without_a_value_or_a_reason(drive: Drive) -> None:
    async def run(ctx: Any) -> Any:
        nothing = await ctx.child("good", "shipping", "k")
        try:
            await ctx.child("bad", "shipping", "l")
        except ChildFailed as exc:
            await ctx.sleep("z", 1)
            return nothing, str(exc.error)

    driver = drive(run)
    for ok in (True, False):
        seq, _ = driver.children.popitem()
        driver.apply(driver.machine.child_done(seq, ok, None, None, driver.now))
    assert driver.crash().advance(1).output == (None, "Exception")


def test_child_in_a_lost_race_and_late_end(drive: Drive) -> None:
    async def run(ctx: Any) -> Any:
        got = await ctx.race("r", c=lambda b: b.child("c", "x", "k"), t=lambda b: b.sleep("z", 1))
        await ctx.sleep("after", 10)
        return got.winner

    driver = drive(run)
    (seq,) = driver.children
    driver.advance(1)
    driver.children[seq] = None
    driver.child_done(seq, 1)
    assert driver.advance(10).output == "t"


def test_br_088_waiting_for_a_child_is_not_a_result(drive: Drive) -> None:
    async def run(ctx: Any) -> Any:
        return await ctx.child("c", "x", "k")

    driver = drive(run).crash().evict()
    assert driver.children[1].input is None
    assert driver.child_done(1, "real").output == "real"


def test_child_that_is_another_now(drive: Drive) -> None:
    key = ["k"]

    async def run(ctx: Any) -> Any:
        await ctx.child("c", "x", key[0])

    driver = drive(run)
    key[0] = "other"
    assert driver.crash().set_aside.reason is Blocked.DIVERGED


def test_br_064_a_result_is_delivered_once() -> None:
    async def run(ctx: Any) -> Any:
        return await ctx.step("a", echo, 1)

    driver = Driver(run, auto=False).start()
    order = driver.order("a")
    driver.finish(order)
    turn = driver.machine.step_done(order.seq, order.attempt, None, driver.now)  # type: ignore[arg-type]
    assert not turn.rows
    assert turn.outcome is None


@pytest.mark.parametrize("items", [{"a", "b"}, frozenset("ab")])
def test_a_set_is_refused_by_map_as_its_order_is_another_after_a_restart(drive: Drive, items: Any) -> None:
    async def run(ctx: Any) -> Any:
        return await ctx.map("m", lambda b, item: b.step("s", echo, item), items)

    assert "give it a list, like sorted(items)" in str(drive(run).error)
