"""SQLite and MariaDB: the same verbs in plain statements.

On SQLite a worker's transaction is the database's only writer, so it reads, decides and then writes in bulk.
On MariaDB the rows read are locked by the reads, and those that others have locked are passed over.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any
from uuid import UUID

from rivet_workflows.conf import settings
from rivet_workflows.records import TimerKind
from rivet_workflows.store.base import StoreBase, chunks, marks, to_uuid
from rivet_workflows.store.clock import MYSQL_NOW, DatabaseClock


class PortableBase(StoreBase):
    """What differs between the two."""

    def __init__(self, alias: str) -> None:
        super().__init__(alias)
        self._is_sqlite = self.vendor == "sqlite"
        if not self._is_sqlite:
            self.clock = DatabaseClock(MYSQL_NOW, lambda sql: int(self.query(sql)[0][0]))
        self._hex_uuids = not self.connection.features.has_native_uuid_field

    def tune_connection(self) -> None:
        """SQLite: how safe a commit is against a loss of power. MariaDB: what a group's row locks may cost."""
        if self._is_sqlite:
            if not self.connection.in_atomic_block:
                self.execute(f"PRAGMA synchronous = {settings.SQLITE_SYNCHRONOUS}")
            return
        self.execute("SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED")
        self.execute("SET SESSION innodb_lock_wait_timeout = 1")

    @contextmanager
    def writing(self) -> Iterator[None]:
        """A transaction that writes. On SQLite it takes the write lock with its first statement whatever the
        connection's ``transaction_mode`` says: a read that wants to write later fails at once, however long
        the timeout."""
        with self.atomic():
            if self._is_sqlite:
                self.execute("DELETE FROM rivet_timer WHERE 0")
            yield

    def uid(self, value: UUID) -> Any:
        return value.hex if self._hex_uuids else str(value)

    def lock(self, wait: bool = False) -> str:
        """What to end a locking SELECT with."""
        if self._is_sqlite:
            return ""
        return " FOR UPDATE" if wait else " FOR UPDATE SKIP LOCKED"

    def by_actor(self, select: str, actor_ids: Sequence[UUID], end: str = "") -> dict[UUID, tuple[Any, ...]]:
        """One row per actor, by id: ``select`` up to and without the list of ids, the id its first column."""
        found: dict[UUID, tuple[Any, ...]] = {}
        for some in chunks(actor_ids):
            for row in self.query(f"{select} IN ({marks(some)}){end}", self.uids(some)):
                found[to_uuid(row[0])] = row[1:]
        return found

    def drop_wakes(self, actors: Mapping[UUID, int | None], now: int, deadlines: bool) -> None:
        """Delete these actors' wakes that are due, and with ``deadlines`` those of that kind; of an actor with an
        epoch only while it has that.

        MariaDB's DELETE would wait for a sender's open transaction, whose wakes are not for us yet: so they are
        passed over first, and the rest goes by id.
        """
        kind = int(TimerKind.DEADLINE) if deadlines else -1
        epoch = "(SELECT r.epoch FROM rivet_run r WHERE r.actor_id = rivet_timer.actor_id)"
        if self._is_sqlite:
            self.execute_many(
                "DELETE FROM rivet_timer WHERE actor_id = %s AND (due <= %s OR kind = %s)"
                f" AND (%s IS NULL OR %s = {epoch})",
                [(self.uid(i), now, kind, wanted, wanted) for i, wanted in sorted(actors.items())],
            )
            return
        for some in chunks(sorted(actors)):
            rows = self.query(
                f"SELECT id, actor_id, {epoch} FROM rivet_timer WHERE actor_id IN ({marks(some)})"
                f" AND (due <= %s OR kind = %s){self.lock()}",
                [*self.uids(some), now, kind],
            )
            ours = [(i,) for i, actor, at in rows if actors[to_uuid(actor)] in (None, at)]
            self.execute_many("DELETE FROM rivet_timer WHERE id = %s", ours)
