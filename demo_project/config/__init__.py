"""The demo's Django project: settings, URLs, ASGI."""
