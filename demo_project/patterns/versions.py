"""Changing a workflow while instances of it are running."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from patterns.base import Pattern
from rivet_workflows import Queue

# -- versioned evolution


@dataclass
class OnboardingState:
    done: list[str] = field(default_factory=list)


class Onboarding(Pattern):
    """Versioned evolution: a step was taken out, another came in.

    Use it when runs that began under the old code may go on under the new. That one had a step ``fax-contract`` here;
    ``removed`` says that it is meant to be gone. Without that line, runs that have it on record would be set aside
    with a message that says so.
    """

    state = OnboardingState
    signatures = Queue(str)

    async def run(self, ctx: Any) -> list[str]:
        await ctx.step("collect-papers", tick_off, "papers")
        await ctx.removed("fax-contract", "step")
        await ctx.queue.next("wait-signature", names=[Onboarding.signatures])
        await ctx.step("file-online", tick_off, "filed online")
        return await ctx.step(list_done)


def tick_off(step: Any, what: str) -> None:
    step.state.done.append(what)


def list_done(step: Any) -> list[str]:
    return step.state.done


# -- version gate


@dataclass
class BillingState:
    invoices: list[str] = field(default_factory=list)


class Billing(Pattern):
    """Version gate: runs that are past this point keep the old way, later ones take the new.

    Use it when old and new must not be mixed within one piece of work. In a loop each turn decides for itself, so the
    change takes effect with the next turn of every running actor.
    """

    state = BillingState
    months = Queue(str)

    async def run(self, ctx: Any) -> None:
        async for turn in ctx.loop("months"):
            month = await turn.queue.next("wait-month", names=[Billing.months])
            if await turn.get_version("invoice-format", 2) == 1:
                await turn.step("bill", write_invoice, f"{month.body} on paper")
            else:
                await turn.step("bill-by-mail", write_invoice, f"{month.body} by mail")
            await turn.sleep("post", 60)


def write_invoice(step: Any, invoice: str) -> None:
    step.state.invoices.append(invoice)
