"""A strict Content-Security-Policy for every page: scripts and styles from our own files, nothing inline.

Django 6.0 has a middleware for this; the demo also runs on 5.2.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from asgiref.sync import iscoroutinefunction, markcoroutinefunction
from django.http import HttpRequest, HttpResponse
from django.utils.decorators import sync_and_async_middleware

POLICY = (
    "default-src 'self'; img-src 'self' data:; base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
)


@sync_and_async_middleware
def content_security_policy(get_response: Callable[[HttpRequest], Any]) -> Callable[[HttpRequest], Any]:
    """Works in both worlds, so that under ASGI no thread is taken just to set a header."""
    if iscoroutinefunction(get_response):

        async def amiddleware(request: HttpRequest) -> HttpResponse:
            return _with_policy(await get_response(request))

        markcoroutinefunction(amiddleware)
        return amiddleware

    def middleware(request: HttpRequest) -> HttpResponse:
        return _with_policy(get_response(request))

    return middleware


def _with_policy(response: HttpResponse) -> HttpResponse:
    response.headers.setdefault("Content-Security-Policy", POLICY)
    return response
