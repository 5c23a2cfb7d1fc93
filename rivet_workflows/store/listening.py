"""Hearing bells, in a thread of one's own. Whatever becomes of the connection, ``wait`` comes back: after a
loss it listens again and says "check everything", as bells rung meanwhile are gone."""

from __future__ import annotations

import contextlib
import os
import select
import sqlite3
import threading
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any
from uuid import UUID

from django.db import connections

from rivet_workflows.conf import settings
from rivet_workflows.store.base import is_pooled
from rivet_workflows.store.bells import (
    NEWS_CHANNEL,
    WORK_CHANNEL,
    Heard,
    Mailbox,
    subscribe,
    unsubscribe,
    worker_channel,
)

if TYPE_CHECKING:
    import psycopg

#: How often a SQLite listener looks at the file's version: 5 µs each, so 0.05 % of a core.
SQLITE_INTERVAL = 0.01
#: The same for those who wait for news, for so many seconds after something has changed: what they wait for may follow.
#: Not for workers, who would hear their own commits the more.
SQLITE_EAGER, SQLITE_AWAKE = 0.002, 0.2
#: Seconds between attempts to connect again.
RECONNECT = (0.1, 0.5, 1.0)


class Listener:
    """Hears the bells of a database: of the actors that ``worker_id`` holds and of those nobody holds, and
    with ``news`` what clients wait for. Use it from one thread; ``wake`` and ``close`` may come from any.

    ``has_bell`` says whether bells from other processes can be heard at all; if not, poll more often.
    """

    def __init__(self, alias: str, *, worker_id: int | None = None, news: bool = False) -> None:
        self.alias = alias
        self.closed = False
        self._waiting = threading.Lock()
        self._channels: list[str] = [NEWS_CHANNEL] if news else []
        if worker_id is not None:
            self._channels += [WORK_CHANNEL, worker_channel(worker_id)]
        kind = _kind_of_source(alias)
        self.has_bell = kind is not _Source
        self._source: _Source = kind(alias, self._channels)

    def wait(self, timeout: float) -> Heard:
        """What was rung since the last call; waits up to ``timeout`` seconds for the first bell."""
        try:
            with self._waiting:
                return Heard() if self.closed else self._source.wait(timeout)
        finally:
            if self.closed:
                self.close()

    def wake(self) -> None:
        """Have ``wait`` come back now."""
        self._source.wake()

    def close(self) -> None:
        """Give up the connection. A ``wait`` that is under way comes back."""
        self.closed = True
        self._source.wake()
        # Under a wait the connection cannot be taken away: that wait does it as it comes back.
        if self._waiting.acquire(blocking=False):
            try:
                self._source.close()
            finally:
                self._waiting.release()


class _Source:
    """Bells of this process only."""

    def __init__(self, alias: str, channels: Sequence[str]) -> None:
        self.alias = alias
        self.mailbox: Mailbox = subscribe(alias)

    def wait(self, timeout: float) -> Heard:
        self.mailbox.arrived.wait(timeout)
        return self.mailbox.take()

    def wake(self) -> None:
        self.mailbox.put()

    def close(self) -> None:
        unsubscribe(self.alias, self.mailbox)


def _kind_of_source(alias: str) -> type[_Source]:
    """How bells of other processes are heard on this database; ``_Source`` itself: not at all."""
    connection = connections[alias]
    if connection.vendor == "sqlite":
        return _FileVersion
    # Behind a pooler LISTEN would work, for a server session that is somebody else's in the next moment.
    if connection.vendor == "postgresql" and (settings.LISTEN_DSN or not is_pooled(connection)):
        return _Notifications
    return _Source


class _FileVersion(_Source):
    """SQLite: any commit by another connection changes ``PRAGMA data_version``. It does not say whose."""

    def __init__(self, alias: str, channels: Sequence[str]) -> None:
        super().__init__(alias, channels)
        self._name = connections[alias].get_connection_params()["database"]
        self._connection: sqlite3.Connection | None = None
        self._version = 0
        self._eager = list(channels) == [NEWS_CHANNEL]
        self._changed_at = 0.0

    def wait(self, timeout: float) -> Heard:
        until = time.monotonic() + timeout
        while True:
            changed, now = self._changed(), time.monotonic()
            left = until - now
            if changed:
                self._changed_at = now
                self.mailbox.put(everything=True)
            eager = self._eager and now - self._changed_at < SQLITE_AWAKE
            pause = SQLITE_EAGER if eager else SQLITE_INTERVAL
            if self.mailbox.arrived.wait(max(0.0, min(left, pause))) or left <= 0:
                return self.mailbox.take()

    def _changed(self) -> bool:
        try:
            if self._connection is None:
                self._connection = sqlite3.connect(
                    self._name, uri=str(self._name).startswith("file:"), check_same_thread=False
                )
            version = self._connection.execute("PRAGMA data_version").fetchone()[0]
        except sqlite3.Error:
            self._drop()
            return False
        changed, self._version = version != self._version, version
        return bool(changed)

    def _drop(self) -> None:
        if self._connection is not None:
            with contextlib.suppress(sqlite3.Error):
                self._connection.close()
        self._connection = None

    def close(self) -> None:
        super().close()
        self._drop()


class _Notifications(_Source):
    """PostgreSQL: LISTEN on a connection of its own, which may be direct where others go through a pooler."""

    def __init__(self, alias: str, channels: Sequence[str]) -> None:
        super().__init__(alias, channels)
        self._channels = channels
        self._connection: psycopg.Connection[Any] | None = None
        self._failures = 0
        self._retry_at = 0.0
        self._read_end, self._write_end = os.pipe()
        os.set_blocking(self._read_end, False)
        os.set_blocking(self._write_end, False)

    def wait(self, timeout: float) -> Heard:
        until = time.monotonic() + timeout
        while True:
            self._listen()
            heard = self.mailbox.take()
            left = until - time.monotonic()
            if heard or left <= 0:
                return heard
            if not self._receive(left):
                return self.mailbox.take()

    def _listen(self) -> None:
        """Connect, if it is time to; a new connection has missed what came before it."""
        if self._connection is not None or time.monotonic() < self._retry_at:
            return
        import psycopg

        try:
            connection = self._connect()
            for channel in self._channels:
                connection.execute(f'LISTEN "{channel}"')
        except psycopg.Error:
            self._retry_at = time.monotonic() + RECONNECT[min(self._failures, len(RECONNECT) - 1)]
            self._failures += 1
            return
        self._connection, self._failures = connection, 0
        self.mailbox.put(everything=True)

    def _connect(self) -> psycopg.Connection[Any]:
        import psycopg

        if settings.LISTEN_DSN:
            return psycopg.connect(settings.LISTEN_DSN, autocommit=True)
        params = dict(connections[self.alias].get_connection_params())
        known = ("host", "port", "user", "password", "dbname", "options", "service", "passfile", "sslmode")
        return psycopg.connect(
            autocommit=True,
            **{
                k: v
                for k, v in params.items()
                if k in known or k.startswith(("ssl", "keepalives", "connect_"))
            },
        )

    def _receive(self, left: float) -> bool:
        """Sleep until a bell, a wake (False) or the end of the time, and put what came into the mailbox."""
        import psycopg

        connection = self._connection
        sockets: list[Any] = [self._read_end] if connection is None else [self._read_end, connection.fileno()]
        if connection is None:
            left = min(left, max(0.0, self._retry_at - time.monotonic()))
        ready, _, _ = select.select(sockets, [], [], left)
        if self._read_end in ready:
            with contextlib.suppress(BlockingIOError):
                os.read(self._read_end, 4096)
            return False
        if connection is not None and ready:
            try:
                self._deliver([(n.channel, n.payload) for n in connection.notifies(timeout=0)])
            except psycopg.Error:
                self._drop()
        return True

    def _deliver(self, notes: list[tuple[str, str]]) -> None:
        work: set[UUID] = set()
        news: set[UUID] = set()
        for channel, payload in notes:
            try:
                (news if channel == NEWS_CHANNEL else work).add(UUID(payload))
            except ValueError:
                continue  # somebody else's note on our channel
        self.mailbox.put(work, news)

    def _drop(self) -> None:
        if self._connection is not None:
            self._connection.close()
        self._connection = None

    def wake(self) -> None:
        with contextlib.suppress(OSError):  # full, or closed: either way nobody sleeps on it
            os.write(self._write_end, b"x")

    def close(self) -> None:
        super().close()
        self._drop()
        ends, self._read_end, self._write_end = (self._read_end, self._write_end), -1, -1
        for end in ends:
            if end >= 0:
                os.close(end)
