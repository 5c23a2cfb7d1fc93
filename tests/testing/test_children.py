"""``ctx.child`` in the kit."""

from __future__ import annotations

import pytest

from rivet_workflows import Actor, ChildFailed


@pytest.fixture
def Ship(rivet):
    class Ship(Actor):
        async def run(self, ctx):
            await ctx.sleep("at-sea", 3600)
            if ctx.input == "stormy":
                await ctx.step("sink", sink, max_retries=0)
            return f"arrived with {ctx.input}"

    return Ship


def sink(step):
    raise RuntimeError("sunk")


@pytest.mark.parametrize("crash", [False, True])
def test_a_child_runs_to_its_result(rivet, Ship, crash):
    class Order(Actor):
        async def run(self, ctx):
            return await ctx.child("ship", Ship, "s", input="tea")

    order = rivet.client.create(Order)
    rivet.run_until_idle()
    assert str(rivet.client.get(Ship, "s").status()) == "sleeping"
    if crash:
        rivet.crash()
    rivet.advance(hours=1)
    assert order.result(timeout=1) == "arrived with tea"


def test_a_child_that_fails(rivet, Ship):
    class Order(Actor):
        async def run(self, ctx):
            try:
                await ctx.child("ship", Ship, "s", input="stormy")
            except ChildFailed as error:
                return str(error)

    assert "sunk" in rivet.client.create(Order).result()
