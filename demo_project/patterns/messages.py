"""Queues: work that comes in, answers that go out, people who decide."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Literal

from patterns.base import Pattern
from rivet_workflows import Queue, QueueTimeout, action

#: How long an expense waits for somebody to decide.
PATIENCE = timedelta(days=3)

# -- queue-driven worker


@dataclass
class Upload:
    name: str
    size: int


@dataclass
class ScannerState:
    scanned: list[str] = field(default_factory=list)
    bytes: int = 0


class Scanner(Pattern):
    """Queue-driven worker: others send work and forget about it; each piece is done once, in order.

    Use it to put work behind a request. ``send`` joins the sender's transaction: what was rolled back was never sent.
    """

    state = ScannerState
    uploads = Queue(Upload)

    async def run(self, ctx: Any) -> None:
        async for turn in ctx.loop("uploads"):
            upload = await turn.queue.next("wait-upload", names=[Scanner.uploads])
            await turn.step(scan, upload.body)


def scan(step: Any, upload: Upload) -> None:
    step.state.scanned.append(upload.name)
    step.state.bytes += upload.size


# -- request/response over a queue


@dataclass
class QuoteRequest:
    weight: int


@dataclass
class Quote:
    price: int


@dataclass
class FreightState:
    quotes: int = 0


class Freight(Pattern):
    """Request/response over a queue: the sender waits for an answer that takes steps to work out.

    Use it when an action would be too short: ``handle.send("requests", …, wait=True)`` gets what ``complete`` was
    given. A message taken ``completable`` comes again after a crash until it is completed.
    """

    state = FreightState
    requests = Queue(QuoteRequest, reply=Quote)

    async def run(self, ctx: Any) -> None:
        async for turn in ctx.loop("requests"):
            request = await turn.queue.next("wait-request", names=[Freight.requests], completable=True)
            quote = await turn.step(work_out_quote, request.body)
            await request.complete(quote)


def work_out_quote(step: Any, request: QuoteRequest) -> Quote:
    step.state.quotes += 1
    return Quote(price=500 + 25 * request.weight)


@dataclass
class PurchaseState:
    total: int = 0


class Purchase(Pattern):
    """The same between two actors: a step asks another actor's workflow, and goes on with its answer.

    Use it when who answers has a queue of its own to work through. The question carries the step's key, so a step that
    is run again asks nothing twice. ``input``: the weight of what is bought.
    """

    state = PurchaseState

    async def run(self, ctx: Any) -> int:
        quote = await ctx.step(ask_for_quote, ctx.input)
        return await ctx.step(add_freight, quote)


def ask_for_quote(step: Any, weight: int) -> Quote:
    freight = step.client().get_or_create(Freight, "sea")
    sent = freight.send(Freight.requests, QuoteRequest(weight), wait=True, timeout=20)
    if sent.status != "completed":
        raise TimeoutError("no quote yet")
    return sent.response


def add_freight(step: Any, quote: Quote) -> int:
    step.state.total = 10_000 + quote.price
    return step.state.total


# -- batch drainer


@dataclass
class MeterState:
    batches: int = 0
    readings: int = 0
    total: int = 0


class Meter(Pattern):
    """Batch drainer: take many small messages at a time and handle them in one step.

    Use it when there are more messages than are worth a step each. ``next_batch`` takes what is there, at least one.
    """

    state = MeterState
    readings = Queue(int)

    async def run(self, ctx: Any) -> None:
        async for turn in ctx.loop("drain"):
            batch = await turn.queue.next_batch("wait-readings", names=[Meter.readings], count=100)
            await turn.step(store_batch, [message.body for message in batch])


def store_batch(step: Any, readings: list[int]) -> None:
    step.state.batches += 1
    step.state.readings += len(readings)
    step.state.total += sum(readings)


# -- bounded drain with a cap on concurrency


@dataclass
class ResizerState:
    resized: int = 0
    largest_round: int = 0


class Resizer(Pattern):
    """Bounded drain: at most so many per round, and at most so many of them at the same time.

    Use it when work comes in bursts and what does it (memory, somebody's rate limit) has a bound.
    """

    state = ResizerState
    images = Queue(str)

    async def run(self, ctx: Any) -> None:
        async for turn in ctx.loop("rounds"):
            batch = await turn.queue.next_batch("wait-images", names=[Resizer.images], count=10)
            names = [message.body for message in batch]
            sizes = await turn.map("resize", resize_one, names, concurrency=3)
            await turn.step(note_round, len(sizes))


async def resize_one(branch: Any, name: str) -> int:
    return await branch.step(resize, name)


def resize(step: Any, name: str) -> int:
    return len(name)


def note_round(step: Any, count: int) -> None:
    step.state.resized += count
    step.state.largest_round = max(step.state.largest_round, count)


# -- signal-driven control loop


@dataclass
class ConveyorState:
    mode: str = "running"
    moved: list[str] = field(default_factory=list)


class Conveyor(Pattern):
    """Signal-driven control loop: pause, resume and stop what works through a queue.

    Use it when operators steer. While paused it listens to the control queue alone; parcels wait in theirs, in order.
    """

    state = ConveyorState
    parcels = Queue(str)
    control = Queue(Literal["pause", "resume", "stop"])

    async def run(self, ctx: Any) -> None:
        async for turn in ctx.loop("belt", state=True):
            running = turn.loop_state
            names = [Conveyor.control, Conveyor.parcels] if running else [Conveyor.control]
            message = await turn.queue.next("wait", names=names)
            if message.name == "parcels":
                await turn.step(move, message.body)
                continue
            await turn.step(set_mode, message.body)
            if message.body == "stop":
                break
            turn.loop_state = message.body == "resume"


def move(step: Any, parcel: str) -> None:
    step.state.moved.append(parcel)


def set_mode(step: Any, signal: str) -> None:
    step.state.mode = {"pause": "paused", "resume": "running", "stop": "stopped"}[signal]


# -- human approval gate


@dataclass
class Verdict:
    approved: bool
    by: str


@dataclass
class ExpenseState:
    status: str = "submitted"
    decided_by: str = ""


class Expense(Pattern):
    """Human approval gate: stop until a person decides, and know what to do when nobody does.

    Use it wherever a human is a part of the process. Three days of waiting are a row in a table.
    """

    state = ExpenseState
    verdicts = Queue(Verdict)

    async def run(self, ctx: Any) -> str:
        try:
            message = await ctx.queue.next("wait-verdict", names=[Expense.verdicts], timeout=PATIENCE)
        except QueueTimeout:
            return await ctx.step("expire", settle, "expired", "nobody")
        status = "paid out" if message.body.approved else "refused"
        return await ctx.step(settle, status, message.body.by)

    @action
    def withdraw(self, c: Any) -> None:
        """Actions can send to the actor's own queues, too."""
        c.queue.send("verdicts", Verdict(approved=False, by="the author"))


def settle(step: Any, status: str, by: str) -> str:
    step.state.status, step.state.decided_by = status, by
    return status
