"""Where WebSockets find their actor; a project puts these into its ``URLRouter``.

    AllowedHostsOriginValidator(AuthMiddlewareStack(URLRouter(websocket_urlpatterns)))

A key of several parts, or one that an address cannot carry, goes into the query: ``ws/rivet/checkout/?key=eu&key=7``.
"""

from __future__ import annotations

from typing import Any

from django.urls import re_path

from rivet_workflows.realtime.consumer import ActorConsumer

__all__ = ["websocket_urlpatterns"]

# Channels takes Django's patterns for ASGI applications, which their types do not say.
_consumer: Any = ActorConsumer.as_asgi()

websocket_urlpatterns: list[Any] = [
    re_path(r"^ws/rivet/(?P<name>[^/]+)/$", _consumer),
    re_path(r"^ws/rivet/(?P<name>[^/]+)/(?P<key>.+)/$", _consumer),
]
