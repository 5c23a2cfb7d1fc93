"""A machine that stays parked must not grow, however long its loop runs; and deep things must not recurse."""

from __future__ import annotations

import gc
import sys
from typing import Any

from rivet_workflows.engine.timers import Timers
from rivet_workflows.exceptions import StepFailed
from tests.engine.driver import Driver, Result
from tests.engine.steps import echo


def objects() -> int:
    gc.collect()
    return len(gc.get_objects())


async def busy(ctx: Any) -> None:
    async for it in ctx.loop("orders", state=0):
        await it.rollback_checkpoint("cp")
        message = await it.queue.next("m", timeout=1_000_000, completable=True)
        try:
            await it.step("work", echo, max_retries=0)
        except StepFailed:
            pass

        async def fast(b: Any) -> Any:
            return await b.step("fast", echo)

        await it.race("r", slow=lambda b: b.queue.next("never", names="never", timeout=1_000), fast=fast)
        await it.join("j", a=fast, b=lambda b: b.try_block("t", fast))
        await message.complete("ok")


def turn(driver: Driver, number: int) -> None:
    """One iteration, with the driver's own lists kept short."""
    driver.fail_next["work"] = [ValueError("no")] if number % 3 == 0 else []
    driver.send("orders", number)
    for seen in (driver.started, driver.failures, driver.cancelled, driver.notes, driver.buffer):
        seen.clear()
    driver.replies.clear()


def test_a_parked_machine_does_not_grow() -> None:
    driver = Driver(busy, find_handler=lambda _: echo).start()
    for number in range(60):
        turn(driver, number)
    machine, size = driver.machine, sys.getsizeof(driver.inflight)
    before = objects()
    for number in range(60, 460):
        turn(driver, number)
    assert driver.machine is machine
    assert objects() - before < 400
    assert sys.getsizeof(driver.inflight) - size < 100
    assert len(machine.timers) < 200
    assert len(machine.checkpoints) <= 2
    assert machine.mailbox._gone == set()
    assert len(driver.rows) < 400


def test_timers_that_were_cancelled_are_cleared() -> None:
    timers = Timers()
    timers.at(2_000_000, 0)
    timers.at(10, 1)
    for seq in range(2, 10_000):
        timers.at(1_000_000 + seq, seq)
        timers.cancel(seq)
    assert len(timers) < 200
    assert timers.next() == 10
    timers.at(5, 1)
    assert list(timers.pop_due(20)) == [1]
    timers.cancel(0)
    assert timers.next() is None


def test_a_failed_step_leaves_no_cycle_that_holds_the_machine() -> None:
    class Big:
        pass

    alive: list[Any] = []

    async def run(ctx: Any) -> Any:
        import weakref

        big = Big()
        alive.append(weakref.ref(big))
        try:
            await ctx.step("f", echo, max_retries=0)
        except StepFailed:
            pass
        del big
        await ctx.sleep("z", 5)

    driver = Driver(run, auto=False).start()
    gc.disable()
    try:
        order = driver.order("f")
        driver.pending.clear()
        from rivet_workflows.exceptions import ErrorInfo

        driver.apply(
            driver.machine.step_done(order.seq, 1, Result(False, error=ErrorInfo("E", "e")), driver.now)
        )
        assert alive[0]() is None
    finally:
        gc.enable()


def test_deep_nesting_does_not_recurse() -> None:
    async def down(c: Any, level: int) -> Any:
        if level == 0:
            return await c.step("bottom", echo, 1)
        result = await c.try_block("t", lambda b: down(b, level - 1))
        return result.value

    async def run(ctx: Any) -> Any:
        return await down(ctx, 120)

    for replay in (False, True):
        assert Driver(run, replay=replay).start().output == 1
