"""The auction of the kit's own documentation, and what its steps do."""

from __future__ import annotations

from dataclasses import dataclass

from rivet_workflows import Actor, Event, Queue, QueueTimeout, action


@dataclass
class AuctionState:
    result: str = "open"
    bid: int = 0


@dataclass
class Bid:
    amount: int


class Timeout(Exception):
    """The payment service did not answer."""


def charge_card(step, amount):
    step.state.bid = amount
    step.broadcast("charged", amount)
    return f"receipt-{amount}"


def close(step, result):
    step.state.result = result


def declare():
    """The classes, made anew: a test's actors are dropped after it."""

    class Auction(Actor):
        state = AuctionState
        bids = Queue(Bid)
        charged = Event(int)

        async def run(self, ctx):
            try:
                bid = await ctx.queue.next("wait-bid", names=[Auction.bids], timeout=24 * 3600)
            except QueueTimeout:
                await ctx.step("close", close, "expired")
                return "expired"
            receipt = await ctx.step("charge-card", charge_card, bid.body.amount)
            await ctx.sleep("cool-down", 60)
            await ctx.step("close", close, "sold")
            return receipt

        @action(read_only=True)
        def get_state(self, c):
            return c.state

    return Auction
