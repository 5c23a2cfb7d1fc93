"""What all REST views share: JSON in and out, our errors, and the one permission question."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, ClassVar, TypeVar
from uuid import UUID

from django.db import connections
from django.http import HttpRequest, HttpResponseBase
from django.views.decorators.csrf import csrf_exempt
from rest_framework import renderers
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.serializers import Serializer
from rest_framework.views import APIView

from rivet_workflows import client
from rivet_workflows.api.errors import exception_handler
from rivet_workflows.api.parsers import JSONParser
from rivet_workflows.client import Handle
from rivet_workflows.client.remote import NotSignedIn, require, require_of_type, signed_in
from rivet_workflows.client.twins import in_thread
from rivet_workflows.exceptions import ActorNotFound
from rivet_workflows.registry import registry

__all__ = ["JSONRenderer", "RivetView", "non_atomic", "route", "waiting_route"]

V = TypeVar("V", bound=Callable[..., Any])


class JSONRenderer(renderers.JSONRenderer):
    """ASCII: a key may hold half a surrogate pair, which UTF-8 has no bytes for and JSON an escape."""

    ensure_ascii = True


class RivetView(APIView):
    """Authentication and throttles are the project's (DRF's settings); permission is the actor's own."""

    parser_classes = (JSONParser,)
    renderer_classes: tuple[type[renderers.BaseRenderer], ...] = (JSONRenderer,)
    #: The actor's class is asked instead, for every operation: see ``handle`` and ``get_or_create``.
    permission_classes = ()
    #: Method to the serializer of its request's body.
    requests: ClassVar[Mapping[str, type[Serializer[Any]]]] = {}

    def request_serializer(self, method: str) -> type[Serializer[Any]] | None:
        """What reads the body of a request with this method."""
        return self.requests.get(method)

    def get_exception_handler(self) -> Callable[[Exception, dict[str, Any]], Response]:
        return exception_handler

    def handle(self, request: Request, actor_id: UUID, operation: str, name: str | None = None) -> Handle:
        """The actor, if it is there and the caller may do this."""
        try:
            handle = client.get_for_id(actor_id)
        except ActorNotFound:
            if not signed_in(request):
                raise NotSignedIn("this takes a signed-in user") from None
            raise
        require(handle, request, operation, name)
        return handle

    def get_or_create(
        self, request: Request, data: dict[str, Any], actor_name: str, operation: str, name: str | None = None
    ) -> Handle:
        """The actor of the request's name and key, made if there is none and the caller may make it."""
        actor_type = registry.get(actor_name)
        key = data["key"]
        try:
            handle = client.get(actor_name, key)
        except ActorNotFound:
            parts = tuple(key) if isinstance(key, tuple) else (key,)
            shown = parts[0] if len(parts) == 1 else parts
            require_of_type(actor_type, shown, request, "create")
            if operation != "get":  # who may create an actor may see that it was made
                require_of_type(actor_type, shown, request, operation, name)
            return client.get_or_create(actor_name, key, input=data["input"])
        require(handle, request, operation, name)
        return handle

    def checked(self, request: Request) -> dict[str, Any]:
        """The request's data; DRF's ``ValidationError`` when it does not fit."""
        serializer = self.request_serializer(str(request.method))
        assert serializer is not None
        checked = serializer(data=request.data)
        checked.is_valid(raise_exception=True)
        return dict(checked.validated_data)


def route(view: type[RivetView], **initkwargs: Any) -> Callable[..., Any]:
    """The view for ``urlpatterns``: each request's own calls are transactions, the request is none."""
    return non_atomic(view.as_view(**initkwargs))


def waiting_route(view: type[RivetView]) -> Callable[..., Any]:
    """For a view whose answer may have to be waited for, without holding a thread.

    DRF has no async views: the view runs in a thread, checks everything and gives a response with an attribute
    ``later``, a coroutine function that fills it in.
    """
    inner = view.as_view()

    async def waiting(request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponseBase:
        response = await in_thread(inner, request, *args, **kwargs)
        later: Callable[[], Awaitable[Any]] | None = getattr(response, "later", None)
        if later is not None:
            await _fill(response, later)
        return response

    waiting.cls = view  # type: ignore[attr-defined]  # where schema generators look
    waiting.initkwargs = {}  # type: ignore[attr-defined]
    waiting.__doc__ = view.__doc__
    return non_atomic(csrf_exempt(waiting))


async def _fill(response: Response, later: Callable[[], Awaitable[Any]]) -> None:
    try:
        response.data = await later()
    except Exception as error:
        failed = exception_handler(error, {})
        response.data, response.status_code = failed.data, failed.status_code
        for header, value in failed.headers.items():
            response.headers[header] = value


def non_atomic(view: V) -> V:
    """Keep ATOMIC_REQUESTS off a view, on every database."""
    # A waiting send inside ATOMIC_REQUESTS would never be answered, and an action would hold its lock for the view.
    view._non_atomic_requests = set(connections)  # type: ignore[attr-defined]
    return view
