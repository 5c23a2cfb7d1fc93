"""When things fail: treat it as data, undo, tell somebody."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from patterns.base import Pattern
from rivet_workflows import Actor, CriticalError, Event, StepFailed, UserError, action

# -- try step


@dataclass
class AvatarState:
    picture: str = ""
    reason: str = ""


class Avatar(Pattern):
    """Try step: a failure that is an outcome, not an accident.

    Use it when the workflow goes on either way. Retries happen first; what comes back is the last word.
    """

    state = AvatarState

    async def run(self, ctx: Any) -> str:
        fetched = await ctx.try_step(fetch_picture, max_retries=1, retry_backoff_base=0.01)
        if fetched.ok:
            return await ctx.step("use-picture", use_picture, fetched.value, "")
        return await ctx.step("use-initials", use_picture, "initials", fetched.failure.error.message)


def fetch_picture(step: Any) -> str:
    if step.key == "nobody":
        raise LookupError("no picture of nobody")
    return f"picture of {step.key}"


def use_picture(step: Any, picture: str, reason: str) -> str:
    step.state.picture, step.state.reason = picture, reason
    return picture


# -- plain try/except


class Door(Pattern):
    """Plain ``try``/``except``: works, too, and is as durable as everything else.

    Use it when Python's own form reads better. The exception is built from the record, so a replay meets the same one.
    """

    state = {"opened_with": ""}

    async def run(self, ctx: Any) -> str:
        try:
            return await ctx.step("card", open_with, "card", max_retries=0)
        except StepFailed as failure:
            if not failure.error.is_a("PermissionError"):
                raise
        return await ctx.step("key", open_with, "key")


def open_with(step: Any, what: str) -> str:
    if what == "card":
        raise PermissionError("the card has expired")
    step.state["opened_with"] = what
    return what


# -- try block


@dataclass
class ShipmentState:
    status: str = "packed"


class Shipment(Pattern):
    """Try block: several steps that succeed or fail as one, with one answer to any failure among them.

    Use it when it does not matter which part failed. It undoes nothing: that is what rollback is for.
    """

    state = ShipmentState

    async def run(self, ctx: Any) -> str:
        sent = await ctx.try_block("by-air", by_air)
        if sent.ok:
            return await ctx.step("note-air", note_shipment, "by air")
        return await ctx.step("note-ship", note_shipment, f"by ship, as {sent.failure.name} failed")


async def by_air(block: Any) -> str:
    flight = await block.step(book_flight)
    await block.step(load_plane, flight)
    return flight


def book_flight(step: Any) -> str:
    return "LX 41"


def load_plane(step: Any, flight: str) -> None:
    if step.key == "piano":
        raise CriticalError(f"too large for {flight}")


def note_shipment(step: Any, how: str) -> str:
    step.state.status = how
    return how


# -- rollback


@dataclass
class TripState:
    booked: list[str] = field(default_factory=list)


class Trip(Pattern):
    """Rollback: undo what was done, last first, when the whole cannot be had.

    Use it for several bookings that are worth nothing apart. Each step names how it is undone; behind the checkpoint
    a failure runs these for the steps that were completed.
    """

    state = TripState

    async def run(self, ctx: Any) -> None:
        await ctx.rollback_checkpoint("bookings")
        await ctx.step("book-train", book, "train", rollback=cancel_booking)
        await ctx.step("book-hotel", book, "hotel", rollback=cancel_booking)
        await ctx.step("pay", pay_trip, max_retries=0)


def book(step: Any, what: str) -> str:
    step.state.booked.append(what)
    return what


def cancel_booking(step: Any, what: str) -> None:
    step.state.booked.remove(what)


def pay_trip(step: Any) -> None:
    if step.key == "broke":
        raise CriticalError("the account is empty")


# -- cross-actor saga


class Account(Actor):
    """Some money. Its actions are transactions, one at a time."""

    state = {"balance": 100}

    @action
    def move(self, c: Any, amount: int) -> int:
        if c.state["balance"] + amount < 0:
            raise UserError("not enough money", code="overdrawn")
        c.state["balance"] += amount
        return c.state["balance"]

    @action(read_only=True)
    def balance(self, c: Any) -> int:
        return c.state["balance"]


@dataclass
class TransferState:
    status: str = "pending"


class Transfer(Pattern):
    """Cross-actor saga: a change in several actors that no single transaction spans.

    Use it when each part commits on its own and a later one may still say no. The compensation is a step like any
    other: recorded, retried, visible. ``input``: ``{"source", "target", "amount"}``.
    """

    state = TransferState

    async def run(self, ctx: Any) -> None:
        source, target, amount = ctx.input["source"], ctx.input["target"], ctx.input["amount"]
        await ctx.rollback_checkpoint("transfer")
        await ctx.step("withdraw", withdraw, source, amount, rollback=put_back, max_retries=0)
        await ctx.step("deposit", deposit, target, amount, max_retries=0)
        await ctx.step("done", note_transfer, "done")


def withdraw(step: Any, account: str, amount: int) -> dict[str, Any]:
    step.client().get_or_create(Account, account).call("move", -amount)
    return {"account": account, "amount": amount}


def put_back(step: Any, taken: dict[str, Any]) -> None:
    step.client().get(Account, taken["account"]).call("move", taken["amount"])
    step.state.status = "undone"


def deposit(step: Any, account: str, amount: int) -> None:
    if account == "frozen":
        raise CriticalError("the account is frozen")
    step.client().get_or_create(Account, account).call("move", amount)


def note_transfer(step: Any, status: str) -> None:
    step.state.status = status


# -- error hook


@dataclass
class SyncState:
    last_error: str = ""
    alarms: int = 0


class Sync(Pattern):
    """Error hook: hear of every failed attempt and of the end, to count, to tell, to page somebody.

    Use it to watch, not to decide: it runs after the failure is on record and is no part of the workflow.
    """

    state = SyncState
    failed = Event(str)

    async def run(self, ctx: Any) -> None:
        await ctx.step(push_changes, max_retries=2, retry_backoff_base=0.01)

    def on_error(self, c: Any, event: Any) -> None:
        c.state.last_error = str(event.error)
        if event.source == "step" and not event.will_retry:
            c.state.alarms += 1
            c.broadcast("failed", event.error.message)


def push_changes(step: Any) -> None:
    raise ConnectionError("the other side is down")
