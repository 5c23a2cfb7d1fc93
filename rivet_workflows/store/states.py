"""State and events from a caller's transaction, and the row locks that serialise it with others.

An action locks the actor's state row, which steps that leave the state alone never touch; the run row only
when it broadcasts, for the events' numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from uuid import UUID

from django.db import OperationalError, transaction
from django.db.models import F

from rivet_workflows.exceptions import ActorBusy, ActorNotFound
from rivet_workflows.models import Event, Run, State
from rivet_workflows.store.base import StoreBase
from rivet_workflows.store.errors import Trouble, classify

#: Seconds that a caller waits for a row.
LOCK_TIMEOUT = 5.0


class StateVerbs(StoreBase):
    """The verbs ``load_state``, ``lock_state``, ``save_state``, ``lock_run`` and ``add_events``."""

    def load_state(self, actor_id: UUID) -> tuple[int, str | None]:
        """Version and encoded state; None: the actor has none."""
        row = State.objects.using(self.alias).filter(actor_id=actor_id).values_list("version", "body").first()
        if row is None:
            raise ActorNotFound(f"there is no actor {actor_id}")
        return row

    def lock_state(self, actor_id: UUID, timeout: float = LOCK_TIMEOUT) -> tuple[int, str | None]:
        """As :meth:`load_state`, and nobody else changes it until the transaction ends. ``ActorBusy`` after
        ``timeout`` seconds."""
        version, body = self.lock_row("rivet_state", "version, body", actor_id, timeout)
        return int(version), body

    def save_state(self, actor_id: UUID, version: int, body: str | None) -> bool:
        """Store the state if it still has ``version``, which goes up by one. False: somebody was faster."""
        return (
            State.objects.using(self.alias)
            .filter(actor_id=actor_id, version=version)
            .update(version=version + 1, body=body)
            == 1
        )

    def lock_run(self, actor_id: UUID, timeout: float = LOCK_TIMEOUT) -> tuple[int, int, int]:
        """Keep the actor's commits out until the transaction ends: its epoch, commit number and event
        number."""
        epoch, number, event_seq = self.lock_row(
            "rivet_run", "epoch, commit_no, event_seq", actor_id, timeout
        )
        return int(epoch), int(number), int(event_seq)

    def add_events(
        self, actor_id: UUID, events: Sequence[tuple[str, str]], timeout: float = LOCK_TIMEOUT
    ) -> int:
        """Append ``(name, payload)``; the number of the first. Locks the run row until the transaction
        ends."""
        with self.atomic():
            _, _, last = self.lock_run(actor_id, timeout)
            now = self.clock.now()
            Run.objects.using(self.alias).filter(actor_id=actor_id).update(
                event_seq=F("event_seq") + len(events)
            )
            Event.objects.using(self.alias).bulk_create(
                Event(actor_id=actor_id, seq=seq, name=name, payload=payload, created_at=now)
                for seq, (name, payload) in enumerate(events, last + 1)
            )
        return last + 1

    def lock_row(self, table: str, columns: str, actor_id: UUID, timeout: float) -> tuple[Any, ...]:
        """Lock one actor's row of ``table`` and read it. Waits at most ``timeout`` seconds, then
        ``ActorBusy``."""
        if not self.connection.in_atomic_block:
            raise transaction.TransactionManagementError("a row can be locked inside a transaction only")
        select = f"SELECT {columns} FROM {table} WHERE actor_id = %s"
        if self.vendor == "sqlite":
            # The transaction has the whole database: IMMEDIATE, or its first write.
            rows = self.query(select, [self.uid(actor_id)])
        else:
            mode = "NO KEY UPDATE" if self.vendor == "postgresql" else "UPDATE"
            # Free, as it nearly always is: one round trip, nothing to set and to set back.
            rows = self.query(f"{select} FOR {mode} SKIP LOCKED", [self.uid(actor_id)])
            if not rows:
                rows = self._wait_for_row(f"{select} FOR {mode}", actor_id, timeout)
        if not rows:
            raise ActorNotFound(f"there is no actor {actor_id}")
        return rows[0]

    def _wait_for_row(self, select: str, actor_id: UUID, timeout: float) -> list[tuple[Any, ...]]:
        try:
            with self.atomic():
                if self.vendor == "mysql":
                    return self._wait_on_mysql(select, actor_id, timeout)
                before = self.query("SELECT current_setting('lock_timeout')")[0][0]
                self.query("SELECT set_config('lock_timeout', %s, true)", [f"{int(timeout * 1000)}ms"])
                rows = self.query(select, [self.uid(actor_id)])
                self.query("SELECT set_config('lock_timeout', %s, true)", [before])
                return rows
        except OperationalError as error:
            if classify(error) is Trouble.LOCKED:
                raise ActorBusy(f"the actor {actor_id} was locked for {timeout:g} s; try again") from error
            raise

    def _wait_on_mysql(self, select: str, actor_id: UUID, timeout: float) -> list[tuple[Any, ...]]:
        """By a setting of the session: ``FOR UPDATE WAIT n`` is MariaDB's alone."""
        ((before,),) = self.query("SELECT @@SESSION.innodb_lock_wait_timeout")
        self.execute("SET SESSION innodb_lock_wait_timeout = %s", [max(1, round(timeout))])
        try:
            return self.query(select, [self.uid(actor_id)])
        finally:
            self.execute("SET SESSION innodb_lock_wait_timeout = %s", [before])
