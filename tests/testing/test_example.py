"""Every line of the kit's page, and what it says about it."""

from __future__ import annotations

from datetime import timedelta

import pytest

from rivet_workflows import ResultTimeout, StepExhausted, StepTimeout
from tests.testing.auction import Bid, Timeout, close, declare


@pytest.fixture
def Auction(rivet):
    return declare()


@pytest.fixture
def auction(rivet, Auction):
    return rivet.client.get_or_create(Auction, "item-1")


def names(rivet, handle):
    return [entry.name for entry in rivet.history(handle)]


def test_an_auction_expires(rivet, auction):
    rivet.run_until_idle()
    assert auction.get_state().result == "open"
    rivet.advance(hours=24)
    assert auction.get_state().result == "expired"
    assert auction.result() == "expired"


def test_time_stands_still_until_it_is_moved(rivet, auction):
    before = rivet.now()
    rivet.run_until_idle()
    assert rivet.now() == before
    rivet.advance(90)
    rivet.advance(
        timedelta(minutes=1),
    )
    rivet.advance(minutes=1, seconds=30)
    assert rivet.now() == before + timedelta(minutes=4)
    for wrong in ((), (-1,), (float("nan"),)):
        with pytest.raises((TypeError, ValueError)):
            rivet.advance(*wrong)


def test_advance_stops_at_each_due_time_and_a_jump_does_not(rivet, auction):
    auction.send("bids", Bid(5))
    rivet.run_until_idle()
    began = rivet.now()
    rivet.advance(hours=1)
    cool_down, closed = rivet.history(auction)[-2:]
    assert cool_down.done_at == closed.started_at == began + timedelta(seconds=60)


def test_a_jump_is_a_machine_that_slept(rivet, auction):
    auction.send("bids", Bid(5))
    rivet.run_until_idle()
    began = rivet.now()
    rivet.jump(hours=1)
    assert rivet.history(auction)[-2].done_at == began + timedelta(hours=1)


def test_the_next_run_after_a_crash_replays(rivet, auction):
    auction.send("bids", Bid(5))
    rivet.run_until_idle()
    rivet.crash()
    rivet.run_until_idle()
    rivet.advance(60)
    assert auction.result() == "receipt-5"
    assert names(rivet, auction) == ["wait-bid", "charge-card", "cool-down", "close"]


def test_evicting_is_the_orderly_form(rivet, auction):
    rivet.run_until_idle()
    rivet.evict()
    assert str(auction.status()) == "sleeping"
    rivet.advance(hours=24)
    assert auction.get_state().result == "expired"


@pytest.mark.parametrize(("point", "calls"), [("before", 1), ("after_run", 2), ("after_commit", 1)])
def test_crash_at(rivet, auction, point, calls):
    called = []

    def charge(step, amount):
        called.append(step.idempotency_key)
        return "receipt"

    rivet.stub_step("charge-card", charge)
    rivet.crash_at("charge-card", point)
    auction.send("bids", Bid(5))
    rivet.run_until_idle()
    assert len(called) == calls
    assert len(set(called)) == 1
    rivet.advance(60)
    assert auction.result() == "receipt"
    assert names(rivet, auction) == ["wait-bid", "charge-card", "cool-down", "close"]


def test_crash_at_refuses_points_that_are_none(rivet):
    with pytest.raises(ValueError, match="after_commit"):
        rivet.crash_at("charge-card", "later")


def test_fail_step_and_the_backoff_follow_the_virtual_clock(rivet, auction):
    rivet.fail_step("charge-card", times=2, error=Timeout())
    auction.send("bids", Bid(5))
    rivet.run_until_idle()
    timer = rivet.timers(auction)[0]
    assert (timer.kind, timer.name, timer.due) == (
        "backoff",
        "charge-card",
        rivet.now() + timedelta(seconds=0.2),
    )
    rivet.advance(1)
    charge = rivet.history(auction)[1]
    assert charge.status == "completed"
    assert [attempt.error and attempt.error.is_a("tests.testing.auction.Timeout") for attempt in charge.attempts] == [
        True, True, None,
    ]  # fmt: skip


def test_fail_step_always(rivet, auction):
    rivet.fail_step("charge-card", times=None, error=Timeout)
    auction.send("bids", Bid(5))
    with pytest.raises(StepExhausted):
        auction.result()
    assert rivet.history(auction)[1].attempts[-1].error.is_a("tests.testing.auction.Timeout")


def test_fail_step_after_its_work_is_done(rivet, auction):
    rivet.fail_step("charge-card", after=True)
    auction.send("bids", Bid(5))
    rivet.advance(1)
    # A failed attempt's state and broadcasts stay (D-12).
    assert [event.payload for event in rivet.events(auction)] == [5, 5]


def test_fail_step_of_one_actor(rivet, Auction, auction):
    other = rivet.client.get_or_create(Auction, "item-2")
    rivet.fail_step("close", times=None, actor=other)
    rivet.advance(hours=25)
    assert auction.result() == "expired"
    assert str(other.status()) == "failed"


def test_time_out_step(rivet, auction):
    rivet.time_out_step("charge-card")
    auction.send("bids", Bid(5))
    rivet.run_until_idle()
    with pytest.raises(StepTimeout):
        auction.result()


def test_stub_step(rivet, auction):
    rivet.stub_step("charge-card", lambda step, amount: f"{step.key} paid {amount}")
    auction.send("bids", Bid(5))
    assert auction.result() == "item-1 paid 5"


def test_deploy_another_run(rivet, Auction, auction):
    rivet.run_until_idle()

    async def run(self, ctx):
        bid = await ctx.queue.next("wait-bid", names=["bids"], timeout=24 * 3600)
        await ctx.step("close", close, "gone")
        return bid.body.amount

    rivet.deploy(Auction, run=run)
    auction.send("bids", Bid(7))
    rivet.run_until_idle()
    assert auction.result() == 7
    assert auction.get_state().result == "gone"


def test_looking(rivet, auction):
    auction.send("bids", Bid(5))
    auction.send("bids", Bid(6), delay=3600)
    assert [(message.name, message.body) for message in rivet.messages(auction)] == [
        ("bids", Bid(5)),
        ("bids", Bid(6)),
    ]
    rivet.run_until_idle()
    assert [message.body for message in rivet.messages(auction)] == [Bid(6)]
    (event,) = rivet.events(auction)
    assert (event.seq, event.name, event.payload) == (1, "charged", 5)
    assert [(timer.kind, timer.name) for timer in rivet.timers(auction)] == [
        ("sleep", "cool-down"),
        ("message", "bids"),
    ]
    assert names(rivet, auction) == ["wait-bid", "charge-card", "cool-down"]


def test_result_moves_the_clock_to_its_timeout(rivet, auction):
    began = rivet.now()
    with pytest.raises(ResultTimeout):
        auction.result(timeout=60)
    assert rivet.now() == began + timedelta(seconds=60)
    assert auction.result(timeout=timedelta(days=2)) == "expired"
    assert rivet.now() == began + timedelta(hours=24)


def test_waiting_for_ever_is_an_error(rivet):
    from rivet_workflows import Actor

    class Waits(Actor):
        async def run(self, ctx):
            await ctx.queue.next("wait")

    with pytest.raises(AssertionError, match="for ever"):
        rivet.client.get_or_create(Waits, "a").result()


def test_a_loop_that_never_waits_is_an_error(rivet, monkeypatch):
    from rivet_workflows import Actor
    from rivet_workflows.testing import harness

    class Busy(Actor):
        async def run(self, ctx):
            async for it in ctx.loop("loop"):
                await it.step("step", lambda: None, context=False) if False else await it.step(
                    "step", nothing
                )

    def nothing(step):
        pass

    monkeypatch.setattr(harness, "LIMIT", 50)
    rivet.client.get_or_create(Busy, "a")
    with pytest.raises(AssertionError, match="never wait"):
        rivet.run_until_idle()
