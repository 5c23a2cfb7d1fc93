"""Schedules of an actor: set, removed, listed. Firing them is in ``fires``.

A name has one schedule: setting it again changes that one, and keeps its times while the cadence is the same. What is
set joins the transaction that is open, a step's in its commit.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from uuid import UUID

from django.db import IntegrityError
from django.db.models import QuerySet

from rivet_workflows.models import Fire, Schedule
from rivet_workflows.records import (
    CommitItem,
    FireResult,
    ScheduleDrop,
    ScheduleKind,
    ScheduleOp,
    ScheduleWrite,
)
from rivet_workflows.store.base import StoreBase
from rivet_workflows.store.rows import FireRow, ScheduleRow, type_id

#: Fires that are kept of one actor, and down to which they are pruned when there are more (A-CRON-10).
MAX_FIRES, KEPT_FIRES = 10_000, 9_900


class ScheduleVerbs(StoreBase):
    """The verbs about schedules that callers use."""

    @contextmanager
    def changing(self) -> Iterator[None]:
        """A transaction that writes; on SQLite it takes the write lock at once, see ``PortableBase.writing``."""
        with self.atomic():
            if self.vendor == "sqlite":
                self.execute("DELETE FROM rivet_timer WHERE 0")
            yield

    def set_schedules(self, actor_id: UUID, ops: Sequence[ScheduleOp], *, wait: bool = True) -> None:
        """Carry out ``ops`` in the open transaction, in order. ``wait``: for a row that somebody has locked;
        otherwise that is the database's error, and its transaction is to be rolled back."""
        for op in ops:
            if isinstance(op, ScheduleDrop):
                self._drop(actor_id, op, wait)
            elif op.name is None:
                self._insert(actor_id, op)
            else:
                self._set_named(actor_id, op, wait)

    def set_schedules_of(self, items: Sequence[CommitItem]) -> None:
        """The schedules of a group's items, in the transaction of their commit, by actor id."""
        for item in sorted(items, key=lambda item: item.actor_id):
            self.set_schedules(item.actor_id, item.schedules, wait=False)

    def cancel_schedule(self, actor_id: UUID, schedule_id: UUID) -> bool:
        """Remove a one-shot; False: there is none, or it is firing just now."""
        rows = Schedule.objects.using(self.alias).filter(
            id=schedule_id, actor_id=actor_id, kind=int(ScheduleKind.AT)
        )
        # Passed over where it is locked: its fire may be waiting for what this transaction has locked.
        found = self._locked(rows, skip=True)
        return bool(found) and rows.delete()[0] == 1

    def schedules(self, actor_id: UUID, *, recurring: bool) -> list[ScheduleRow]:
        """One-shots or recurring ones, the next first, then by id."""
        rows = Schedule.objects.using(self.alias).filter(actor_id=actor_id, name__isnull=not recurring)
        return [_row(schedule) for schedule in rows.order_by("next_at", "id")]

    def schedule(
        self, actor_id: UUID, *, schedule_id: UUID | None = None, name: str | None = None
    ) -> ScheduleRow | None:
        """A one-shot by id or a recurring one by name."""
        rows = Schedule.objects.using(self.alias).filter(actor_id=actor_id)
        rows = (
            rows.filter(name=name) if schedule_id is None else rows.filter(id=schedule_id, name__isnull=True)
        )
        found = rows.first()
        return None if found is None else _row(found)

    def count_schedules(self, actor_id: UUID) -> int:
        """Schedules of both kinds."""
        return Schedule.objects.using(self.alias).filter(actor_id=actor_id).count()

    def fires(self, actor_id: UUID, name: str, limit: int) -> list[FireRow]:
        """The last fires of a name, the newest first."""
        rows = Fire.objects.using(self.alias).filter(actor_id=actor_id, name=name).order_by("-id")[:limit]
        return [
            FireRow(f.action, f.scheduled_at, f.fired_at, f.finished_at, FireResult(f.result), f.error)
            for f in rows
        ]

    # -- within

    def _insert(self, actor_id: UUID, op: ScheduleWrite) -> None:
        Schedule.objects.using(self.alias).create(
            id=op.id,
            type_id=type_id(op.actor_name),
            actor_id=actor_id,
            name=op.name,
            kind=int(op.kind),
            action=op.action,
            args=op.args,
            rule=op.rule,
            timezone=op.timezone,
            next_at=op.next_at,
            max_history=op.max_history,
        )

    def _set_named(self, actor_id: UUID, op: ScheduleWrite, wait: bool) -> None:
        assert op.name is not None
        rows = Schedule.objects.using(self.alias).filter(actor_id=actor_id, name=op.name)
        found = self._locked(rows, wait=wait)
        if not found:
            try:
                with self.atomic():
                    self._insert(actor_id, op)
            except IntegrityError:  # another transaction has just set it
                found = self._locked(rows, wait=wait)
                if not found:
                    raise
            else:
                return
        (row,) = found
        if (row.kind, row.rule, row.timezone) != (int(op.kind), op.rule, op.timezone):
            row.kind, row.rule, row.timezone = int(op.kind), op.rule, op.timezone
            row.next_at, row.last_at = op.next_at, None
        elif row.next_at is None:
            row.next_at = op.next_at
        row.action, row.args, row.max_history = op.action, op.args, op.max_history
        row.save(using=self.alias)
        self.prune_fires(actor_id, op.name, op.max_history)

    def _drop(self, actor_id: UUID, op: ScheduleDrop, wait: bool) -> None:
        if op.id is not None:
            self.cancel_schedule(actor_id, op.id)
            return
        rows = Schedule.objects.using(self.alias).filter(actor_id=actor_id, name=op.name)
        if self._locked(rows, wait=wait):
            rows.delete()
        Fire.objects.using(self.alias).filter(actor_id=actor_id, name=op.name).delete()

    def _locked(
        self, rows: QuerySet[Schedule, Schedule], *, wait: bool = True, skip: bool = False
    ) -> list[Schedule]:
        if self.vendor != "sqlite":
            rows = rows.select_for_update(
                nowait=not wait and not skip, skip_locked=skip, no_key=self.vendor == "postgresql"
            )
        return list(rows)

    def prune_fires(self, actor_id: UUID, name: str, keep: int) -> None:
        """Leave the newest ``keep`` fires of a name; what runs stays."""
        fires = Fire.objects.using(self.alias).filter(actor_id=actor_id, name=name)
        self._prune_beyond(fires, keep)

    def _prune_beyond(self, fires: QuerySet[Fire, Fire], keep: int) -> None:
        last = fires.order_by("-id").values_list("id", flat=True)[keep : keep + 1]
        for fire_id in list(last):
            fires.filter(id__lte=fire_id).exclude(result=int(FireResult.RUNNING)).delete()


def _row(schedule: Schedule) -> ScheduleRow:
    return ScheduleRow(
        id=schedule.id,
        actor_id=schedule.actor_id,
        name=schedule.name,
        kind=ScheduleKind(schedule.kind),
        action=schedule.action,
        args=schedule.args,
        rule=schedule.rule,
        timezone=schedule.timezone,
        next_at=schedule.next_at,
        last_at=schedule.last_at,
        max_history=schedule.max_history,
    )
