"""Code that changes under running actors: what fits goes on, what does not is set aside and goes on when it does."""

from __future__ import annotations

import pytest

from rivet_workflows import Actor, Queue


def pay(step, *args):
    return "paid"


@pytest.fixture
def Order(rivet):
    class Order(Actor):
        go = Queue()

        async def run(self, ctx):
            await ctx.step("pay", pay)
            await ctx.queue.next("wait-go", names=["go"])
            return await ctx.step("ship", lambda_free)

    return Order


def lambda_free(step):
    return "shipped"


def test_a_diverged_actor_goes_on_when_fitting_code_is_deployed(rivet, Order):
    order = rivet.client.create(Order)
    rivet.run_until_idle()

    async def renamed(self, ctx):
        await ctx.step("pay-now", pay)
        await ctx.queue.next("wait-go", names=["go"])
        return "shipped by the new code"

    rivet.deploy(Order, run=renamed)
    order.send("go")
    rivet.run_until_idle()
    status = order.status()
    assert (str(status), status.reason) == ("set_aside", "diverged")
    assert [entry.name for entry in order.history()] == ["pay", "wait-go"]

    async def mended(self, ctx):
        await ctx.removed("pay", "step")
        await ctx.queue.next("wait-go", names=["go"])
        await ctx.step("pay-now", pay)
        return "shipped by the mended code"

    rivet.deploy(Order, run=mended)
    assert order.result(timeout=60) == "shipped by the mended code"
    assert [entry.name for entry in order.history() if entry.kind == "step"] == ["pay", "pay-now"]


def test_the_same_code_does_not_try_again(rivet, Order):
    order = rivet.client.create(Order)
    rivet.run_until_idle()

    async def renamed(self, ctx):
        await ctx.step("pay-now", pay)

    rivet.deploy(Order, run=renamed)
    order.send("go")
    rivet.run_until_idle()
    rivet.crash()
    rivet.advance(hours=1)
    assert order.status().reason == "diverged"


def test_another_class(rivet, Order):
    order = rivet.client.create(Order, "a")
    rivet.run_until_idle()

    class OrderV2(Actor):
        go = Queue()

        async def run(self, ctx):
            await ctx.step("pay", pay)
            if await ctx.get_version("shipping", 2) >= 2:
                await ctx.step("pack", pay)
            await ctx.queue.next("wait-go", names=["go"])
            return "v2"

    rivet.deploy(Order, OrderV2)
    order.send("go")
    assert order.result() == "v2"
    assert "pack" not in [entry.name for entry in order.history()]
    fresh = rivet.client.create("order", "b")
    fresh.send("go")
    assert fresh.result() == "v2"
    assert "pack" in [entry.name for entry in fresh.history()]


def test_deploy_takes_one_of_the_two(rivet, Order):
    with pytest.raises(TypeError, match="run="):
        rivet.deploy(Order)
    with pytest.raises(TypeError, match="run="):
        rivet.deploy(Order, Order, run=Order.run)


def test_what_runs_is_handed_back_first(rivet, Order):
    order = rivet.client.create(Order)

    async def at_once(self, ctx):
        return "new from the start"

    rivet.deploy(Order, run=at_once)
    assert order.result() == "new from the start"
