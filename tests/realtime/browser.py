"""A browser's end of a WebSocket, for tests: a Channels communicator on our own routes."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from channels.routing import URLRouter
from channels.testing import WebsocketCommunicator
from django.contrib.auth.models import AnonymousUser

from rivet_workflows.routing import websocket_urlpatterns

_router = URLRouter(websocket_urlpatterns)


class Browser:
    def __init__(self, path: str, user: Any = None) -> None:
        self._socket = WebsocketCommunicator(_router, path)
        scope: Any = self._socket.scope
        scope["user"] = AnonymousUser() if user is None else user

    async def open(self) -> Browser:
        connected, _ = await self._socket.connect(timeout=10)
        assert connected
        return self

    async def send(self, **frame: Any) -> None:
        await self.send_text(json.dumps(frame))

    async def send_text(self, text: str) -> None:
        await self._socket.send_to(text_data=text)

    async def send_bytes(self, data: bytes) -> None:
        await self._socket.send_to(bytes_data=data)

    async def receive(self) -> dict[str, Any]:
        frame: dict[str, Any] = await self._socket.receive_json_from(timeout=10)
        return frame

    async def settled(self) -> None:
        """All frames sent so far have been handled: an invalid one is answered after them."""
        await self.send_text("?")
        assert (await self.receive())["code"] == "invalid_frame"

    async def closed(self) -> int:
        message = await self._socket.receive_output(timeout=10)
        assert message["type"] == "websocket.close", message
        await self.close()  # as a server reports it after the handshake
        return int(message["code"])

    async def quiet(self) -> bool:
        """Nothing comes, for as long as a few polls would take."""
        return await self._socket.receive_nothing(timeout=0.3, interval=0.01)

    async def close(self) -> None:
        await self._socket.disconnect(timeout=10)


@asynccontextmanager
async def connected(path: str, user: Any = None) -> AsyncIterator[Browser]:
    browser = await Browser(path, user).open()
    try:
        yield browser
    finally:
        await browser.close()


async def refused(path: str, user: Any = None) -> int:
    """The code that a connection is closed with."""
    browser = await Browser(path, user).open()
    return await browser.closed()
