"""Atomic steps in the kit: their writes and their record are one, wherever the worker dies."""

from __future__ import annotations

import pytest
from django.contrib.auth.models import Group

from rivet_workflows import Actor, StepExhausted, StepTimeout, action, client


def write(step, name):
    Group.objects.create(name=name)
    step.state["written"] = name
    step.broadcast("wrote", name)
    return name


@pytest.fixture
def Writer(rivet):
    class Writer(Actor):
        state = {"written": None, "calls": 0}

        async def run(self, ctx):
            name = await ctx.step("write", write, "first", atomic=True)
            await ctx.step("again", write, name + "-again", atomic=True, max_retries=1)
            return name

        @action
        def call_me(self, c):
            c.state["calls"] += 1

        @action(read_only=True)
        def look(self, c):
            return c.state

    return Writer


def groups():
    return sorted(Group.objects.values_list("name", flat=True))


def test_it_completes(rivet, Writer):
    writer = rivet.client.create(Writer)
    assert writer.result() == "first"
    assert groups() == ["first", "first-again"]
    assert writer.look()["written"] == "first-again"
    assert [event.payload for event in rivet.events(writer)] == ["first", "first-again"]


@pytest.mark.parametrize("point", ["before", "after_run", "after_commit"])
def test_a_crash_leaves_all_or_nothing(rivet, Writer, point):
    rivet.crash_at("write", point)
    rivet.crash_at("again", point)
    writer = rivet.client.create(Writer)
    assert writer.result() == "first"
    assert groups() == ["first", "first-again"]
    assert [event.payload for event in rivet.events(writer)] == ["first", "first-again"]


@pytest.mark.parametrize("after", [False, True])
def test_a_failed_attempt_leaves_nothing(rivet, Writer, after):
    rivet.fail_step("write", after=after)
    writer = rivet.client.create(Writer)
    rivet.run_until_idle()
    assert groups() == []
    assert writer.look()["written"] is None
    assert rivet.events(writer) == []
    assert writer.result() == "first"


def test_it_fails_for_good(rivet, Writer):
    Group.objects.create(name="first-again")
    with pytest.raises(StepExhausted):
        rivet.client.create(Writer).result()
    assert groups() == ["first", "first-again"]


def test_it_times_out(rivet, Writer):
    rivet.time_out_step("write")
    with pytest.raises(StepTimeout):
        rivet.client.create(Writer).result()
    assert groups() == []


def test_an_action_that_changed_the_state_meanwhile(rivet):
    tries = []

    class Counts(Actor):
        state = {"count": 0}

        async def run(self, ctx):
            return await ctx.step("count", count, atomic=True)

        @action
        def call_me(self, c):
            c.state["count"] += 10

    def count(step):
        step.state["count"] += 1
        tries.append(step.attempt)
        if len(tries) == 1:
            client.get(Counts).call_me()
        return step.state["count"]

    # The kit has one connection: what the action did goes with the attempt that is rolled back.
    assert rivet.client.create(Counts).result() in (1, 11)
    assert set(tries) == {1}
