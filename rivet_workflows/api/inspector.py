"""What people and the inspector's pages see and do with one actor, over REST."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar
from uuid import UUID

from rest_framework.request import Request
from rest_framework.response import Response

from rivet_workflows.api import serializers
from rivet_workflows.api.base import RivetView
from rivet_workflows.client import Handle, looking
from rivet_workflows.exceptions import ValidationFailed
from rivet_workflows.registry import registry

__all__ = [
    "ControlView",
    "EventsView",
    "HistoryView",
    "InspectorEventsView",
    "QueueView",
    "StateView",
    "SummaryView",
    "number",
]

PAGE = 100


class EventsView(RivetView):
    """Events after ``?after=SEQ``, at most ``limit``; ``gap`` says which ones are no longer kept."""

    operation = "events"

    def get(self, request: Request, actor_id: UUID) -> Response:
        handle = self.handle(request, actor_id, self.operation)
        after, limit = number(request, "after", 0), number(request, "limit", PAGE, least=1, most=1000)
        return Response(_events(handle, after, limit))


class InspectorEventsView(EventsView):
    """The same for who operates actors."""

    operation = "inspect"


def _events(handle: Handle, after: int, limit: int) -> dict[str, Any]:
    page = looking.events(handle, after=after, limit=limit)
    gap = None if page.gap is None else {"from": page.gap[0], "to": page.gap[1]}
    return {"results": [serializers.event_body(event) for event in page.events], "gap": gap}


def number(request: Request, name: str, default: int, *, least: int = 0, most: int = 2**63 - 1) -> int:
    given = request.query_params.get(name)
    if not given:
        return default
    # isdecimal also takes digits of other scripts, as int() does; 19 of them are the largest number there is.
    if not given.isdecimal() or len(given) > 19 or not least <= int(given) <= most:
        message = f"{name} is a whole number from {least} to {most}"
        raise ValidationFailed(
            message, metadata={"issues": [{"path": [name], "message": message, "type": "invalid"}]}
        )
    return int(given)


class HistoryView(RivetView):
    """The workflow's history. ``history`` is null for an actor without workflow."""

    def get(self, request: Request, actor_id: UUID) -> Response:
        return Response(_history(self.handle(request, actor_id, "history")))


def _history(handle: Handle) -> dict[str, Any]:
    status = handle.status()
    enabled = _has_workflow(handle)
    entries = [serializers.entry_body(entry) for entry in handle.history()] if enabled else None
    return {
        "is_workflow_enabled": enabled,
        "status": str(status),
        "history": None if entries is None else {"entries": entries},
    }


def _has_workflow(handle: Handle) -> bool:
    actor_type = registry.find(handle.name)
    return actor_type is None or actor_type.run is not None


class SummaryView(RivetView):
    """What there is to see at a glance."""

    def get(self, request: Request, actor_id: UUID) -> Response:
        handle = self.handle(request, actor_id, "inspect")
        actor_type = registry.find(handle.name)
        return Response(
            serializers.actor_body(handle, handle.status())
            | {
                "is_workflow_enabled": _has_workflow(handle),
                "is_state_enabled": actor_type is not None and actor_type.state_enabled,
                "state": looking.plain_state(handle),
                "queue_size": looking.queue_size(handle),
                "actions": sorted(actor_type.actions) if actor_type else [],
                "queues": sorted(actor_type.queues) if actor_type else [],
                "events": sorted(actor_type.events) if actor_type else [],
            }
        )


class StateView(RivetView):
    """The stored state in its JSON form; ``PATCH {"state": …}`` replaces it, checked against its declared type."""

    requests: ClassVar = {"PATCH": serializers.StateRequest}

    def get(self, request: Request, actor_id: UUID) -> Response:
        return Response(_state(self.handle(request, actor_id, "inspect")))

    def patch(self, request: Request, actor_id: UUID) -> Response:
        handle = self.handle(request, actor_id, "edit_state")
        looking.replace_state(handle, self.checked(request)["state"])
        return Response(_state(handle))


def _state(handle: Handle) -> dict[str, Any]:
    actor_type = registry.find(handle.name)
    enabled = actor_type is None or actor_type.state_enabled
    return {"is_state_enabled": enabled, "state": looking.plain_state(handle) if enabled else None}


class QueueView(RivetView):
    """The messages that wait, oldest first, at most ``limit``."""

    def get(self, request: Request, actor_id: UUID) -> Response:
        handle = self.handle(request, actor_id, "inspect")
        limit = number(request, "limit", PAGE, least=1, most=1000)
        messages = looking.messages(handle, limit=limit)
        size = looking.queue_size(handle)
        return Response(
            {
                "size": size,
                "max_size": looking.queue_limit(handle),
                "truncated": size > len(messages),
                "messages": [serializers.message_body(message) for message in messages],
            }
        )


class ControlView(RivetView):
    """Operations on the run; each answers with whether it did something and the status after it."""

    #: In the address, and what it is called on a handle and for permissions.
    operations: ClassVar[dict[str, str]] = {
        "replay": "replay_from",
        "recover": "recover",
        "cancel": "cancel",
        "wake": "wake",
        "pause": "pause",
        "resume": "resume",
        "skip": "skip",
    }
    control = ""

    def request_serializer(self, method: str) -> type[serializers.StrictSerializer]:
        own = {"replay": serializers.ReplayRequest, "skip": serializers.SkipRequest}
        return own.get(self.control, serializers.EmptyRequest)

    def post(self, request: Request, actor_id: UUID) -> Response:
        operation = self.operations[self.control]
        handle = self.handle(request, actor_id, operation)
        carry_out: Callable[..., bool] = getattr(handle, operation)
        done = carry_out(**self.checked(request))
        return Response({"done": done} | serializers.actor_body(handle, handle.status()))
