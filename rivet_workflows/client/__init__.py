"""Calling actors, from any process: ``from rivet_workflows import client``.

    checkout = client.get_or_create(Checkout, "order-123", input={...})
    checkout.send("orders", {...})
    checkout.get_state()

Importable before Django is set up. Knows ``store``, the declarations and the codec; never the worker or the engine's
replay. The functions here are the methods of one :class:`Client`, ``default``.
"""

from __future__ import annotations

from rivet_workflows.client.base import Client
from rivet_workflows.client.fires import CronFire, CronJob, Scheduled, ScheduledFire
from rivet_workflows.client.handles import Handle
from rivet_workflows.client.history import Attempt, HistoryEntry
from rivet_workflows.client.results import ActorState, ActorStatus, Sent

__all__ = [
    "ActorState",
    "ActorStatus",
    "Attempt",
    "Client",
    "CronFire",
    "CronJob",
    "Handle",
    "HistoryEntry",
    "Scheduled",
    "ScheduledFire",
    "Sent",
    "acreate",
    "aget",
    "aget_for_id",
    "aget_or_create",
    "alist",
    "create",
    "default",
    "get",
    "get_for_id",
    "get_or_create",
    "list",
]

#: The client of callers.
default = Client()

create = default.create
get = default.get
get_or_create = default.get_or_create
get_for_id = default.get_for_id
list = default.list
acreate = default.acreate
aget = default.aget
aget_or_create = default.aget_or_create
aget_for_id = default.aget_for_id
alist = default.alist
