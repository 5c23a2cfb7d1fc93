"""Several queues read apart, put into one order."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rivet_workflows.records import Look, Looked, MessageRow

#: Queue name to its first visible messages ``(id, queue, body, sent_at, wants_reply)``, at most the look's
#: limit.
QueueRead = dict[str, list[Sequence[Any]]]


def merge(look: Look, read: QueueRead, at: int) -> Looked:
    """The answer to ``look``: the queues' messages by id.

    A queue that filled the limit may hold more; beyond its last message nothing is known of it, so the others
    are cut there too. What is given is then in the exact order of arrival, and ``complete`` says whether it
    is all.
    """
    horizons = [rows[-1][0] for rows in read.values() if len(rows) >= look.limit]
    horizon = min(horizons, default=None)
    messages = [
        MessageRow(row[0], row[1], row[2], row[3], bool(row[4]))
        for rows in read.values()
        for row in rows
        if horizon is None or row[0] <= horizon
    ]
    messages.sort(key=lambda message: message.id)
    return Looked(look.actor_id, look.names, messages, horizon is None, at)
