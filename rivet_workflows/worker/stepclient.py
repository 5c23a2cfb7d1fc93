"""``step.client()``: the ordinary client, whose sends without ``wait`` join the commit of the step.

What cannot join, because its answer is wanted now (``create``, ``call``, ``send(wait=True)``), happens at once and
carries a key made from the step's: a repeated attempt asks for the same keys in the same order, and what has happened
under one does not happen again.
"""

from __future__ import annotations

import hashlib
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from django.db import transaction

from rivet_workflows.client import Client, Handle, Sent
from rivet_workflows.client.actions import arun_action, kept_until, run_action
from rivet_workflows.conf import settings
from rivet_workflows.exceptions import ActorExists
from rivet_workflows.keys import Key
from rivet_workflows.records import Outgoing
from rivet_workflows.store import get_store
from rivet_workflows.worker.context import StepContext

if TYPE_CHECKING:
    from rivet_workflows.actors import Actor


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

    def act(self, handle: Handle, action: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """At once, and once."""
        return run_action(
            handle.actor_id, handle.name, action, args, kwargs, once=self._key(f"call {action}")
        )

    async def aact(self, handle: Handle, action: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Likewise."""
        once = self._key(f"call {action}")
        return await arun_action(handle.actor_id, handle.name, action, args, kwargs, once=once)

    def create(self, actor: str | type[Actor], key: Key = (), *, input: Any = None) -> Handle:
        """At once. An actor that an earlier attempt of this step created is not in the way."""
        once = self._key("create")
        try:
            with transaction.atomic(using=settings.DATABASE):
                handle = super().create(actor, key, input=input)
                get_store().begin_call(handle.actor_id, once, kept_until())
            return handle
        except ActorExists:
            handle = self.get(actor, key)
            if get_store().knows_call(handle.actor_id, once):
                return handle
            raise

    def _once(self, message: Outgoing) -> Outgoing:
        """The message under a key of the step's, unless it has one."""
        key = self._key(message.queue)
        if message.dedupe_hash is not None:
            return message
        return replace(message, dedupe_hash=key, dedupe_until=kept_until())

    def _key(self, what: str) -> str:
        self._count += 1
        key = f"{self._context.idempotency_key}:{self._count}:{what}"
        return hashlib.sha256(key.encode("utf-8", "surrogatepass")).hexdigest()
