"""Several things at once, in one actor and across several."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from patterns.base import Pattern
from rivet_workflows import Actor, Queue, action

OFFERS_UNTIL = timedelta(hours=24)
ON_THE_ROAD = timedelta(days=1)

# -- join


@dataclass
class DashboardState:
    figures: dict[str, int] = field(default_factory=dict)


class Dashboard(Pattern):
    """Join: a fixed set of different things side by side, and on when all are done.

    Use it when branches do not need each other. What has finished stays finished, whatever happens to the others.
    """

    state = DashboardState

    async def run(self, ctx: Any) -> dict[str, int]:
        figures = await ctx.join("figures", visits=count_visits, sales=count_sales)
        await ctx.step(show_figures, figures)
        return figures


async def count_visits(branch: Any) -> int:
    return await branch.step("count-visits", count, "visits")


async def count_sales(branch: Any) -> int:
    await branch.sleep("wait-for-the-till", 1)
    return await branch.step("count-sales", count, "sales")


def count(step: Any, what: str) -> int:
    return {"visits": 120, "sales": 7}[what]


def show_figures(step: Any, figures: dict[str, int]) -> None:
    step.state.figures = figures


# -- race


@dataclass
class AuctionState:
    result: str = "open"


class Auction(Pattern):
    """Race: whichever comes first decides, and the others are called off.

    Use it for "this or that or too late".
    """

    state = AuctionState
    offers = Queue(int)

    async def run(self, ctx: Any) -> str:
        outcome = await ctx.race("offer-or-end", offer=wait_for_offer, end=wait_for_end)
        result = f"sold for {outcome.value}" if outcome.winner == "offer" else "not sold"
        return await ctx.step(close_auction, result)


async def wait_for_offer(branch: Any) -> int:
    offer = await branch.queue.next("wait-offer", names=[Auction.offers])
    return offer.body


async def wait_for_end(branch: Any) -> None:
    await branch.sleep("until-the-end", OFFERS_UNTIL)


def close_auction(step: Any, result: str) -> str:
    step.state.result = result
    return result


# -- fan-out/fan-in


@dataclass
class WordCountState:
    words: int = 0


class WordCount(Pattern):
    """Fan-out/fan-in: the same thing for each of many items, so many at a time, results in the items' order.

    Use it when the number of items is known only at run time. After a crash only what was not done is done.
    """

    state = WordCountState

    async def run(self, ctx: Any) -> int:
        texts = await ctx.step(list_texts)
        counts = await ctx.map("count", count_one, texts, concurrency=4)
        return await ctx.step(add_up, counts)


async def count_one(branch: Any, text: str) -> int:
    return await branch.step(count_words, text)


def list_texts(step: Any) -> list[str]:
    return list(step.input or [])


def count_words(step: Any, text: str) -> int:
    return len(text.split())


def add_up(step: Any, counts: list[int]) -> int:
    step.state.words = sum(counts)
    return step.state.words


# -- scatter-gather over actors


class Supplier(Actor):
    """A plain actor without a workflow: a state and actions. Its key is the supplier's name."""

    state = {"asked": 0}

    @action
    def price(self, c: Any, article: str) -> int:
        c.state["asked"] += 1
        return len(article) * 100 + len(str(self.key))


@dataclass
class TenderState:
    prices: dict[str, int] = field(default_factory=dict)


class Tender(Pattern):
    """Scatter-gather: ask several actors at once and go on with all their answers.

    Use it when the parts have a life and a state of their own. A call from a step carries the step's key, so a
    repeated step does not repeat the call's effects.
    """

    state = TenderState
    suppliers = ("north", "south", "west")

    async def run(self, ctx: Any) -> str:
        prices = await ctx.map("ask", ask_one, list(Tender.suppliers))
        return await ctx.step(choose_cheapest, dict(zip(Tender.suppliers, prices, strict=True)))


async def ask_one(branch: Any, supplier: str) -> int:
    return await branch.step(ask_supplier, supplier)


def ask_supplier(step: Any, supplier: str) -> int:
    return step.client().get_or_create(Supplier, supplier).call("price", "oak board")


def choose_cheapest(step: Any, prices: dict[str, int]) -> str:
    step.state.prices = prices
    return min(sorted(prices), key=prices.__getitem__)


# -- coordinator to worker


class Desk(Actor):
    """One of the desks that a :class:`Dispatcher` hands tasks to."""

    state = {"done": 0}

    @action
    def handle(self, c: Any, task: str) -> str:
        c.state["done"] += 1
        return f"{task} done at {self.key}"


@dataclass
class Task:
    name: str
    desk: str


@dataclass
class DispatcherState:
    results: list[str] = field(default_factory=list)


class Dispatcher(Pattern):
    """Coordinator to worker: one actor decides who does what, and calls them by their actions.

    Use it when the order of things is decided in one place. The coordinator's history is the log of who did what.
    """

    state = DispatcherState
    tasks = Queue(Task)

    async def run(self, ctx: Any) -> None:
        async for turn in ctx.loop("tasks"):
            task = await turn.queue.next("wait-task", names=[Dispatcher.tasks])
            result = await turn.step(dispatch, task.body)
            await turn.step(note_result, result)


def dispatch(step: Any, task: Task) -> str:
    return step.client().get_or_create(Desk, task.desk).call("handle", task.name)


def note_result(step: Any, result: str) -> None:
    step.state.results.append(result)


# -- child worker orchestration


@dataclass
class ParcelState:
    status: str = "packed"


class Parcel(Pattern):
    """A workflow of its own that a :class:`Consignment` starts and waits for."""

    state = ParcelState

    async def run(self, ctx: Any) -> str:
        await ctx.step("label", mark_parcel, "labelled")
        await ctx.sleep("on-the-road", ON_THE_ROAD)
        await ctx.step("deliver", mark_parcel, "delivered")
        return f"{ctx.input} delivered"


def mark_parcel(step: Any, status: str) -> None:
    step.state.status = status


@dataclass
class ConsignmentState:
    delivered: list[str] = field(default_factory=list)


class Consignment(Pattern):
    """Child worker orchestration: start workflows for the parts, and go on when all have ended.

    Use it when each part has a history worth looking at by itself, or takes long. A child is found by its key: one that
    runs already is joined, so a repeated parent starts nothing twice. ``input``: what is to be sent.
    """

    state = ConsignmentState

    async def run(self, ctx: Any) -> list[str]:
        delivered = await ctx.map("send", send_one, ctx.input)
        await ctx.step(note_delivery, delivered)
        return delivered


async def send_one(branch: Any, what: str) -> str:
    return await branch.child("parcel", Parcel, (branch.key, what), input=what)


def note_delivery(step: Any, delivered: list[str]) -> None:
    step.state.delivered = delivered
