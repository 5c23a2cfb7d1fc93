"""A whole worker, its threads and a real database, in this process. Waits are for what happens, never for time."""

from __future__ import annotations

import asyncio
import threading

from django.db import connections

from rivet_workflows import Actor, Event, Queue, action, client
from tests import sidedb
from tests.waiting import until
from tests.worker.fleet import Total, Workers, owned, sidedb_alias, worker_rows
from tests.worker.support import LONG


@sidedb.each
def test_a_workflow_runs_to_its_end(workers: Workers):
    class Order(Actor):
        state = Total
        paid = Event(int)
        work = Queue(int)

        async def run(self, ctx):
            message = await ctx.queue.next("wait", names=[self.work])
            first = await ctx.step("add", self.add, message.body)
            await ctx.sleep("rest", 0.01)
            return await ctx.step("aadd", self.aadd, first)

        def add(self, step, n):
            step.state.count += n
            step.broadcast("paid", n)
            return n

        async def aadd(self, step, n):
            await asyncio.sleep(0)
            step.state.count += n
            return step.state.count

        @action(read_only=True)
        def total(self, c):
            return c.state.count

    order = client.get_or_create(Order, "o-1")
    order.send(Order.work, 3)
    workers.run_dry()
    assert order.status().state == "completed"
    assert order.result(timeout=0) == 6
    assert order.total() == 6
    assert [event.name for event in workers.side.store.events(order.actor_id)] == ["paid"]
    assert worker_rows() == 0
    assert owned() == 0


@sidedb.each
def test_many_actors_on_two_workers_each_run_once(workers: Workers):
    ran: list[str] = []

    class Many(Actor):
        async def run(self, ctx):
            for n in range(3):
                await ctx.step("mark", self.mark, n)

        def mark(self, step, n):
            ran.append(f"{step.key}-{n}")

    handles = [client.create(Many, str(n)) for n in range(40)]
    workers.start()
    workers.start()
    until(lambda: all(handle.status().state == "completed" for handle in handles))
    assert sorted(ran) == sorted(f"{k}-{n}" for k in range(40) for n in range(3))


@sidedb.each
def test_a_message_wakes_an_actor_at_rest(workers: Workers):
    class Waiting(Actor):
        work = Queue(int)

        async def run(self, ctx):
            return (await ctx.queue.next("wait", names=[self.work])).body

    handle = client.create(Waiting, "w")
    workers.start()
    until(lambda: handle.status().state == "sleeping")
    handle.send(Waiting.work, 7)
    assert handle.result(timeout=LONG) == 7


@sidedb.each
def test_a_message_to_another_actor_goes_with_the_step(workers: Workers):
    class Receiver(Actor):
        work = Queue(int)

        async def run(self, ctx):
            return (await ctx.queue.next("wait", names=[self.work])).body

    class Sender(Actor):
        async def run(self, ctx):
            await ctx.step("send", self.send)

        def send(self, step):
            step.client().get_or_create(Receiver, "r").send("work", step.attempt)
            if step.attempt == 1:
                raise ValueError("the first attempt sends nothing")

    client.create(Sender, "s")
    workers.run_dry()
    assert client.get(Receiver, "r").result(timeout=0) == 2


@sidedb.each
def test_changes_of_step_and_action_merge(workers: Workers):
    inside, go = threading.Event(), threading.Event()

    class Shared(Actor):
        state = Total

        async def run(self, ctx):
            await ctx.step("count", self.count)

        def count(self, step):
            step.state.count = 5
            inside.set()
            assert go.wait(LONG)

        @action
        def rename(self, c, label: str):
            c.state.label = label

        @action(read_only=True)
        def get(self, c):
            return [c.state.count, c.state.label]

    shared = client.create(Shared, "s")
    workers.start()
    assert inside.wait(LONG)
    shared.rename("renamed")
    go.set()
    until(lambda: shared.status().state == "completed")
    assert shared.get() == [5, "renamed"]


@sidedb.each
def test_a_change_of_the_same_field_is_a_conflict_that_is_tried_again(workers: Workers):
    inside, go, seen = threading.Event(), threading.Event(), []

    class Contested(Actor):
        state = Total

        async def run(self, ctx):
            await ctx.step("count", self.count, retry_backoff_base=0.01)

        def count(self, step):
            seen.append(step.state.count)
            step.state.count += 1
            inside.set()
            assert go.wait(LONG)

        @action
        def set(self, c, n: int):
            c.state.count = n

        @action(read_only=True)
        def get(self, c):
            return c.state.count

    contested = client.create(Contested, "s")
    workers.start()
    assert inside.wait(LONG)
    contested.set(10)
    go.set()
    until(lambda: contested.status().state == "completed")
    assert contested.get() == 11
    assert seen == [0, 10]
    error = contested.history()[0].attempts[0].error
    assert error is not None
    assert error.is_a("StateConflict")


@sidedb.each
def test_vars_live_while_the_actor_is_held(workers: Workers):
    class Remembering(Actor):
        vars = dict

        async def run(self, ctx):
            await ctx.step("one", self.one)
            return await ctx.step("two", self.two)

        def one(self, step):
            step.vars["n"] = 1

        def two(self, step):
            return step.vars["n"]

    handle = client.create(Remembering, "r")
    workers.run_dry()
    assert handle.result(timeout=0) == 1


@sidedb.each
def test_the_orm_in_run_is_reported_and_never_reaches_the_database(workers: Workers):
    class Reading(Actor):
        async def run(self, ctx):
            with connections[sidedb_alias()].cursor() as cursor:
                cursor.execute("SELECT 1")

    handle = client.create(Reading, "r")
    workers.run_dry()
    error = handle.status().error
    assert error is not None
    assert error.is_a("NotReplaySafe")


@sidedb.each
def test_on_error_runs_after_the_failure_is_recorded(workers: Workers):
    told, heard = [], threading.Event()

    class Failing(Actor):
        state = Total

        async def run(self, ctx):
            await ctx.step("fail", self.fail, max_retries=1, retry_backoff_base=0.01)

        def fail(self, step):
            raise ValueError("no")

        def on_error(self, c, event):
            told.append(
                (event.source, event.attempt, event.will_retry, len(c.client().get(Failing, "f").history()))
            )
            c.state.count += 1
            if not event.will_retry:
                heard.set()

        @action(read_only=True)
        def failures(self, c):
            return c.state.count

    handle = client.create(Failing, "f")
    workers.start()
    assert heard.wait(LONG)
    assert [(source, attempt, again) for source, attempt, again, _ in told] == [
        ("step", 1, True),
        ("step", 2, False),
    ]
    assert all(entries == 1 for *_, entries in told)
    until(lambda: handle.failures() == 2)
