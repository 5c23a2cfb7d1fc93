"""Rollback: R-RB, D-14."""

from __future__ import annotations

from typing import Any

import pytest

from rivet_workflows.engine import Limits
from rivet_workflows.exceptions import CriticalError, JoinError, RollbackError, StepFailed
from rivet_workflows.records import Blocked, Lifecycle
from tests.conformance.conftest import Drive
from tests.engine.driver import Driver
from tests.engine.steps import Ledger, echo, fail


def test_r_rb_01_06_07_reverse_order_with_the_output(drive: Drive) -> None:
    ledger = Ledger()

    async def run(ctx: Any) -> Any:
        await ctx.rollback_checkpoint("cp")
        for name in ("one", "two", "three"):
            await ctx.step(name, ledger.write, name, rollback=ledger.undo)
        await ctx.step("none", echo)  # R-RB-09
        raise ValueError("no")

    driver = drive(run, **ledger.handlers)
    assert ledger.lines == ["one", "two", "three", "undo three", "undo two", "undo one"]
    assert driver.error.error.message == "no"
    assert driver.outcome.lifecycle is Lifecycle.FAILED
    assert all(driver.row(n).rolled_back_at for n in ("one", "two", "three"))
    assert [event.source for event in driver.failures] == ["workflow"]


def test_r_rb_03_checkpoint_of_a_branch_does_not_reach_the_parent(drive: Drive) -> None:
    ledger = Ledger()

    async def run(ctx: Any) -> Any:
        await ctx.try_block("t", lambda b: b.rollback_checkpoint("cp"))
        await ctx.step("a", ledger.write, 1, rollback=ledger.undo)

    driver = drive(run, **ledger.handlers)
    assert driver.error.error.is_a("RollbackCheckpointError")
    assert ledger.lines == []


@pytest.mark.parametrize("how", ["plain", "critical", "rollback", "exhausted", "join", "race", "in-progress"])
def test_r_rb_04_triggers(drive: Drive, how: str) -> None:
    ledger = Ledger()
    bad = lambda b: b.step("f", fail, max_retries=0)  # noqa: E731

    async def run(ctx: Any) -> Any:
        await ctx.rollback_checkpoint("cp")
        await ctx.step("a", ledger.write, 1, rollback=ledger.undo)
        if how == "plain":
            raise KeyError
        if how == "exhausted":
            await bad(ctx)
        if how == "join":
            await ctx.join("j", a=bad)
        if how == "race":
            await ctx.race("r", a=bad)
        if how == "in-progress":
            ctx.step("left", echo)
        await ctx.step("s", echo)

    driver = drive(run, start=False, **ledger.handlers)
    driver.fail_next["s"] = [CriticalError("c") if how == "critical" else RollbackError("r")]
    driver.start()
    assert ledger.lines == [1, "undo 1"]
    assert driver.outcome.lifecycle is Lifecycle.FAILED
    assert "left" not in driver.started


def test_r_rb_04_divergence_rolls_nothing_back(drive: Drive) -> None:
    ledger = Ledger()

    async def old(ctx: Any) -> Any:
        await ctx.rollback_checkpoint("cp")
        await ctx.step("a", ledger.write, 1, rollback=ledger.undo)
        await ctx.sleep("z", 1)

    async def new(ctx: Any) -> Any:
        await ctx.rollback_checkpoint("cp")
        await ctx.step("b", ledger.write, 2, rollback=ledger.undo)

    driver = drive(old, **ledger.handlers).deploy(new)
    assert driver.set_aside.reason is Blocked.DIVERGED
    assert ledger.lines == [1]


def test_r_rb_05_letting_go_of_a_run_rolls_nothing_back(drive: Drive) -> None:
    ledger = Ledger()

    async def run(ctx: Any) -> Any:
        await ctx.rollback_checkpoint("cp")
        await ctx.step("a", ledger.write, 1, rollback=ledger.undo)
        await ctx.sleep("z", 60)

    driver = drive(run, **ledger.handlers).evict().crash()
    driver.machine.dispose()
    assert driver.start().advance(60).outcome.lifecycle is Lifecycle.COMPLETED
    assert ledger.lines == [1]


def test_r_rb_08_12_done_handlers_are_skipped_after_a_crash(drive: Drive) -> None:
    ledger = Ledger()

    async def run(ctx: Any) -> Any:
        await ctx.rollback_checkpoint("cp")
        for i in range(3):
            await ctx.step("a", ledger.write, i, rollback=ledger.undo)
        raise ValueError

    driver = drive(run, start=False, **ledger.handlers)
    driver.auto = False
    driver.start()
    for _ in range(3):
        driver.finish("a")
    driver.finish("a")  # the last one's handler
    assert ledger.lines[3:] == ["undo 2"]
    driver.crash()
    assert driver.order("a").is_rollback
    driver.auto = True
    driver.settle()
    assert ledger.lines[3:] == ["undo 2", "undo 1", "undo 0"]


def test_d_14_r_rb_10_11_a_failing_handler_is_retried_then_visible_and_resumable(drive: Drive) -> None:
    ledger = Ledger()

    async def run(ctx: Any) -> Any:
        await ctx.rollback_checkpoint("cp")
        await ctx.step("a", ledger.write, 1, rollback=ledger.undo)
        await ctx.step("b", ledger.write, 2, rollback=ledger.undo_badly)
        raise ValueError("first")

    driver = drive(run, **ledger.handlers)
    assert driver.outcome is None
    driver.crash()  # the backoff survives
    assert ledger.lines[-1] == "cannot undo 2"
    assert ledger.lines.count("cannot undo 2") == 1
    driver.advance(10)
    assert ledger.lines.count("cannot undo 2") == 4
    assert driver.set_aside.reason is Blocked.ROLLBACK_FAILED
    assert [e.source for e in driver.failures if e.source == "rollback"] == ["rollback"] * 4
    good = dict.fromkeys([driver.row("b").rollback, driver.row("a").rollback], ledger.undo)
    driver.program["find_handler"] = good.__getitem__
    driver.set_aside = None
    driver.crash()  # as recover() does
    assert ledger.lines[-2:] == ["undo 2", "undo 1"]
    assert driver.error.error.message == "first"


def test_d_14_a_handler_that_cannot_be_found(drive: Drive) -> None:
    ledger = Ledger()

    async def run(ctx: Any) -> Any:
        await ctx.rollback_checkpoint("cp")
        await ctx.step("a", ledger.write, 1, rollback=ledger.undo)
        raise ValueError

    driver = drive(run)
    assert driver.set_aside.reason is Blocked.ROLLBACK_FAILED
    assert "undo" in driver.set_aside.error.message


def test_d_14_a_handler_that_kills_its_process_is_counted(drive: Drive) -> None:
    ledger = Ledger()

    async def run(ctx: Any) -> Any:
        await ctx.rollback_checkpoint("cp")
        await ctx.step("a", ledger.write, 1, rollback=ledger.undo)
        raise ValueError

    driver = drive(run, auto=False, limits=Limits(max_starts=3), **ledger.handlers)
    driver.finish("a")
    for _ in range(5):
        if driver.set_aside is None:
            driver.crash()
    assert driver.set_aside.reason is Blocked.ROLLBACK_FAILED


@pytest.mark.parametrize("place", ["native", "callable", "join", "race", "try", "nested"])
def test_r_rb_14_d_14_every_scope_is_compensated(drive: Drive, place: str) -> None:
    from rivet_workflows.engine import Loop

    ledger = Ledger()

    async def run(ctx: Any) -> Any:
        await ctx.rollback_checkpoint("cp")

        async def work(c: Any, *values: Any) -> Any:
            for value in values:
                await c.step("w", ledger.write, value, rollback=ledger.undo)

        if place == "native":
            async for it in ctx.loop("l", history_prune_interval=1):
                await work(it, it.iteration)
                if it.iteration == 2:
                    break
        elif place == "callable":

            async def body(it: Any) -> Any:
                await work(it, it.iteration)
                return Loop.stop() if it.iteration == 2 else None

            await ctx.loop("l", body, history_prune_interval=1)
        elif place == "join":
            await ctx.join("j", a=lambda b: work(b, 0, 2), b=lambda b: work(b, 1))
        elif place == "race":
            await ctx.race("r", a=lambda b: b.sleep("z", 100), b=lambda b: work(b, 0, 1, 2))
        elif place == "try":
            await ctx.try_block("t", lambda b: work(b, 0, 1, 2))
        else:
            async for it in ctx.loop("l"):
                await it.join("j", a=lambda b: b.try_block("t", lambda c: work(c, 0, 1, 2)))
                break
        raise ValueError

    driver = drive(run, **ledger.handlers)
    assert ledger.lines == [0, 1, 2, "undo 2", "undo 1", "undo 0"]
    assert driver.outcome.lifecycle is Lifecycle.FAILED


def test_d_14_a_checkpoint_ends_well_with_its_iteration(drive: Drive) -> None:
    """The seeds' worker: checkpoint and handlers inside a loop; the third order fails."""
    ledger = Ledger()

    async def run(ctx: Any) -> Any:
        async for it in ctx.loop("orders"):
            await it.rollback_checkpoint("cp")
            await it.step("reserve", ledger.write, f"reserve {it.iteration}", rollback=ledger.undo)
            await it.step("charge", ledger.write, f"charge {it.iteration}", rollback=ledger.undo)
            if it.iteration == 2:
                await it.step("ship", fail, max_retries=0)

    drive(run, **ledger.handlers)
    assert ledger.lines[-2:] == ["undo charge 2", "undo reserve 2"]
    assert len([line for line in ledger.lines if line.startswith("undo")]) == 2


def test_d_14_an_enclosing_checkpoint_still_covers_what_ended_well(drive: Drive) -> None:
    ledger = Ledger()

    async def run(ctx: Any) -> Any:
        await ctx.rollback_checkpoint("outer")

        async def branch(b: Any) -> Any:
            await b.rollback_checkpoint("inner")
            await b.step("a", ledger.write, 1, rollback=ledger.undo)

        await ctx.join("j", x=branch)
        raise ValueError

    drive(run, **ledger.handlers)
    assert ledger.lines == [1, "undo 1"]


def test_d_14_checkpoints_of_handled_failures_do_not_pile_up(drive: Drive) -> None:
    ledger = Ledger()

    async def run(ctx: Any) -> Any:
        async for it in ctx.loop("l"):

            async def body(b: Any) -> Any:
                await b.rollback_checkpoint("cp")
                await b.step("a", ledger.write, 1, rollback=ledger.undo)
                await b.step("f", fail, max_retries=0)

            await it.try_block("t", body)
            if it.iteration == 5:
                assert len(driver.machine.checkpoints) <= 1
                break

    driver: Driver = drive(run, start=False, **ledger.handlers)
    driver.start()
    assert driver.outcome.lifecycle is Lifecycle.COMPLETED  # R-TRY-13: handling undoes nothing
    assert "undo 1" not in ledger.lines


def test_r_rb_15_a_handled_failure_does_not_stop_it(drive: Drive) -> None:
    ledger = Ledger()

    async def run(ctx: Any) -> Any:
        await ctx.rollback_checkpoint("cp")
        await ctx.step("a", ledger.write, 1, rollback=ledger.undo)
        await ctx.try_step("f", fail, max_retries=0)
        await ctx.step("b", ledger.write, 2, rollback=ledger.undo)
        raise ValueError

    drive(run, **ledger.handlers)
    assert ledger.lines == [1, 2, "undo 2", "undo 1"]


def test_d_14_parallel_steps_by_completion(drive: Drive) -> None:
    ledger = Ledger()

    async def run(ctx: Any) -> Any:
        await ctx.rollback_checkpoint("cp")
        await ctx.join(
            "j",
            a=lambda b: b.step("a", ledger.write, "a", rollback=ledger.undo),
            b=lambda b: b.step("b", ledger.write, "b", rollback=ledger.undo),
        )
        raise ValueError

    driver = drive(run, auto=False, **ledger.handlers)
    driver.finish("b").finish("a")
    driver.auto = True
    driver.settle()
    assert ledger.lines == ["b", "a", "undo a", "undo b"]


def test_a_running_step_is_told_and_late_when_the_run_rolls_back(drive: Drive) -> None:
    ledger = Ledger()

    async def run(ctx: Any) -> Any:
        await ctx.rollback_checkpoint("cp")
        await ctx.step("a", ledger.write, 1, rollback=ledger.undo)
        ctx.step("left", echo)
        raise ValueError

    driver = drive(run, auto=False, **ledger.handlers)
    driver.finish("a")
    assert driver.machine.at_rest is False  # its handler runs
    assert [order.is_rollback for order in driver.pending] == [True]
    driver.auto = True
    driver.settle()
    assert driver.outcome.lifecycle is Lifecycle.FAILED
    assert driver.machine.at_rest
    assert driver.machine.wants_look() is None


def test_a_bad_handler_is_refused_at_the_call_and_leaves_no_trace(drive: Drive) -> None:
    def path(function: Any) -> str:
        raise ValueError("a handler must be a module-level function")

    async def run(ctx: Any) -> Any:
        await ctx.rollback_checkpoint("cp")
        with pytest.raises(ValueError, match="module-level"):
            ctx.step("a", echo, rollback=lambda s, o: None)
        return await ctx.step("a", echo, 1)

    driver = drive(run, handler_path=path)
    assert driver.output == 1
    assert driver.names() == ["cp", "a"]


def test_r_rb_01_a_checkpoint_is_unique_in_its_scope(drive: Drive) -> None:
    async def run(ctx: Any) -> Any:
        await ctx.rollback_checkpoint("cp")
        await ctx.rollback_checkpoint("cp")

    assert "duplicate" in drive(run).set_aside.error.message


def test_branches_are_unwound_before_their_run_is_rolled_back(drive: Drive) -> None:
    ledger = Ledger()
    inside = [0]

    async def run(ctx: Any) -> Any:
        async def waits(b: Any) -> Any:
            inside[0] += 1
            try:
                await b.sleep("z", 60)
            finally:
                inside[0] -= 1

        await ctx.rollback_checkpoint("cp")
        await ctx.step("a", ledger.write, 1, rollback=ledger.undo)
        await ctx.join("j", waits=waits, refused=lambda _b: ctx.step("outer", echo))

    driver = drive(run, auto=False, **ledger.handlers)
    driver.finish("a")
    assert [order.is_rollback for order in driver.pending] == [True]
    assert inside == [0]
    assert driver.machine.next_due is None


def test_a_run_without_a_checkpoint_fails_with_the_commit_that_tells_why(drive: Drive) -> None:
    async def run(ctx: Any) -> Any:
        raise ValueError

    assert drive(run).commits == 1


def test_d_15_a_look_that_answers_after_the_run_failed_wakes_nothing() -> None:
    ledger = Ledger()

    async def run(ctx: Any) -> Any:
        async def refused(b: Any) -> Any:
            await b.step("s", echo)
            await ctx.step("outer", echo)

        await ctx.rollback_checkpoint("cp")
        await ctx.step("a", ledger.write, 1, rollback=ledger.undo)
        await ctx.join(
            "j", wait=lambda b: b.queue.next("m"), timer=lambda b: b.sleep("z", 10), refused=refused
        )

    driver = Driver(run, auto=False, **ledger.handlers).start()
    driver.finish("a").settle()
    driver.now += 10_000_000
    driver.apply(driver.machine.time(driver.now))
    assert driver.machine.wants_look() is not None
    driver.finish("s")
    driver.finish("a", error=KeyError())
    retry = driver.machine.next_due
    driver.apply(driver.machine.messages([], None, True, driver.now - 1, driver.now))
    assert driver.machine.next_due == retry == driver.now + 200_000


def test_what_was_ordered_as_the_run_failed_is_not_run(drive: Drive) -> None:
    ledger = Ledger()

    async def run(ctx: Any) -> Any:
        await ctx.rollback_checkpoint("cp")
        await ctx.step("a", ledger.write, 1, rollback=ledger.undo)
        ctx.step("left", ledger.write, 2, ephemeral=True)
        raise ValueError

    driver = drive(run, **ledger.handlers)
    assert driver.outcome is not None
    assert ledger.lines == [1, "undo 1"]


def test_the_error_of_the_run_is_kept_through_the_rollback(drive: Drive) -> None:
    ledger = Ledger()

    async def run(ctx: Any) -> Any:
        await ctx.rollback_checkpoint("cp")
        await ctx.step("a", ledger.write, 1, rollback=ledger.undo)
        await ctx.join("j", x=lambda b: b.step("f", fail, "why", max_retries=0))

    driver = drive(run, auto=False, **ledger.handlers)
    driver.finish("a").finish("f")
    driver.crash()
    driver.finish("a")
    assert isinstance(driver.error, JoinError)
    assert driver.error.errors["x"].is_a(StepFailed.__name__)
