"""What a worker tidies up now and then: rows that are no longer kept. A small service of its own with one verb.

Every worker does it, in small batches and on an errand thread: there is no leader to lose, and two at a time only
find less to do. Nothing waits for it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from rivet_workflows.conf import settings
from rivet_workflows.registry import registry
from rivet_workflows.store.store import Store

logger = logging.getLogger("rivet_workflows.worker")

#: Seconds between rounds, and rows per transaction; a round ends when a batch is not filled.
INTERVAL = 60.0
BATCH = 1_000
_NEVER = 2**62


def run_once(store: Store, stopping: Callable[[], bool] = lambda: False) -> int:
    """Prune until there is nothing left to prune; how many rows went."""
    retention = _NEVER if settings.RETENTION is None else round(settings.RETENTION * 1_000_000)
    retained = {
        actor_type.name: round(actor_type.options.retain.total_seconds() * 1_000_000)
        for actor_type in registry.all()
        if actor_type.options.retain is not None
    }
    total = 0
    while not stopping():
        gone = store.prune(batch=BATCH, retention=retention, delete_after=retained)
        total += gone
        if gone < BATCH:
            break
    if total:
        logger.info("Pruned %d rows that are no longer kept", total)
    return total
