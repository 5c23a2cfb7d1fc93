"""Just enough of a WebSocket client (RFC 6455) to watch the shop's events without another dependency."""

from __future__ import annotations

import base64
import json
import os
import socket
import struct
import threading
from typing import Any
from urllib.parse import urlsplit

_TEXT, _CLOSE, _PING, _PONG = 1, 8, 9, 10


class EventWatcher(threading.Thread):
    """Subscribes to one event of one actor and keeps what arrives, in order, until ``close``."""

    def __init__(self, site_url: str, cookies: str, actor: str, key: str, event: str) -> None:
        super().__init__(name="events", daemon=True)
        self.events: list[dict[str, Any]] = []
        self.other: list[dict[str, Any]] = []
        self.error = ""
        self._closing = False
        parts = urlsplit(site_url)
        self._socket = socket.create_connection((parts.hostname or "127.0.0.1", parts.port or 80), timeout=10)
        self._stream = self._socket.makefile("rb")
        self._shake_hands(f"/ws/rivet/{actor}/{key}/", parts.netloc, site_url, cookies)
        self._socket.settimeout(None)
        self._send(_TEXT, json.dumps({"type": "subscribe", "events": [event], "after": 0}).encode())
        self.start()

    def run(self) -> None:
        try:
            while (frame := self._receive()) is not None:
                (self.events if frame.get("type") == "event" else self.other).append(frame)
        except (OSError, ValueError, struct.error) as error:
            if not self._closing:
                self.error = f"{type(error).__name__}: {error}"

    def close(self) -> None:
        self._closing = True
        try:
            self._send(_CLOSE, b"")
            self._socket.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass
        self.join(timeout=5)
        self._socket.close()

    def _shake_hands(self, path: str, host: str, origin: str, cookies: str) -> None:
        key = base64.b64encode(os.urandom(16)).decode()
        lines = [f"GET {path} HTTP/1.1", f"Host: {host}", f"Origin: {origin}", f"Cookie: {cookies}"]
        lines += ["Upgrade: websocket", "Connection: Upgrade", f"Sec-WebSocket-Key: {key}"]
        lines += ["Sec-WebSocket-Version: 13", "", ""]
        self._socket.sendall("\r\n".join(lines).encode())
        status = self._stream.readline().decode(errors="replace").strip()
        while self._stream.readline().strip():
            pass
        if " 101 " not in f"{status} ":
            raise ConnectionError(f"no WebSocket at {path}: {status or 'no answer'}")

    def _send(self, opcode: int, payload: bytes) -> None:
        mask = os.urandom(4)
        length = len(payload)
        head = bytes([0x80 | opcode])
        head += bytes([0x80 | length]) if length < 126 else bytes([0x80 | 126]) + struct.pack("!H", length)
        self._socket.sendall(head + mask + bytes(b ^ mask[i % 4] for i, b in enumerate(payload)))

    def _receive(self) -> dict[str, Any] | None:
        """The next JSON message; None when the server closes."""
        message = b""
        while True:
            first, second = self._exactly(2)
            length = second & 0x7F
            if length == 126:
                (length,) = struct.unpack("!H", self._exactly(2))
            elif length == 127:
                (length,) = struct.unpack("!Q", self._exactly(8))
            payload = self._exactly(length)
            opcode = first & 0x0F
            if opcode == _CLOSE:
                code = struct.unpack("!H", payload[:2])[0] if len(payload) >= 2 else None
                if not self._closing:
                    self.error = f"closed by the server (code {code})"
                return None
            if opcode == _PING:
                self._send(_PONG, payload)
            elif opcode != _PONG:
                message += payload
                if first & 0x80:
                    decoded: dict[str, Any] = json.loads(message)
                    return decoded

    def _exactly(self, count: int) -> bytes:
        data = self._stream.read(count)
        if len(data) < count:
            raise ConnectionError("the connection ended in the middle of a frame")
        return data
