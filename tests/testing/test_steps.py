"""How the kit runs steps: in the calling thread, with everything a step may do."""

from __future__ import annotations

import asyncio
import logging
import time

import pytest
from asgiref.sync import async_to_sync, sync_to_async
from django.contrib.auth.models import Group
from django.db import IntegrityError

from rivet_workflows import Actor, Queue, StepTimeout, action, client


class AppError(Exception):
    pass


def test_async_steps_run_together(rivet):
    arrived = []

    async def meet(step, name):
        arrived.append(name)
        while len(arrived) < 2:
            await asyncio.sleep(0)
        return name

    class Meeting(Actor):
        async def run(self, ctx):
            async def left(branch):
                return await branch.step("left", meet, "left")

            async def right(branch):
                return await branch.step("right", meet, "right")

            return await ctx.join("both", left=left, right=right)

    assert rivet.client.create(Meeting).result() == {"left": "left", "right": "right"}


def test_a_race_cancels_its_losers(rivet):
    ended = []

    async def endless(step):
        try:
            await asyncio.Event().wait()
        finally:
            ended.append(step.is_cancelled())

    def quick(step):
        return "quick"

    class Race(Actor):
        async def run(self, ctx):
            async def slow(branch):
                return await branch.step("endless", endless, timeout=None)

            async def fast(branch):
                return await branch.step("quick", quick)

            return (await ctx.race("first", slow=slow, fast=fast)).winner

    assert rivet.client.create(Race).result() == "fast"
    rivet.close()
    assert ended == [True]


def test_a_run_after_a_death_is_the_same_attempt_again(rivet):
    runs = []

    def pay(step):
        runs.append((step.attempt, step.idempotency_key))
        if step.attempt == 1:
            raise OSError("net down")
        return "paid"

    class Order(Actor):
        async def run(self, ctx):
            return await ctx.step("pay", pay)

    rivet.crash_at("pay", "after_run", times=2)
    order = rivet.client.create(Order)
    assert order.result() == "paid"
    assert [attempt for attempt, _ in runs] == [1, 1, 1, 2]
    assert len({key for _, key in runs}) == 1
    assert len(rivet.history(order)[-1].attempts) == 2


def test_timeouts_are_real_time(rivet):
    seen = []

    async def hangs(step):
        await asyncio.Event().wait()

    def busy(step):
        while not step.is_cancelled():
            time.sleep(0.001)
        seen.append(step.attempt)

    class Slow(Actor):
        async def run(self, ctx):
            tried = [
                await ctx.try_step("hangs", hangs, timeout=0.01),
                await ctx.try_step("busy", busy, timeout=0.01, retry_on_timeout=True, max_retries=1),
            ]
            return [result.failure.kind for result in tried]

    assert rivet.client.create(Slow).result() == ["timeout", "timeout"]
    assert seen == [1, 2]


def test_a_decorated_async_step(rivet):
    async def inner(step):
        return await sync_to_async(lambda: 5)()

    def hides(step):
        return inner(step)

    class Hidden(Actor):
        async def run(self, ctx):
            return await ctx.step("hidden", hides)

    assert rivet.client.create(Hidden).result() == 5


def test_sync_code_of_an_async_step_may_go_back_to_async(rivet):
    async def deep():
        return await sync_to_async(Group.objects.count)()

    def back():
        Group.objects.create(name="one")
        return async_to_sync(deep)()

    async def outer(step):
        return await sync_to_async(back)()

    class Deep(Actor):
        async def run(self, ctx):
            return await ctx.step("outer", outer)

    assert rivet.client.create(Deep).result() == 1


def test_a_step_that_waits_for_another_actor(rivet):
    class Doubler(Actor):
        numbers = Queue(int, reply=int)

        async def run(self, ctx):
            async for it in ctx.loop("loop"):
                message = await it.queue.next("next", names=["numbers"], completable=True)
                await it.sleep("think", 1)
                await message.complete(message.body * 2)

        @action(read_only=True)
        async def name_of(self, c):
            return self.key

    def ask(step, number):
        other = step.client().get_or_create(Doubler, "d")
        return other.send("numbers", number, wait=True, timeout=10).response

    async def aask(step, number):
        other = await step.client().aget_or_create(Doubler, "d")
        answer = await other.asend("numbers", number, wait=True, timeout=10)
        return answer.response, await other.aname_of()

    class Asks(Actor):
        async def run(self, ctx):
            first = await ctx.step("ask", ask, 4)
            return await ctx.step("aask", aask, first)

    assert rivet.client.create(Asks).result() == (16, "d")


def test_sends_of_a_step_wake_their_receivers(rivet):
    class Receiver(Actor):
        async def run(self, ctx):
            return (await ctx.queue.next("next")).body

    def tell(step):
        step.client().get_or_create(Receiver, "r").send("any", "through the step")

    def tell_at_once(step):
        client.get_or_create(Receiver, "s").send("any", "at once")

    class Sender(Actor):
        async def run(self, ctx):
            await ctx.step("tell", tell)
            await ctx.step("tell-at-once", tell_at_once)

    for key in "rs":
        rivet.client.get_or_create(Receiver, key)
    rivet.run_until_idle()
    rivet.client.create(Sender)
    rivet.run_until_idle()
    assert rivet.client.get(Receiver, "r").result() == "through the step"
    assert rivet.client.get(Receiver, "s").result() == "at once"


def test_a_failed_statement_of_a_step_leaves_the_tests_transaction_usable(rivet):
    Group.objects.create(name="taken")

    def clash(step):
        Group.objects.create(name="taken")

    class Clash(Actor):
        async def run(self, ctx):
            return (await ctx.try_step("clash", clash, max_retries=0)).failure.error.type

    assert rivet.client.create(Clash).result().endswith(IntegrityError.__name__)
    assert Group.objects.count() == 1


def test_the_orm_in_run_is_refused(rivet):
    class Queries(Actor):
        async def run(self, ctx):
            return Group.objects.count()

    actor = rivet.client.create(Queries)
    rivet.run_until_idle()
    assert "step" in actor.status().error.message
    assert Group.objects.count() == 0


def test_a_rollback_handler_may_fail_or_kill_its_worker(rivet):
    class Saga(Actor):
        async def run(self, ctx):
            await ctx.rollback_checkpoint("saga")
            await ctx.step("book", book, rollback=unbook)
            await ctx.step("pay", pay, max_retries=0)

    rivet.fail_step("pay", times=None, error=AppError)
    rivet.fail_step("book", rollback=True)
    rivet.crash_at("book", "before", rollback=True)
    rivet.stub_step("book", lambda step: "booked")
    saga = rivet.client.create(Saga)
    with pytest.raises(Exception, match="pay"):
        saga.result(timeout=60)
    assert UNDONE == ["booked"]
    UNDONE.clear()


UNDONE: list[str] = []


def book(step):
    raise AssertionError("stubbed")


def unbook(step, output):
    UNDONE.append(output)


def pay(step):
    pass


def test_on_error_is_called(rivet):
    class Tells(Actor):
        state = dict

        async def run(self, ctx):
            await ctx.step("pay", pay, max_retries=1)

        def on_error(self, c, event):
            c.state.setdefault("seen", []).append((event.source, event.step_name, event.will_retry))

        @action(read_only=True)
        def seen(self, c):
            return c.state["seen"]

    rivet.fail_step("pay", times=2)
    tells = rivet.client.create(Tells)
    rivet.advance(1)
    assert tells.seen() == [("step", "pay", True), ("step", "pay", False)]


def test_state_that_an_action_changed_meanwhile(rivet):
    class Counts(Actor):
        state = {"steps": 0, "calls": 0}

        async def run(self, ctx):
            await ctx.step("count", count)

        @action
        def call_me(self, c):
            c.state["calls"] += 1

        @action(read_only=True)
        def look(self, c):
            return c.state

    def count(step):
        step.state["steps"] += 1
        client.get(Counts).call_me()
        step.update(lambda state: {**state, "calls": state["calls"] + 10})

    counts = rivet.client.create(Counts)
    rivet.run_until_idle()
    assert counts.look() == {"steps": 1, "calls": 11}


def test_log_lines_of_run_are_written_once(rivet, caplog):
    class Logs(Actor):
        async def run(self, ctx):
            await ctx.step("pay", pay)
            ctx.log.warning("paid")
            await ctx.step("pay", pay)

    with caplog.at_level(logging.WARNING, "rivet_workflows"):
        rivet.client.create(Logs).result()
    assert [record.getMessage() for record in caplog.records].count("paid") == 1


def test_a_step_timeout_of_a_step_that_returns_in_time(rivet):
    class Fine(Actor):
        async def run(self, ctx):
            return await ctx.step("pay", pay, timeout=60)

    assert rivet.client.create(Fine).result() is None
    rivet.time_out_step("pay")
    with pytest.raises(StepTimeout):
        rivet.client.create(Fine, "b").result()
