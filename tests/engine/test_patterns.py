"""Patterns of the documentation that did not work in the original, at the level of the engine (S-SEED-03)."""

from __future__ import annotations

from typing import Any

import pytest

from rivet_workflows.records import Lifecycle
from tests.engine.driver import Driver
from tests.engine.steps import Ledger, echo


@pytest.fixture(params=[False, True], ids=["parked", "replayed"])
def replay(request: pytest.FixtureRequest) -> Any:
    return request.param


def test_bounded_drain(replay: bool) -> None:
    """One wait name up to ten times in an iteration, with a short timeout."""

    async def run(ctx: Any) -> Any:
        async for it in ctx.loop("drain", state=[]):
            batch = []
            for _ in range(10):
                messages = await it.queue.next_batch("wait-work", names="work", timeout=0.01)
                if not messages:
                    break
                batch.append(messages[0].body)
            if batch:
                await it.step("handle", echo, batch)
                it.loop_state = [*it.loop_state, batch]
            if 99 in batch:
                break
            await it.sleep("pause", 1)
        return it.loop_state  # type: ignore[possibly-undefined]

    driver = Driver(run, replay=replay)
    for i in range(12):
        driver.drop("work", i)
    driver.start().advance(1.5).crash()
    driver.send("work", 99)
    assert driver.advance(3).output == [list(range(10)), [10, 11], [99]]


def test_saga_inside_a_loop(replay: bool) -> None:
    ledger = Ledger()

    async def run(ctx: Any) -> Any:
        async for it in ctx.loop("checkout"):
            order = await it.queue.next("order", names="orders")
            await it.rollback_checkpoint("saga")
            await it.step("reserve", ledger.write, f"reserve {order.body}", rollback=ledger.undo)
            await it.step("charge", ledger.write, f"charge {order.body}", rollback=ledger.undo)
            if order.body == 2:
                raise ValueError("no carrier")

    driver = Driver(run, replay=replay, **ledger.handlers).start()
    driver.send("orders", 1)
    driver.crash()
    driver.send("orders", 2)
    assert ledger.lines[-2:] == ["undo charge 2", "undo reserve 2"]
    assert "undo charge 1" not in ledger.lines
    assert driver.outcome.lifecycle is Lifecycle.FAILED


def test_versioned_workflow(replay: bool) -> None:
    """A run that had finished the old step, and then the new code with its new step first."""

    async def old(ctx: Any) -> Any:
        await ctx.step("validate-v1", echo)
        await ctx.sleep("then", 1)

    async def new(ctx: Any) -> Any:
        await ctx.step("validate-v2", echo)
        await ctx.removed("validate-v1", "step")
        async for it in ctx.loop("main-loop-v2"):
            await it.sleep("idle", 0.5)
            await it.step("heartbeat-v2", echo)
            if it.iteration == 3:
                break
        return "v2"

    driver = Driver(old, replay=replay, auto=False).start()
    driver.finish("validate-v1")
    driver.auto, driver.inflight, driver.next_seq = True, '{"e":[]}', 3  # it got no further
    driver.deploy(new).advance(1).crash()
    assert driver.advance(5).output == "v2"
    assert driver.started.count("validate-v1") == 1


def test_handoff_between_branches_and_a_control_signal(replay: bool) -> None:
    async def run(ctx: Any) -> Any:
        async def worker(b: Any) -> Any:
            async for it in b.loop("work", state=0):
                job = await it.queue.next("job", names="jobs")
                it.loop_state += await it.step("do", echo, job.body)

        async def control(b: Any) -> Any:
            async for it in b.loop("control"):
                signal = await it.queue.next("signal", names="control")
                if signal.body == "stop":
                    return "stopped"
                await it.sleep("paused", 10)
            return None

        return (await ctx.race("until-stopped", worker=worker, control=control)).value

    driver = Driver(run, replay=replay).start()
    for i in range(5):
        driver.send("jobs", i)
        driver.send("control", "pause" if i == 0 else "stop") if i in (0, 4) else None
        driver.crash() if i == 2 else None
    assert driver.outcome is None
    assert driver.advance(10).output == "stopped"
    assert driver.started == ["do"] * 5
