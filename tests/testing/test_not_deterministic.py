"""Workflows that a restart would change fail their own tests in replay mode, with a text that says where."""

from __future__ import annotations

import random
import time

import pytest

from rivet_workflows import Actor, Queue
from rivet_workflows.testing import NotDeterministic


@pytest.fixture
def rivet_mode():
    return "replay"


def work(step, *args):
    return args[0] if args else None


def found(rivet, cls, *sends, advance=0):
    actor = rivet.client.get_or_create(cls, "a")
    for body in sends:
        actor.send("work", body)
    with pytest.raises(NotDeterministic) as caught:
        rivet.advance(advance)
    text = str(caught.value)
    assert cls.__name__.lower() in text
    assert "went on:" in text
    assert "replayed:" in text
    return text


def test_random_arguments(rivet):
    class Lottery(Actor):
        async def run(self, ctx):
            await ctx.step("draw", work, random.random())
            await ctx.step("pay", work)

    text = found(rivet, Lottery)
    assert "draw was recorded with" in text
    assert "ctx.random" in text
    assert 'lottery "a"' in text  # the history


def test_random_branch(rivet):
    turns = iter([True, False] * 50)

    class Branches(Actor):
        async def run(self, ctx):
            if next(turns):
                await ctx.step("heads", work)
            else:
                await ctx.step("tails", work)
            await ctx.step("after", work)

    text = found(rivet, Branches)
    assert '"heads"' in text or '"tails"' in text


def test_the_clock(rivet):
    class Clock(Actor):
        async def run(self, ctx):
            await ctx.step("first", work)
            await ctx.step("stamp", work, time.perf_counter())
            await ctx.step("last", work)

    assert '"stamp"' in found(rivet, Clock)


def test_a_local_carried_across_iterations(rivet):
    class Totals(Actor):
        async def run(self, ctx):
            total = 0
            async for it in ctx.loop("numbers"):
                total += await it.step("add", work, 10)
                if total >= 30:
                    break
                await it.sleep("rest", 1)
            await ctx.step("save", work, total)

    text = found(rivet, Totals, advance=60)
    assert "loop_state" in text
    assert "loop-carried" in text or "carried" in text


def test_the_order_of_a_set(rivet):
    class Sets(Actor):
        async def run(self, ctx):
            wanted = {"a", "b", "c", "d"}
            for name in wanted:
                await ctx.step("fetch", work, name)

    text = found(rivet, Sets)
    assert "fetch" in text
    assert "sorted" in text


def test_the_order_of_a_set_further_on(rivet):
    class Later(Actor):
        async def run(self, ctx):
            await ctx.step("one", work)
            await ctx.step("two", work)
            for name in {"a", "b", "c", "d", "e"}:
                await ctx.step(f"fetch-{name}", work)

    assert '"fetch-' in found(rivet, Later)


def test_sorted_sets_are_fine(rivet):
    class Sorted(Actor):
        async def run(self, ctx):
            seen = set()
            for name in sorted({"b", "a"}):
                seen.add(await ctx.step("fetch", work, name))
            return sorted(seen)

    assert rivet.client.get_or_create(Sorted, "a").result() == ["a", "b"]


def test_a_list_outside_of_run(rivet):
    seen = []

    class Outside(Actor):
        async def run(self, ctx):
            seen.append(await ctx.step("one", work, 1))
            await ctx.step("two", work, len(seen))
            await ctx.step("three", work)

    assert '"two"' in found(rivet, Outside)


def test_what_it_returns(rivet):
    class Returns(Actor):
        async def run(self, ctx):
            await ctx.step("one", work, 1)
            return random.random()

    assert "the workflow is completed" in found(rivet, Returns)


def test_another_wait(rivet):
    turns = iter(range(1000))

    class Waits(Actor):
        work = Queue(int)
        other = Queue(int)

        async def run(self, ctx):
            await ctx.queue.next("first", names=["work"])
            await ctx.queue.next(f"wait-{next(turns)}", names=["work", "other"])
            await ctx.step("last", work)

    text = found(rivet, Waits, 1, 2)
    assert '"wait-' in text


def test_values_that_a_workflow_changes_are_its_own(rivet):
    class Changes(Actor):
        async def run(self, ctx):
            value = await ctx.step("list", make)
            value.append(len(value))
            await ctx.step("use", work, value)
            value.append("more")
            return await ctx.step("again", work, value)

    assert rivet.client.get_or_create(Changes, "a").result() == [1, 2, 2, "more"]


def make(step):
    return [1, 2]


@pytest.mark.parametrize("rivet_mode", ["parked"])
def test_parked_mode_does_not_look(rivet):
    class Lottery(Actor):
        async def run(self, ctx):
            return await ctx.step("draw", work, random.random())

    assert rivet.client.get_or_create(Lottery, "a").result() < 1


def test_messages_that_were_seen_together_are_taken_one_by_one(rivet):
    class Takes(Actor):
        work = Queue(int)

        async def run(self, ctx):
            total = []
            for _ in range(4):
                message = await ctx.queue.next("next", names=["work"])
                total.append(await ctx.step("add", work, message.body))
            return total

    takes = rivet.client.create(Takes)
    for number in range(4):
        takes.send("work", number)
    assert takes.result() == [0, 1, 2, 3]


def test_one_that_a_step_waits_for(rivet):
    class Lottery(Actor):
        async def run(self, ctx):
            await ctx.queue.next("next")
            await ctx.step("draw", work, random.random())
            await ctx.step("pay", work)

    def ask(step):
        rivet.client.get_or_create(Lottery, "l").send("any", wait=True, timeout=60)

    class Asks(Actor):
        async def run(self, ctx):
            await ctx.step("ask", ask)

    actor = rivet.client.create(Asks)
    with pytest.raises(NotDeterministic, match="lottery"):
        actor.result()
