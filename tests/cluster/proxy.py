"""A loopback proxy in front of PostgreSQL, for what networks do: stall, cut, and swallow just the answer to a COMMIT.

It runs on a thread of its own, with an asyncio loop of its own. It reads along in both directions as far as it has to:
which statement a client asks for, and where the server's answer to it ends.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Iterator
from urllib.parse import urlsplit

#: What begins a message of the client that names a statement's text, and those that run one.
_QUERY, _PARSE, _BIND = b"Q", b"P", b"B"
_READY = b"Z"


class Proxy:
    """Passes connections on to ``server`` (a URL); ``url`` is its own, for whoever shall go through it."""

    def __init__(self, server: str) -> None:
        self._parts = urlsplit(server)
        self._loop = asyncio.new_event_loop()
        self._open = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        #: Texts in statements of which the next answer is to be lost.
        self._swallow: list[str] = []
        #: Statements whose answers were lost.
        self.swallowed: list[str] = []
        self.port = 0

    @property
    def url(self) -> str:
        user = f"{self._parts.username}@" if self._parts.username else ""
        return self._parts._replace(netloc=f"{user}127.0.0.1:{self.port}").geturl()

    # -- from any thread

    def stall(self) -> None:
        """Pass nothing on, until :meth:`flow`. Connections stay open, as through a network that drops packets."""
        self._loop.call_soon_threadsafe(self._open.clear)

    def flow(self) -> None:
        self._loop.call_soon_threadsafe(self._open.set)

    def cut(self) -> None:
        """Close every connection, in the middle of whatever it is about."""
        self._loop.call_soon_threadsafe(self._cut)

    def swallow(self, text: str) -> None:
        """Have the next statement that contains ``text`` carried out, and its answer lost with the connection."""
        self._loop.call_soon_threadsafe(self._swallow.append, text)

    # -- on the loop

    def _cut(self) -> None:
        for task in self._tasks:
            task.cancel()

    async def serve(self, ready: threading.Event) -> None:
        self._open.set()
        server = await asyncio.start_server(self._connected, "127.0.0.1", 0)
        self.port = server.sockets[0].getsockname()[1]
        ready.set()
        async with server:
            await server.serve_forever()

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.ensure_future(self._carry(reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        with contextlib.suppress(asyncio.CancelledError, OSError, asyncio.IncompleteReadError):
            await task
        writer.close()

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        to_reader, to_writer = await asyncio.open_connection(
            self._parts.hostname or "127.0.0.1", self._parts.port or 5432
        )
        passage = _Passage(self)
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._forward(passage.asked(reader), to_writer))
                group.create_task(self._forward(passage.answered(to_reader), writer))
        except* (_Ended, OSError, asyncio.IncompleteReadError):
            pass
        finally:
            to_writer.close()

    async def _forward(self, pieces: AsyncIterator[bytes], writer: asyncio.StreamWriter) -> None:
        async for piece in pieces:
            await self._open.wait()
            writer.write(piece)
            await writer.drain()
        raise _Ended

    def loses(self, statement: str) -> bool:
        """Is the answer to this statement to be lost? Each wish is granted once."""
        for text in self._swallow:
            if text in statement:
                self._swallow.remove(text)
                self.swallowed.append(statement)
                return True
        return False


class _Ended(Exception):
    """One side has closed, or is to be closed."""


class _Passage:
    """One connection: the messages of both sides."""

    def __init__(self, proxy: Proxy) -> None:
        self._proxy = proxy
        self._prepared: dict[bytes, str] = {}
        self._losing = False

    async def asked(self, reader: asyncio.StreamReader) -> AsyncIterator[bytes]:
        """What the client says: first one message without a type, then typed ones."""
        yield await _untyped(reader)
        while True:
            kind, body = await _typed(reader)
            statement = self._statement(kind, body)
            if statement is not None and self._proxy.loses(statement):
                self._losing = True
            yield kind + (len(body) + 4).to_bytes(4, "big") + body

    def _statement(self, kind: bytes, body: bytes) -> str | None:
        """The text of the statement that this message has run; None if it runs none."""
        if kind == _QUERY:
            return body.rstrip(b"\0").decode()
        if kind == _PARSE:
            name, text = body.split(b"\0", 2)[:2]
            self._prepared[name] = text.decode()
        if kind == _BIND:
            return self._prepared.get(body.split(b"\0", 2)[1])
        return None

    async def answered(self, reader: asyncio.StreamReader) -> AsyncIterator[bytes]:
        """What the server says. A lost answer is read to its end, so that the statement is through, and kept back."""
        while True:
            kind, body = await _typed(reader)
            if not self._losing:
                yield kind + (len(body) + 4).to_bytes(4, "big") + body
            elif kind == _READY:
                raise _Ended


async def _untyped(reader: asyncio.StreamReader) -> bytes:
    """A startup message; a request for encryption before it is not for us, and clients here send none."""
    size = await reader.readexactly(4)
    return size + await reader.readexactly(int.from_bytes(size, "big") - 4)


async def _typed(reader: asyncio.StreamReader) -> tuple[bytes, bytes]:
    head = await reader.readexactly(5)
    return head[:1], await reader.readexactly(int.from_bytes(head[1:], "big") - 4)


@contextlib.contextmanager
def proxy_to(server: str) -> Iterator[Proxy]:
    """A running proxy in front of this server."""
    proxy, ready = Proxy(server), threading.Event()
    loop = proxy._loop

    def run() -> None:
        with contextlib.suppress(asyncio.CancelledError):
            loop.run_until_complete(serving)
        loop.run_until_complete(loop.shutdown_asyncgens())
        loop.close()

    serving = loop.create_task(proxy.serve(ready))
    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    assert ready.wait(10)
    try:
        yield proxy
    finally:
        loop.call_soon_threadsafe(proxy._cut)
        loop.call_soon_threadsafe(serving.cancel)
        thread.join(10)
