"""Events as server-sent events: what a page can follow with ``EventSource``, and nothing more than HTTP.

It resumes by itself: ``EventSource`` repeats the last ``seq`` it saw as ``Last-Event-ID``. Between events the stream
waits for the actor's bell and holds no thread. Under WSGI nothing can wait without one: there the stream ends after
what there is, and the browser comes again.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from typing import Any
from uuid import UUID

from django.core.handlers.asgi import ASGIRequest
from django.http import HttpRequest, HttpResponseBase, StreamingHttpResponse
from rest_framework.negotiation import BaseContentNegotiation
from rest_framework.request import Request
from rest_framework.response import Response

from rivet_workflows.api import serializers
from rivet_workflows.api.base import RivetView, non_atomic
from rivet_workflows.api.inspector import number
from rivet_workflows.client import looking, waiting
from rivet_workflows.client.looking import EventPage
from rivet_workflows.client.twins import in_thread
from rivet_workflows.exceptions import ActorNotFound

__all__ = ["EventStreamView", "stream_route"]

#: Seconds after which something is sent even where there is nothing to tell, so that proxies keep the stream.
KEEP_ALIVE = 15.0
#: Milliseconds until a browser comes again after the stream ended.
RETRY = 2000


class _WhateverIsAsked(BaseContentNegotiation):
    """``EventSource`` accepts its own type alone, and is to get errors as JSON."""

    def select_parser(self, request: Any, parsers: Any) -> Any:
        return parsers[0]

    def select_renderer(self, request: Any, renderers: Any, format_suffix: Any = None) -> Any:
        return renderers[0], renderers[0].media_type


class EventStreamView(RivetView):
    """Checks the request; the stream itself begins outside, see :func:`stream_route`."""

    content_negotiation_class = _WhateverIsAsked

    def get(self, request: Request, actor_id: UUID) -> Response:
        self.handle(request, actor_id, "events")
        seen = request.headers.get("Last-Event-ID", "")
        response = Response()
        response.after = int(seen) if seen.isdecimal() else number(request, "after", 0)  # type: ignore[attr-defined]
        return response


def stream_route(view: type[RivetView]) -> Callable[..., Any]:
    """The view for ``urlpatterns``."""
    inner = view.as_view()

    async def stream(request: HttpRequest, actor_id: UUID) -> HttpResponseBase:
        response = await in_thread(inner, request, actor_id=actor_id)
        after = getattr(response, "after", None)
        if after is None:
            return response
        follow = isinstance(request, ASGIRequest)
        chunks: Any = _events(actor_id, after) if follow else [await in_thread(_there_is, actor_id, after)]
        headers = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
        return StreamingHttpResponse(chunks, content_type="text/event-stream", headers=headers)

    stream.cls = view  # type: ignore[attr-defined]  # where schema generators look
    stream.initkwargs = {}  # type: ignore[attr-defined]
    return non_atomic(stream)


async def _events(actor_id: UUID, after: int) -> AsyncIterator[str]:
    """The stream, until the browser goes or the actor does."""
    yield f"retry: {RETRY}\n\n"

    def look() -> EventPage | None:
        page = looking.events_of(actor_id, after=after)
        return page if page.events or page.gap else None

    while True:
        try:
            page = await waiting.await_for(actor_id, look, KEEP_ALIVE)
        except ActorNotFound:
            return
        if page is None:
            yield ": still there\n\n"
            continue
        yield _page(page)
        after = page.events[-1].seq if page.events else page.gap[1] if page.gap else after


def _there_is(actor_id: UUID, after: int) -> str:
    return f"retry: {RETRY}\n\n{_page(looking.events_of(actor_id, after=after))}"


def _page(page: EventPage) -> str:
    told = "" if page.gap is None else _message(page.gap[1], "gap", {"from": page.gap[0], "to": page.gap[1]})
    return told + "".join(_message(e.seq, e.name, serializers.event_body(e)) for e in page.events)


def _message(seq: int, name: str, data: Any) -> str:
    # A line break in a name would end the field.
    return f"id: {seq}\nevent: {' '.join(name.split())}\ndata: {json.dumps(data)}\n\n"
