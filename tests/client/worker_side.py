"""What a worker would have written, for tests of those who read it."""

from __future__ import annotations

import json
from typing import Any

from rivet_workflows import codec
from rivet_workflows.client import Handle
from rivet_workflows.exceptions import failure_record
from rivet_workflows.models import Actor, History, Message, Reply, Run
from rivet_workflows.records import Blocked, EntryStatus, Kind, Lifecycle, child_scope

AT = 1_700_000_000_000_000


def finish(handle: Handle, output: Any = None) -> None:
    _end(handle, Lifecycle.COMPLETED, output=codec.dumps(output))


def fail(handle: Handle, error: Exception) -> None:
    _end(handle, Lifecycle.FAILED, error=json.dumps(failure_record(error)))


def cancelled(handle: Handle) -> None:
    _end(handle, Lifecycle.CANCELLED)


def _end(handle: Handle, lifecycle: Lifecycle, **values: Any) -> None:
    Actor.objects.filter(id=handle.actor_id).update(lifecycle=lifecycle, finished_at=AT, **values)
    Run.objects.filter(actor_id=handle.actor_id).update(blocked=Blocked.OVER, owner_id=None)


def open_entries(handle: Handle, *entries: dict[str, Any], owner: int | None = None, **extra: Any) -> None:
    Run.objects.filter(actor_id=handle.actor_id).update(
        inflight=json.dumps({"e": list(entries), **extra}), owner_id=owner
    )


def block(handle: Handle, reason: Blocked) -> None:
    Run.objects.filter(actor_id=handle.actor_id).update(blocked=reason)


def row(handle: Handle, seq: int, name: str, kind: Kind, scope: str = "", **values: Any) -> None:
    values = {
        "occurrence": 1,
        "status": EntryStatus.COMPLETED,
        "started_at": AT + seq,
        "done_seq": seq + 100,
        "done_at": AT + seq + 1,
    } | values
    History.objects.create(actor_id=handle.actor_id, seq=seq, scope=scope, name=name, kind=kind, **values)


def complete(handle: Handle, response: Any = None, *, ok: bool = True) -> None:
    """Take the actor's oldest message and answer its sender."""
    message = Message.objects.filter(actor_id=handle.actor_id).order_by("id")[0]
    Message.objects.filter(pk=message.pk).delete()
    Reply.objects.create(
        message_id=message.pk,
        actor_id=handle.actor_id,
        status=1 if ok else 2,
        body=codec.dumps(response) if ok else None,
        expires_at=2**62,
    )


__all__ = ["AT", "Blocked", "EntryStatus", "Kind", "child_scope"]
