"""Regularly, and for as long as somebody holds it: schedules, setup and teardown."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from patterns.base import Pattern
from rivet_workflows import Queue, ScheduledFire, action

BACKUP_EVERY = timedelta(hours=1)

# -- cron tick


@dataclass
class DigestState:
    mails: list[str] = field(default_factory=list)
    news: list[str] = field(default_factory=list)


class Digest(Pattern):
    """Cron tick: do something at nine on every working day, in the reader's own time zone.

    Use it for what recurs in an actor's life. The schedule is a row: it outlives restarts, many workers fire it once,
    and what was missed while everything was down is caught up with one fire. How each fire ended is recorded.
    """

    state = DigestState

    def on_create(self, c: Any, given: Any) -> None:
        c.cron.set(
            name="morning",
            expression="0 9 * * MON-FRI",
            timezone=(given or {}).get("timezone", "UTC"),
            action=Digest.deliver,
            args=["good morning"],
        )

    @action
    def add(self, c: Any, headline: str) -> None:
        c.state.news.append(headline)

    @action
    def deliver(self, c: Any, greeting: str, fire: ScheduledFire) -> None:
        if c.state.news:
            c.state.mails.append(f"{greeting}: {', '.join(c.state.news)}")
            c.state.news.clear()

    @action
    def unsubscribe(self, c: Any) -> bool:
        return bool(c.cron.delete("morning"))

    @action(read_only=True)
    def deliveries(self, c: Any) -> list[str]:
        return [fire.result for fire in c.cron.history("morning")]


# -- cron tick into the workflow


@dataclass
class BackupState:
    backups: int = 0
    last: datetime | None = None


class Backup(Pattern):
    """Cron tick, queue-driven: the schedule puts a message into a queue, and the workflow does the work.

    Use it when what recurs takes steps, with their retries and waits. A scheduled action is one transaction and is not
    tried again when it fails; this one can hardly fail, and the tick waits until the workflow gets to it.
    """

    state = BackupState
    ticks = Queue(datetime)

    def on_create(self, c: Any, given: Any) -> None:
        c.cron.every(name="tick", interval=BACKUP_EVERY, action=Backup.tick, max_history=10)

    @action
    def tick(self, c: Any, fire: ScheduledFire) -> None:
        c.queue.send("ticks", fire.scheduled_at)

    async def run(self, ctx: Any) -> None:
        async for turn in ctx.loop("backups"):
            tick = await turn.queue.next("wait-tick", names=[Backup.ticks])
            await turn.step(back_up, tick.body)


def back_up(step: Any, at: datetime) -> None:
    step.state.backups += 1
    step.state.last = at


# -- setup and teardown


@dataclass
class PrinterState:
    pages: int = 0
    sessions: int = 0


@dataclass
class Line:
    """Stands for a connection."""

    is_open: bool = True
    sent: list[str] = field(default_factory=list)


#: The lines that were closed, for whoever looks.
closed_lines: list[Line] = []


class Printer(Pattern):
    """Setup and teardown: open a connection as a worker takes the actor up, close it as it lets go.

    Use it for what cannot be stored and should be left in order. ``on_sleep`` is a courtesy: a worker that is killed
    does not call it, so nothing may depend on it.
    """

    state = PrinterState
    jobs = Queue(str)

    def create_vars(self, c: Any) -> Line:
        return Line()

    def on_wake(self, c: Any) -> None:
        c.state.sessions += 1

    def on_sleep(self, c: Any) -> None:
        c.vars.is_open = False
        closed_lines.append(c.vars)

    async def run(self, ctx: Any) -> None:
        async for turn in ctx.loop("jobs"):
            job = await turn.queue.next("wait-job", names=[Printer.jobs])
            await turn.step(print_page, job.body)


def print_page(step: Any, text: str) -> None:
    step.vars.sent.append(text)
    step.state.pages += 1
