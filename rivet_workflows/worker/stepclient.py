"""``step.client()``: the ordinary client, whose sends without ``wait`` join the commit of the step.

What cannot join, because its answer is wanted now (``send(wait=True)``), happens at once and carries a key made from
the step's: a repeated attempt asks for the same keys in the same order, and the receiver gets the message once.
"""

from __future__ import annotations

import hashlib
from dataclasses import replace
from typing import Any

from rivet_workflows.client import Client, Sent
from rivet_workflows.conf import settings
from rivet_workflows.records import Outgoing
from rivet_workflows.store import get_store
from rivet_workflows.worker.context import StepContext


class StepClient(Client):
    """One per step that asks for it."""

    def __init__(self, context: StepContext) -> None:
        self._context = context
        self._count = 0

    def deliver(self, message: Outgoing) -> Sent[Any]:
        """With the step; its id is not known before."""
        if message.wants_reply:
            return super().deliver(self._once(message))
        self._context.add_message(message)
        return Sent(None)

    def _once(self, message: Outgoing) -> Outgoing:
        """The message under a key of the step's, unless it has one."""
        self._count += 1
        if message.dedupe_hash is not None:
            return message
        key = f"{self._context.idempotency_key}:{self._count}:{message.queue}"
        until = get_store().clock.now() + round(settings.DEDUPE_PERIOD * 1_000_000)
        return replace(
            message,
            dedupe_hash=hashlib.sha256(key.encode("utf-8", "surrogatepass")).hexdigest(),
            dedupe_until=until,
        )
