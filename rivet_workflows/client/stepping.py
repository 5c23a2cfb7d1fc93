"""The client of a step: ``step.client()``.

A ``send`` without ``wait`` joins the step's commit: it goes out when the step completes, and not at all when the
attempt fails. A waiting send happens at once, under a key made from the step's, so that a repeated attempt finds the
message that an earlier one sent, and its answer, instead of sending again.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Protocol

from rivet_workflows.client import sending
from rivet_workflows.client.base import Client
from rivet_workflows.client.results import Sent
from rivet_workflows.conf import settings
from rivet_workflows.records import Outgoing
from rivet_workflows.store import get_store

__all__ = ["Outbox", "StepClient", "for_step"]


class Outbox(Protocol):
    """What a step offers its client."""

    def add(self, message: Outgoing) -> None:
        """Send with the step's commit."""
        ...

    def call_key(self) -> str:
        """The key of the next thing that happens at once; the same, in the same order, in a repeated attempt."""
        ...


class StepClient(Client):
    """See the module."""

    def __init__(self, outbox: Outbox) -> None:
        self._outbox = outbox

    def deliver(self, message: Outgoing) -> Sent[Any]:
        if not message.wants_reply:
            self._outbox.add(message)
            return Sent(None)
        if message.dedupe_hash is None:
            until = get_store().clock.now() + round(settings.DEDUPE_PERIOD * 1_000_000)
            key = sending.dedupe_hash(message.queue, self._outbox.call_key())
            message = replace(message, dedupe_hash=key, dedupe_until=until)
        return super().deliver(message)


def for_step(outbox: Outbox) -> StepClient:
    """The client for one step."""
    return StepClient(outbox)
