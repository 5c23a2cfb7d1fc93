"""Operations from outside, on actors that the kit's worker holds."""

from __future__ import annotations

import pytest

from rivet_workflows import Actor, Queue, StepExhausted, WorkflowCancelled


def pay(step, *args):
    return "paid"


@pytest.fixture
def order(rivet):
    class Order(Actor):
        go = Queue()

        async def run(self, ctx):
            await ctx.step("pay", pay)
            await ctx.queue.next("wait-go", names=["go"])
            await ctx.sleep("rest", 60)
            return await ctx.step("ship", pay)

    return rivet.client.create(Order)


def test_cancel_and_recover(rivet, order):
    rivet.run_until_idle()
    assert order.cancel()
    order.send("go")
    rivet.advance(hours=1)
    with pytest.raises(WorkflowCancelled):
        order.result()
    assert order.recover()
    assert order.result() == "paid"


def test_pause_and_resume(rivet, order):
    order.send("go")
    rivet.run_until_idle()
    order.pause()
    rivet.advance(hours=1)
    assert str(order.status()) == "paused"
    order.resume()
    rivet.run_until_idle()
    assert order.result() == "paid"


def test_recover_in_backoff(rivet, order):
    rivet.fail_step("pay", times=3)
    rivet.run_until_idle()
    for _ in range(3):
        assert order.recover()
        rivet.run_until_idle()
    assert order.history()[0].status == "completed"


def test_recover_after_failure(rivet, order):
    rivet.fail_step("pay", times=4)
    with pytest.raises(StepExhausted):
        order.result()
    order.recover()
    order.send("go")
    assert order.result() == "paid"


def test_replay_from_and_skip(rivet, order):
    order.send("go")
    assert order.result() == "paid"
    order.replay_from("ship")
    rivet.fail_step("ship", times=None)
    with pytest.raises(StepExhausted):
        order.result()
    assert order.skip("ship", "skipped")
    assert order.result() == "skipped"


def test_destroy(rivet, order):
    rivet.run_until_idle()
    assert order.destroy()
    rivet.advance(hours=1)
    assert rivet.client.list() == []
