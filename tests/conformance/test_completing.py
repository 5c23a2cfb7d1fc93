"""Messages that are completed, and those an actor sends itself: R-QUEUE, D-15."""

from __future__ import annotations

import json
from typing import Any

import pytest

from rivet_workflows import codec
from rivet_workflows.engine import Limits
from rivet_workflows.exceptions import MessageNotCompleted
from rivet_workflows.records import Blocked, EntryStatus, Lifecycle, MessageRow
from tests.conformance.conftest import Drive
from tests.engine.driver import START, Driver
from tests.engine.steps import Ledger, echo

# -- completable messages ----------------------------------------------------------------------------


def test_r_queue_20_complete(drive: Drive) -> None:
    async def run(ctx: Any) -> Any:
        message = await ctx.queue.next("m", completable=True)
        await message.complete({"ok": True})
        await message.complete("again")  # D-16: idempotent
        return message.body

    driver = drive(run)
    number = driver.send("a", 1, wants_reply=True)
    assert driver.output == 1
    assert driver.replies == {number: {"ok": True}}
    assert driver.queue == []


def test_r_queue_21_not_completable(drive: Drive) -> None:
    async def run(ctx: Any) -> Any:
        message = await ctx.queue.next("m")
        with pytest.raises(Exception, match="completable=True"):
            message.complete()

    driver = drive(run)
    number = driver.send("a", 1, wants_reply=True)
    assert driver.outcome.lifecycle is Lifecycle.COMPLETED
    assert driver.replies == {number: "failed"}


def test_r_queue_22_25_27_29_previous_not_completed(drive: Drive) -> None:
    async def run(ctx: Any) -> Any:
        messages = await ctx.queue.next_batch("m", count=2, completable=True)
        await messages[0].complete()
        said = []
        async for it in ctx.loop("x"):  # R-QUEUE-27: in another scope too
            try:
                await it.queue.next("again")
            except MessageNotCompleted as exc:
                said.append(str(exc))
                await it.sleep("z", 1)
            break
        await messages[1].complete()
        return said, (await ctx.queue.next("m")).body

    driver = drive(run, start=False)
    for i in range(3):
        driver.drop("a", i)
    driver.start().crash().advance(1)
    said, body = driver.output
    assert said[0].startswith("Previous completable queue message is not completed.")
    assert body == 2
    assert driver.row("again").status is EntryStatus.FAILED


def test_r_queue_24_completion_survives(drive: Drive) -> None:
    async def run(ctx: Any) -> Any:
        message = await ctx.queue.next("m", completable=True)
        await message.complete("yes")
        await ctx.sleep("z", 1)
        return (await ctx.queue.next("m")).body

    driver = drive(run)
    driver.send("a", 1)
    driver.crash()
    driver.send("a", 2)
    assert driver.crash().advance(1).output == 2


def test_r_queue_22_a_refusal_outlives_its_worker(drive: Drive) -> None:
    """The turn grew long between the refused wait and its being told."""

    async def run(ctx: Any) -> Any:
        async def busy(b: Any) -> Any:
            for number in range(3):
                await b.queue.send("own", number)

        async def refused(b: Any) -> Any:
            try:
                await b.queue.next("again")
            except MessageNotCompleted as exc:
                return str(exc)

        held = await ctx.queue.next("m", completable=True)
        got = await ctx.join("j", busy=busy, refused=refused)
        await held.complete()
        return got["refused"]

    driver = drive(run, limits=Limits(max_turn_rows=1))
    driver.drop("q")
    driver.apply(driver.machine.bell(driver.now))
    driver.look()
    while "again" not in driver.inflight:
        driver.apply(driver.machine.time(driver.now))
    assert driver.crash().output.startswith("Previous completable queue message is not completed.")


def test_a_completion_is_stored_at_once(drive: Drive) -> None:
    async def run(ctx: Any) -> Any:
        message = await ctx.queue.next("m", completable=True)
        await message.complete("yes")
        await ctx.step("cheap", echo, ephemeral=True)

    driver = drive(run, auto=False)
    number = driver.send("a", wants_reply=True)
    assert [order.name for order in driver.pending] == ["cheap"]
    assert driver.replies == {number: "yes"}


def test_r_queue_26_completed_in_a_step(drive: Drive) -> None:
    async def run(ctx: Any) -> Any:
        message = await ctx.queue.next("m", completable=True)
        await ctx.step("work", echo, message.body)
        return (await ctx.queue.next("m2", timeout=0.1)) if False else message.body

    driver = drive(run, auto=False)
    number = driver.send("a", 1)
    assert driver.machine.held.keys() == {number}
    driver.machine.completed_in_step([number])
    driver.machine.completed_in_step([number])  # D-16: idempotent
    driver.finish("work")
    assert driver.output == 1
    assert driver.replies == {}


def test_d_16_held_messages_are_hidden_and_given_again_after_a_crash(drive: Drive) -> None:
    async def run(ctx: Any) -> Any:
        async def holder(b: Any) -> Any:
            message = await b.queue.next("m", completable=True)
            await b.step("slow", echo, message.body)
            await message.complete("done")
            return message.body

        async def other(b: Any) -> Any:
            return (await b.queue.next("n", names="b")).body

        return await ctx.join("j", holder=holder, other=other)

    driver = drive(run, auto=False)
    number = driver.send("a", 1)
    driver.crash()
    assert driver.holders.keys() == {number}
    driver.send("b", 2)
    driver.finish("slow")
    assert driver.output == {"holder": 1, "other": 2}
    assert driver.replies == {number: "done"}


@pytest.mark.parametrize("same_turn", [True, False])
def test_d_16_a_lost_race_gives_the_message_back_to_its_place(drive: Drive, same_turn: bool) -> None:
    async def run(ctx: Any) -> Any:
        async def holder(b: Any) -> Any:
            message = await b.queue.next("m", names="a", completable=True)
            await b.sleep("long", 1000)
            await message.complete()

        async def timer(b: Any) -> Any:
            await b.queue.next("go", names="go")

        winner = (await ctx.race("r", holder=holder, timer=timer)).winner
        after = await ctx.queue.next("m", names="a")
        return winner, after.body

    driver = drive(run)
    if same_turn:
        driver.drop("a", 1)
        driver.drop("a", 2)
        driver.send("go")
    else:
        driver.send("a", 1)
        driver.send("a", 2)
        driver.send("go")
    assert driver.output == ("timer", 1)
    assert driver.holders == {}
    assert [m.queue for m in driver.queue] == ["a"]


def test_d_16_what_is_held_at_the_end_is_answered(drive: Drive) -> None:
    async def run(ctx: Any) -> Any:
        await ctx.queue.next("m", completable=True)

    driver = drive(run)
    number = driver.send("a", 1, wants_reply=True)
    assert driver.replies == {number: "failed"}
    assert driver.queue == []
    assert "held" not in json.loads(driver.inflight)


def test_d_16_what_is_given_back_can_be_received_before_that_is_stored() -> None:
    async def run(ctx: Any) -> Any:
        async def holder(b: Any) -> Any:
            await b.queue.next("m", names="a", completable=True)
            await b.sleep("long", 1000)

        await ctx.race("r", holder=holder, go=lambda b: b.queue.next("go", names="go"))
        return (await ctx.queue.next("m", names="a")).body

    machine = Driver(run).load()
    machine.start(START)
    given, go = MessageRow(1, "a", "5", START), MessageRow(2, "go", "null", START)
    names, _ = machine.wants_look() or ((), 0)
    assert machine.messages([given, go], names, True, START, START).unholds == [1]
    names, _ = machine.wants_look() or ((), 0)
    outcome = machine.messages([given], names, True, START, START).outcome
    assert outcome is not None
    assert outcome.output == "5"


def test_r_queue_30_wait_in_a_race_with_a_far_deadline(drive: Drive) -> None:
    async def run(ctx: Any) -> Any:
        outcome = await ctx.race(
            "r", bid=lambda b: b.queue.next("bid"), expire=lambda b: b.sleep("expire", 10_000)
        )
        return outcome.winner

    driver = drive(run)
    driver.send("bids", 5)
    assert driver.output == "bid"
    assert driver.machine.next_due is None


def test_a_message_that_cannot_be_read_stays_and_the_actor_is_set_aside(drive: Drive) -> None:
    async def run(ctx: Any) -> Any:
        await ctx.queue.next("m")

    driver = drive(run)
    driver._put("a", '{"$":"gone.Klass","v":{}}')
    driver.ring()
    if driver.set_aside is None:
        pytest.skip("this codec reads everything")
    assert driver.set_aside.reason is Blocked.UNREADABLE
    assert len(driver.queue) == 1


# -- sending -----------------------------------------------------------------------------------------


def test_r_send_01_recorded_and_sent_once(drive: Drive) -> None:
    async def run(ctx: Any) -> Any:
        await ctx.queue.send("own", {"n": 1})
        await ctx.sleep("z", 1)
        return (await ctx.queue.next("m", names="own")).body

    driver = drive(run).crash().evict().advance(1)
    assert driver.output == {"n": 1}
    assert driver.queue == []
    assert driver.names() == ["own", "z", "m"]


def test_r_send_body_that_cannot_be_stored(drive: Drive) -> None:
    ledger = Ledger()

    async def run(ctx: Any) -> Any:
        with pytest.raises(TypeError):
            ctx.queue.send("own", open)
        return await ctx.step("a", ledger.write, 1)

    assert drive(run).output == 1


def test_a_sent_body_is_checked_for_its_queue(drive: Drive) -> None:
    async def run(ctx: Any) -> Any:
        await ctx.queue.send("own", 5)
        return (await ctx.queue.next("m")).body

    driver = drive(run, check_body=lambda queue, body: [queue, body])
    assert driver.output == ["own", 5]
    assert codec.loads(driver.row("own").input or "") == ["own", 5]
