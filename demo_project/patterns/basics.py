"""One thing after another, loops, and what belongs around them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from patterns.base import Pattern
from rivet_workflows import Event, Queue

# -- simple workflow


@dataclass
class WelcomeState:
    account: str = ""
    mailed: bool = False


class Welcome(Pattern):
    """Simple workflow: a few things that must all happen, once each, in this order.

    Use it when the work has a beginning and an end. The key can be the natural id (a user, an order): then
    starting it twice starts it once.
    """

    state = WelcomeState

    async def run(self, ctx: Any) -> str:
        account = await ctx.step(create_account)
        await ctx.step(send_welcome_mail, account)
        return account


def create_account(step: Any) -> str:
    step.state.account = f"account-{step.key}"
    return step.state.account


def send_welcome_mail(step: Any, account: str) -> None:
    """Hand ``step.idempotency_key`` to the mail provider: a mail that was sent is then not sent again."""
    step.state.mailed = True


# -- loop


@dataclass
class ThermostatState:
    readings: int = 0
    heating: bool = False


class Thermostat(Pattern):
    """Loop: an actor that lives as long as the thing it stands for.

    Use it for most long-lived actors: one loop that waits for the next thing to happen and does it. Old iterations
    are pruned, so a million of them cost no more than twenty.
    """

    state = ThermostatState
    readings = Queue(float)

    async def run(self, ctx: Any) -> None:
        async for turn in ctx.loop("readings"):
            reading = await turn.queue.next("wait-reading", names=[Thermostat.readings])
            await turn.step(adjust_heating, reading.body)


def adjust_heating(step: Any, celsius: float) -> None:
    step.state.readings += 1
    step.state.heating = celsius < 19.5


# -- loop whose turns hand something on


@dataclass
class CrawlState:
    titles: list[str] = field(default_factory=list)


class Crawl(Pattern):
    """Loop with a cursor: go through pages until there are none left.

    Use it when one turn needs what the last one found out. It goes through ``loop_state``, which is stored with
    the turn; a local variable would be lost in a replay, and ``manage.py check`` says so.
    """

    state = CrawlState

    async def run(self, ctx: Any) -> int:
        async for page in ctx.loop("pages", state=1):
            titles = await page.step(fetch_page, page.loop_state)
            if not titles:
                break
            page.loop_state += 1
        return await ctx.step(count_titles)


PAGES = {1: ["Ants", "Bees"], 2: ["Crickets"]}


def fetch_page(step: Any, number: int) -> list[str]:
    titles = PAGES.get(number, [])
    step.state.titles += titles
    return titles


def count_titles(step: Any) -> int:
    return len(step.state.titles)


# -- setup and teardown, in the workflow


@dataclass
class ExportState:
    opened: bool = False
    lines: list[str] = field(default_factory=list)


class Export(Pattern):
    """Setup and teardown, durable: open something once, use it for a while, close it in the end.

    Use it when what is set up outlives a process (a file, an upload, a reservation). Both ends are steps, so each
    happens once, whatever crashed in between.
    """

    state = ExportState
    commands = Queue(str)

    async def run(self, ctx: Any) -> int:
        await ctx.step(open_export)
        async for turn in ctx.loop("commands"):
            command = await turn.queue.next("wait-command", names=[Export.commands])
            if command.body == "finish":
                break
            await turn.step(write_line, command.body)
        return await ctx.step(close_export)


def open_export(step: Any) -> None:
    step.state.opened = True


def write_line(step: Any, line: str) -> None:
    step.state.lines.append(line)


def close_export(step: Any) -> int:
    step.state.opened = False
    return len(step.state.lines)


# -- setup in the worker's memory


@dataclass
class FeedState:
    ticks: int = 0


@dataclass
class FeedVars:
    connection: list[str]


class Feed(Pattern):
    """Setup for as long as a worker holds the actor: a connection, a cache, a model in memory.

    Use it for what cannot be stored. Every worker that takes the actor up makes ``vars`` anew, so nothing that must
    survive belongs there.
    """

    state = FeedState
    ticks = Queue(str)

    def create_vars(self, c: Any) -> FeedVars:
        return FeedVars(connection=["connected"])

    async def run(self, ctx: Any) -> None:
        async for turn in ctx.loop("ticks"):
            tick = await turn.queue.next("wait-tick", names=[Feed.ticks])
            await turn.step(publish, tick.body)


def publish(step: Any, tick: str) -> None:
    step.vars.connection.append(tick)
    step.state.ticks += 1


# -- progress


@dataclass
class Progress:
    done: int = 0
    total: int = 0


class Import(Pattern):
    """Progress with broadcast: state for whoever asks, an event for whoever watches.

    Use it when people wait in front of a screen. Both become visible with the record of the step, so nobody sees
    progress that is then lost; a browser that reconnects gets the events it missed.
    """

    state = Progress
    progressed = Event(Progress)

    async def run(self, ctx: Any) -> int:
        rows = await ctx.step(read_file)
        for row in rows:
            await ctx.step(import_row, row, len(rows))
        return len(rows)


def read_file(step: Any) -> list[str]:
    return list(step.input or [])


def import_row(step: Any, row: str, total: int) -> None:
    step.state.done += 1
    step.state.total = total
    step.broadcast("progressed", step.state)


# -- checkpoint-friendly loop


@dataclass
class PayrollState:
    paid: dict[str, int] = field(default_factory=dict)


@dataclass
class Hours:
    person: str
    hours: int


class Payroll(Pattern):
    """Checkpoint-friendly loop: decide in one step, act in the next.

    Use it when deciding is costly or depends on the moment. The decision is on record before anything is done about
    it, so a crash between the two neither decides differently nor does it twice.
    """

    state = PayrollState
    hours = Queue(Hours)

    async def run(self, ctx: Any) -> None:
        async for turn in ctx.loop("payments"):
            worked = await turn.queue.next("wait-hours", names=[Payroll.hours])
            amount = await turn.step(work_out_pay, worked.body)
            await turn.step(pay, worked.body.person, amount)


def work_out_pay(step: Any, worked: Hours) -> int:
    return worked.hours * 4_200


def pay(step: Any, person: str, amount: int) -> None:
    step.state.paid[person] = step.state.paid.get(person, 0) + amount
