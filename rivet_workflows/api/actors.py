"""Actors over REST: find, make, list, destroy, call, send."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any, ClassVar
from uuid import UUID

from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.utils.urls import replace_query_param

from rivet_workflows import client
from rivet_workflows.api import serializers
from rivet_workflows.api.base import RivetView
from rivet_workflows.client import Handle, looking
from rivet_workflows.client.actions import run_action
from rivet_workflows.client.remote import require_of_type, require_staff, sendable
from rivet_workflows.exceptions import ValidationFailed
from rivet_workflows.registry import registry

__all__ = ["ActionView", "ActorView", "ActorsView", "CallView", "SendOneView", "SendView"]

PAGE, LARGEST_PAGE = 50, 200


class ActorsView(RivetView):
    """List actors, and get or create one."""

    requests: ClassVar = {"PUT": serializers.ActorRequest}

    def get(self, request: Request) -> Response:
        """``?name=&status=&key=``, and ``limit=``; ``next`` is the address of the page after this one, or null."""
        name, status = request.query_params.get("name"), request.query_params.get("status")
        self._require_list(request, name)
        limit = _page_size(request.query_params.get("limit"))
        keys = request.query_params.getlist("key")
        found = client.list(
            name or None,
            status=status or None,
            key=(keys[0] if len(keys) == 1 else tuple(keys)) if keys else None,
            limit=limit + 1,
            after=_cursor(request.query_params.get("cursor")),
        )
        page, more = found[:limit], len(found) > limit
        following = None
        if more:
            following = replace_query_param(request.build_absolute_uri(), "cursor", str(page[-1].actor_id))
        return Response({"next": following, "results": list(_bodies(page))})

    def put(self, request: Request) -> Response:
        """``{"name", "key", "input"}``: the actor, made (201) if there was none (200)."""
        data = self.checked(request)
        handle = self.get_or_create(request, data, data["name"], "get")
        return Response(
            serializers.actor_body(handle, handle.status()), status=201 if handle.created else 200
        )

    @staticmethod
    def _require_list(request: Request, name: str | None) -> None:
        """Without a name everything is listed, so every class must allow it."""
        if name:
            require_of_type(registry.get(name), (), request, "list")
            return
        types = registry.all()
        if not types:
            require_staff(request)
        for actor_type in types:
            require_of_type(actor_type, (), request, "list")


def _bodies(handles: Sequence[Handle]) -> Iterator[dict[str, Any]]:
    statuses = looking.statuses(handles)
    for handle in handles:
        if handle.actor_id in statuses:  # it may have been destroyed since it was listed
            yield serializers.actor_body(handle, statuses[handle.actor_id])


def _page_size(given: str | None) -> int:
    if not given:
        return PAGE
    if not given.isdecimal() or not 1 <= int(given) <= LARGEST_PAGE:
        raise _invalid("limit", f"limit is a whole number from 1 to {LARGEST_PAGE}")
    return int(given)


def _cursor(given: str | None) -> UUID | None:
    if not given:
        return None
    try:
        return UUID(given)
    except ValueError:
        raise _invalid("cursor", "this is no cursor that a page gave") from None


def _invalid(name: str, message: str) -> ValidationFailed:
    issue = {"path": [name], "message": message, "type": "invalid"}
    return ValidationFailed(message, metadata={"issues": [issue]})


class ActorView(RivetView):
    """One actor: what it is doing, and its destruction."""

    def get(self, request: Request, actor_id: UUID) -> Response:
        handle = self.handle(request, actor_id, "get")
        return Response(serializers.actor_body(handle, handle.status()))

    def delete(self, request: Request, actor_id: UUID) -> Response:
        self.handle(request, actor_id, "destroy").destroy()
        return Response(status=204)


class ActionView(RivetView):
    """Run an action: ``{"args": [...], "kwargs": {...}}`` gives ``{"output": …}``."""

    requests: ClassVar = {"POST": serializers.ActionRequest}

    def post(self, request: Request, actor_id: UUID, action: str) -> Response:
        handle = self.handle(request, actor_id, "call", action)
        return _call(request, handle, action, self.checked(request))


class CallView(RivetView):
    """Get or create an actor and run an action of it, in one round trip."""

    requests: ClassVar = {"POST": serializers.CallRequest}

    def post(self, request: Request, name: str, action: str) -> Response:
        data = self.checked(request)
        return _call(request, self.get_or_create(request, data, name, "call", action), action, data)


def _call(request: Request, handle: Handle, action: str, data: dict[str, Any]) -> Response:
    output = run_action(
        handle.actor_id,
        handle.name,
        action,
        tuple(data["args"]),
        data["kwargs"],
        user=request.user,
        convert=partial(sendable, f"{handle.name}.{action}"),
    )
    return Response({"output": output})


class SendView(RivetView):
    """Put a message into a queue: ``{"body": …, "wait": false, "timeout": 5}``. ``Idempotency-Key`` is its dedupe
    key."""

    requests: ClassVar = {"POST": serializers.SendRequest}

    def post(self, request: Request, actor_id: UUID, queue: str) -> Response:
        handle = self.handle(request, actor_id, "send", queue)
        return _send(request, handle, queue, self.checked(request))


class SendOneView(RivetView):
    """Get or create an actor and send to it, in one round trip."""

    requests: ClassVar = {"POST": serializers.SendOneRequest}

    def post(self, request: Request, name: str, queue: str) -> Response:
        data = self.checked(request)
        return _send(request, self.get_or_create(request, data, name, "send", queue), queue, data)


def _send(request: Request, handle: Handle, queue: str, data: dict[str, Any]) -> Response:
    options: dict[str, Any] = {"delay": data["delay"], "dedupe_key": _dedupe_key(request)}
    if not data["wait"]:
        return Response(serializers.sent_body(handle.send(queue, data["body"], **options)), status=202)

    async def later() -> dict[str, Any]:
        sent = await handle.asend(queue, data["body"], wait=True, timeout=data["timeout"], **options)
        return serializers.sent_body(sent)

    response = Response()
    response.later = later  # type: ignore[attr-defined]
    return response


def _dedupe_key(request: Request) -> str | None:
    key = request.headers.get("Idempotency-Key")
    if key is not None and not 1 <= len(key) <= 255:
        raise _invalid("Idempotency-Key", "an Idempotency-Key has 1 to 255 characters")
    return key
