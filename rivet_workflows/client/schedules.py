"""``c.schedule`` and ``c.cron``: actions that are called later, and again and again (A-SCHED, A-CRON).

The same in actions, hooks and steps. What differs is where a change goes: an action's is written at once, in its
transaction; a step's is kept until the step commits, and seen by the step itself until then. So both stand on a
:class:`ScheduleHost`.
"""

from __future__ import annotations

import builtins
import json
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any, Protocol
from uuid import UUID

from asgiref.sync import sync_to_async

from rivet_workflows import codec
from rivet_workflows.client.fires import CronFire, CronJob, Scheduled
from rivet_workflows.client.moments import from_micros, from_micros_or_none, to_micros
from rivet_workflows.client.scheduling import (
    MAX_HISTORY,
    check_max_history,
    check_name,
    check_room,
    check_zone,
    checked_call,
    next_id,
)
from rivet_workflows.engine.options import micros
from rivet_workflows.exceptions import (
    ErrorInfo,
    InvalidCronExpression,
    InvalidInterval,
)
from rivet_workflows.records import ScheduleDrop, ScheduleKind, ScheduleOp, ScheduleWrite
from rivet_workflows.registry import ActorType
from rivet_workflows.store import get_store
from rivet_workflows.store.cron import BadExpression, check_expression, next_match
from rivet_workflows.store.rows import FireRow, ScheduleRow

__all__ = ["Cron", "Schedule", "ScheduleHost"]

#: Shortest interval of ``cron.every``, microseconds.
MIN_INTERVAL = 5_000_000
DEFAULT_HISTORY = 100
_LATEST = to_micros(datetime.max.replace(tzinfo=from_micros(0).tzinfo))


class ScheduleHost(Protocol):
    """The context that schedules are set from."""

    actor_type: ActorType
    actor_id: UUID

    def now(self) -> int:
        """The database's time."""

    @property
    def deferred(self) -> bool:
        """The store cannot be asked here; what must be checked against it is when the change is written."""

    def reading(self) -> AbstractContextManager[None]:
        """To ask the store in. Raises where that may not be done (any more)."""

    def change(self, op: ScheduleOp) -> None:
        """Write it, or keep it until the step commits. Raises where nothing may be changed."""

    def pending(self) -> Sequence[ScheduleOp]:
        """What was changed and cannot be read from the store yet."""


class Schedule:
    """``c.schedule``: call an action of this actor once, later. Survives restarts; fires at most once."""

    def __init__(self, host: ScheduleHost) -> None:
        self._host = host

    def after(self, delay: float | timedelta, action: Any, *args: Any) -> str:
        """Call ``action`` (its name, or the method) after ``delay`` seconds; the schedule's id.

        Raises ``ActionNotFound``, ``ValidationFailed`` (arguments that do not fit), ``SerializationError``,
        ``PayloadTooLarge``, ``ScheduleError`` (too many).
        """
        return self._set(self._host.now() + micros(delay, "delay"), action, args)

    def at(self, when: datetime, action: Any, *args: Any) -> str:
        """As :meth:`after`, at an aware datetime. A time that has passed fires at once."""
        if not isinstance(when, datetime):
            raise TypeError(f"schedule.at takes an aware datetime, not {type(when).__name__}")
        if when.tzinfo is None:
            raise ValueError(
                "schedule.at takes an aware datetime: give it a time zone (django.utils.timezone.make_aware)"
            )
        return self._set(to_micros(when), action, args)

    def get(self, id: str) -> Scheduled | None:
        """The one-shot, if it has not fired or been cancelled."""
        return next((found for found in self.list() if found.id == str(id)), None)

    def list(self) -> builtins.list[Scheduled]:
        """The actor's one-shots, the next first."""
        with self._host.reading():
            rows = {row.id: row for row in get_store().schedules(self._host.actor_id, recurring=False)}
        for op in self._host.pending():
            if isinstance(op, ScheduleDrop):
                if op.id is not None:
                    rows.pop(op.id, None)
            elif op.name is None:
                rows[op.id] = _as_row(self._host.actor_id, op)
        ordered = sorted(rows.values(), key=lambda row: (row.next_at or 0, row.id))
        return [
            Scheduled(str(row.id), row.action, _args(row), from_micros(row.next_at or 0)) for row in ordered
        ]

    def cancel(self, id: str) -> bool:
        """Remove the one-shot; False: there is none of that id, or it is firing just now."""
        if self.get(id) is None:
            return False
        self._host.change(ScheduleDrop(id=UUID(str(id))))
        return self.get(id) is None

    async def aget(self, id: str) -> Scheduled | None:
        """:meth:`get` for async code."""
        return await sync_to_async(self.get)(id)

    async def alist(self) -> builtins.list[Scheduled]:
        """:meth:`list` for async code."""
        return await sync_to_async(self.list)()

    async def acancel(self, id: str) -> bool:
        """:meth:`cancel` for async code."""
        return await sync_to_async(self.cancel)(id)

    def _set(self, at: int, action: Any, args: tuple[Any, ...]) -> str:
        host = self._host
        name, text = checked_call(host.actor_type, action, args)
        if not host.deferred:
            with host.reading():
                check_room(host.actor_type, host.actor_id, host.pending())
        write = ScheduleWrite(
            next_id(), host.actor_type.name, ScheduleKind.AT, name, text, min(max(at, 0), _LATEST)
        )
        host.change(write)
        return str(write.id)


class Cron:
    """``c.cron``: call an action of this actor again and again, under a name.

    Setting a name again changes that job; while the cadence is the same, its times stay, so it is safe to do in every
    ``on_wake``.
    """

    def __init__(self, host: ScheduleHost) -> None:
        self._host = host

    def every(
        self,
        *,
        name: str,
        interval: float | timedelta,
        action: Any,
        args: Sequence[Any] = (),
        max_history: int = DEFAULT_HISTORY,
    ) -> None:
        """Call ``action`` every ``interval`` seconds (5 or more), first one interval from now, then on that grid.

        Raises ``ScheduleError`` for a name, interval or ``max_history`` that cannot be, and for too many; and what
        ``c.schedule.after`` raises for the call.
        """
        try:
            step = micros(interval, "interval")
        except (TypeError, ValueError) as error:
            raise InvalidInterval(f"cron.every: {error}") from None
        if step < MIN_INTERVAL:
            raise InvalidInterval(
                f"cron.every: an interval is 5 seconds or longer, not {step / 1_000_000:g}",
                metadata={"interval": step / 1_000_000, "minimum": MIN_INTERVAL / 1_000_000},
            )
        first = min(self._host.now() + step, _LATEST)
        self._set(name, action, args, max_history, (ScheduleKind.EVERY, str(step), ""), first)

    def set(
        self,
        *,
        name: str,
        expression: str,
        action: Any,
        args: Sequence[Any] = (),
        timezone: str = "UTC",
        max_history: int = DEFAULT_HISTORY,
    ) -> None:
        """Call ``action`` at the times that match ``expression`` in ``timezone``.

        Five fields (minute, hour, day of month, month, day of week) or an alias such as ``@daily``. A local time that
        does not exist is skipped, one that comes twice counts the first time. Raises as :meth:`every`; also for an
        expression that never matches.
        """
        check_zone(timezone)
        if not isinstance(expression, str):
            raise InvalidCronExpression(f"a cron expression is a str, not {type(expression).__name__}")
        now = self._host.now()
        try:
            rule = check_expression(expression, timezone, now)
        except BadExpression as error:
            raise InvalidCronExpression(str(error), metadata={"expression": expression}) from None
        first = next_match(rule, timezone, now)
        assert first is not None
        self._set(name, action, args, max_history, (ScheduleKind.CRON, rule, timezone), first)

    def get(self, name: str) -> CronJob | None:
        """The job of that name."""
        return next((job for job in self.list() if job.name == name), None)

    def list(self) -> builtins.list[CronJob]:
        """The actor's jobs, the next first."""
        with self._host.reading():
            rows = {row.name: row for row in get_store().schedules(self._host.actor_id, recurring=True)}
        for op in self._host.pending():
            if op.name is None:
                continue
            if isinstance(op, ScheduleDrop):
                rows.pop(op.name, None)
            else:
                rows[op.name] = _merged(rows.get(op.name), _as_row(self._host.actor_id, op))
        ordered = sorted(
            rows.values(), key=lambda row: (_LATEST if row.next_at is None else row.next_at, row.name)
        )
        return [_job(row) for row in ordered]

    def delete(self, name: str) -> bool:
        """Remove the job and its history; False: there was none. A fire that runs goes on to its end."""
        if self.get(name) is None and not self.history(name, limit=1):
            return False
        self._host.change(ScheduleDrop(name=name))
        return True

    def history(self, name: str, *, limit: int = 20) -> builtins.list[CronFire]:
        """The last fires of a job, the newest first; ``limit`` is 1 to 1000."""
        if isinstance(limit, bool) or not isinstance(limit, int) or not 1 <= limit <= MAX_HISTORY:
            raise ValueError(f"cron.history: limit is 1 to {MAX_HISTORY}, not {limit!r}")
        with self._host.reading():
            return [_fire(row) for row in get_store().fires(self._host.actor_id, name, limit)]

    async def aget(self, name: str) -> CronJob | None:
        """:meth:`get` for async code."""
        return await sync_to_async(self.get)(name)

    async def alist(self) -> builtins.list[CronJob]:
        """:meth:`list` for async code."""
        return await sync_to_async(self.list)()

    async def adelete(self, name: str) -> bool:
        """:meth:`delete` for async code."""
        return await sync_to_async(self.delete)(name)

    async def ahistory(self, name: str, *, limit: int = 20) -> builtins.list[CronFire]:
        """:meth:`history` for async code."""
        return await sync_to_async(self.history)(name, limit=limit)

    def _set(
        self,
        name: str,
        action: Any,
        args: Sequence[Any],
        max_history: int,
        cadence: tuple[ScheduleKind, str, str],
        first: int,
    ) -> None:
        host = self._host
        check_name(name)
        check_max_history(max_history)
        if isinstance(args, str) or not isinstance(args, Sequence):
            raise TypeError(f"args is a list of arguments, not {type(args).__name__}")
        action_name, text = checked_call(host.actor_type, action, tuple(args))
        if not host.deferred and self.get(name) is None:
            with host.reading():
                check_room(host.actor_type, host.actor_id, host.pending())
        kind, rule, zone = cadence
        host.change(
            ScheduleWrite(
                next_id(),
                host.actor_type.name,
                kind,
                action_name,
                text,
                first,
                name=name,
                rule=rule,
                timezone=zone,
                max_history=max_history,
            )
        )


def _as_row(actor_id: UUID, op: ScheduleWrite) -> ScheduleRow:
    return ScheduleRow(
        op.id,
        actor_id,
        op.name,
        op.kind,
        op.action,
        op.args,
        op.rule,
        op.timezone,
        op.next_at,
        None,
        op.max_history,
    )


def _merged(before: ScheduleRow | None, after: ScheduleRow) -> ScheduleRow:
    """As the store will: the same cadence keeps its times."""
    if before is None or (before.kind, before.rule, before.timezone) != (
        after.kind,
        after.rule,
        after.timezone,
    ):
        return after
    return replace(after, id=before.id, next_at=before.next_at, last_at=before.last_at)


def _args(row: ScheduleRow) -> list[Any]:
    found: Any = codec.loads(row.args)
    return list(found)


def _job(row: ScheduleRow) -> CronJob:
    every = row.kind is ScheduleKind.EVERY
    return CronJob(
        name=row.name or "",
        kind=row.kind.label,
        action=row.action,
        args=_args(row),
        next_run_at=from_micros_or_none(row.next_at),
        last_run_at=from_micros_or_none(row.last_at),
        max_history=row.max_history,
        interval=timedelta(microseconds=int(row.rule)) if every else None,
        expression=None if every else row.rule,
        timezone=None if every else row.timezone,
    )


def _fire(row: FireRow) -> CronFire:
    return CronFire(
        action=row.action,
        scheduled_at=from_micros(row.scheduled_at),
        fired_at=from_micros(row.fired_at),
        finished_at=from_micros_or_none(row.finished_at),
        result=row.result.label,
        error=None if row.error is None else ErrorInfo.from_dict(json.loads(row.error)),
    )
