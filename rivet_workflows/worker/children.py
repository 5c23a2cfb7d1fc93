"""Carrying out ``ctx.child``: create the child unless it is there, wait for its end, tell the parent.

The engine orders a child again after each replay until it has been told the end; here that is made to happen once:
the child is created by its key, whoever creates it first, and waiting twice is waiting once.
Runs on the errand threads: creating an actor calls its hooks, which are users' code.
"""

from __future__ import annotations

import json
import logging
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from rivet_workflows import codec, keys
from rivet_workflows.client import default as client
from rivet_workflows.exceptions import ActorNotFound, WorkflowCancelled, failure_record
from rivet_workflows.records import Lifecycle
from rivet_workflows.store import get_store
from rivet_workflows.store.children import Ending
from rivet_workflows.worker.orders import ChildEnd, ChildStart
from rivet_workflows.worker.patience import is_outage

logger = logging.getLogger("rivet_workflows.worker")


@dataclass(slots=True, frozen=True)
class ChildNews:
    """What came of an order: the child, and how it ended if it has (or could not begin)."""

    start: ChildStart
    child_id: UUID | None
    end: ChildEnd | None


def begin(start: ChildStart) -> ChildNews:
    """Create or join the child and have its end wake the parent. Raises where the database is away, and nothing else:
    whoever waits for the answer would wait for ever."""
    try:
        value: Any = None if start.input is None else codec.loads(start.input)
        child = client.get_or_create(start.actor, keys.decode(start.key), input=value)
        ended = get_store().watch(start.actor_id, child.actor_id)
    except Exception as exc:
        if is_outage(exc):
            raise
        logger.warning("The child %s %s of %s cannot begin: %s", start.actor, start.key, start.actor_id, exc)
        return ChildNews(start, None, ChildEnd(False, error=json.dumps(failure_record(exc))))
    return ChildNews(start, child.actor_id, None if ended is None else as_end(ended))


def as_end(ending: Ending) -> ChildEnd:
    """How a child ended, as its parent's engine is told."""
    if ending.lifecycle is Lifecycle.COMPLETED:
        return ChildEnd(True, output=ending.output)
    if ending.lifecycle is Lifecycle.FAILED and ending.error is not None:
        return ChildEnd(False, error=ending.error)
    gone = (
        ActorNotFound("the child was destroyed")
        if ending.gone
        else WorkflowCancelled("the child was cancelled")
    )
    return ChildEnd(False, error=json.dumps(failure_record(gone)))
