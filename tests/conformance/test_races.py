"""Races: R-RACE, R-ERR, D-07, D-18."""

from __future__ import annotations

import gc
import json
from typing import Any

import pytest

from rivet_workflows.exceptions import (
    EntryInProgress,
    JoinError,
    MessageNotCompleted,
    RaceError,
)
from rivet_workflows.records import EntryStatus
from tests.conformance.conftest import Drive
from tests.engine.driver import Driver
from tests.engine.steps import Ledger, echo, fail, step


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
    assert any("BaseException" in note and "test_races.py:" in note for note in driver.notes)


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
