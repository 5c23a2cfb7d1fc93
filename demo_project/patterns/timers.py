"""Waiting: for a while, until a date, not longer than, and again and again."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from patterns.base import Pattern
from rivet_workflows import Actor, Queue, StepFailed, UserError, action

FIRST_DAYS = timedelta(days=10)
WHOLE_TRIAL = timedelta(days=14)

# -- timers


@dataclass
class TrialState:
    mails: list[str] = field(default_factory=list)


class Trial(Pattern):
    """Timers: sleep for two weeks, or until a date, in the middle of a function.

    Use it instead of a cron job that looks for whose time has come. The deadline is stored when the sleep begins;
    restarts neither extend nor shorten it, and one that passed while everything was down fires at once.
    """

    state = TrialState

    async def run(self, ctx: Any) -> None:
        ends = ctx.now() + WHOLE_TRIAL
        await ctx.step("greet", send_mail, "welcome")
        await ctx.sleep("first-days", FIRST_DAYS)
        await ctx.step("remind", send_mail, "four days left")
        await ctx.sleep_until("trial-ends", ends)
        await ctx.step("end", send_mail, "the trial is over")


def send_mail(step: Any, subject: str) -> None:
    step.state.mails.append(subject)


# -- timeouts


@dataclass
class TranscriptState:
    text: str = ""
    attempts: int = 0


class Transcript(Pattern):
    """Timeouts: bound how long an attempt may take, and say whether a slow one is worth another.

    Use it for every call that leaves the machine. A timed-out step fails at once unless ``retry_on_timeout`` says that
    trying again is safe, as only you can know.
    """

    state = TranscriptState
    recordings = Queue(str)

    async def run(self, ctx: Any) -> None:
        async for turn in ctx.loop("recordings"):
            recording = await turn.queue.next("wait-recording", names=[Transcript.recordings])
            text = await turn.step(
                transcribe,
                recording.body,
                timeout=5,
                retry_on_timeout=True,
                max_retries=4,
                retry_backoff_base=0.2,
                retry_backoff_max=2,
            )
            await turn.step(save_transcript, text)


def transcribe(step: Any, recording: str) -> str:
    step.state.attempts += 1
    return recording.upper()


def save_transcript(step: Any, text: str) -> None:
    step.state.text = text


# -- timeout with fallback


class RateSource(Actor):
    """Somebody who knows the rate, most of the time."""

    state = {"rate": 1.08, "in_order": True}

    @action
    def set(self, c: Any, rate: float, in_order: bool = True) -> None:
        c.state["rate"], c.state["in_order"] = rate, in_order

    @action(read_only=True)
    def rate(self, c: Any) -> float:
        if not c.state["in_order"]:
            raise UserError("out of order")
        return c.state["rate"]


@dataclass
class RatesState:
    rate: float = 0.0
    source: str = ""


class Rates(Pattern):
    """Timeout with fallback: ask the good actor, but do not wait for it for ever; then ask another.

    Use it when a stale answer beats a late one. A race against a sleep bounds all attempts together, where a
    step's timeout bounds each of them.
    """

    state = RatesState

    async def run(self, ctx: Any) -> str:
        outcome = await ctx.race("live-or-stale", live=live_rate, patience=give_up)
        if outcome.winner == "live":
            return await ctx.step("keep-live", keep_rate, outcome.value, "live")
        stale = await ctx.step("fetch-stale", fetch_rate, "yesterday")
        return await ctx.step("keep-stale", keep_rate, stale, "yesterday")


async def live_rate(branch: Any) -> float:
    return await branch.step("fetch-live", fetch_rate, "live", max_retries=20)


async def give_up(branch: Any) -> None:
    await branch.sleep("patience", 3)


def fetch_rate(step: Any, source: str) -> float:
    return step.client().get_or_create(RateSource, source).call("rate")


def keep_rate(step: Any, rate: float, source: str) -> str:
    step.state.rate, step.state.source = rate, source
    return source


# -- poll with backoff


@dataclass
class BuildState:
    polls: int = 0
    status: str = "unknown"


class Build(Pattern):
    """Poll with backoff: ask until the answer is yes, more and more rarely.

    Use it for things that cannot call back. The pause is the loop's state, so a restart does not begin again at
    one second; a poll that fails counts as "not yet".
    """

    state = BuildState

    async def run(self, ctx: Any) -> int:
        async for turn in ctx.loop("polls", state=1.0):
            try:
                ready = await turn.step(poll_build, max_retries=0)
            except StepFailed:
                ready = False
            if ready:
                break
            await turn.sleep("pause", turn.loop_state)
            turn.loop_state = min(turn.loop_state * 2, 60.0)
        return await ctx.step(note_build)


def poll_build(step: Any) -> bool:
    step.state.polls += 1
    if step.state.polls == 2:
        raise ConnectionError("the build server is restarting")
    return step.state.polls > 3


def note_build(step: Any) -> int:
    step.state.status = "ready"
    return step.state.polls
