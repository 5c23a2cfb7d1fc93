"""What ``c.schedule`` and ``c.cron`` give back, and what a scheduled action gets. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from rivet_workflows.exceptions import ErrorInfo

__all__ = ["CronFire", "CronJob", "Scheduled", "ScheduledFire"]


@dataclass(frozen=True, slots=True)
class ScheduledFire:
    """What a scheduled action gets after its own arguments. ``kind`` is ``at``, ``every`` or ``cron``; ``id`` that of
    the schedule, for a recurring one its name; ``scheduled_at`` when it was due, ``fired_at`` when it was taken."""

    kind: str
    id: str
    name: str | None
    scheduled_at: datetime
    fired_at: datetime


@dataclass(frozen=True, slots=True)
class Scheduled:
    """A one-shot that has not fired yet."""

    id: str
    action: str
    args: list[Any]
    run_at: datetime


@dataclass(frozen=True, slots=True)
class CronJob:
    """A recurring schedule. ``kind`` is ``every`` (then ``interval`` is set) or ``cron`` (``expression`` and
    ``timezone``). ``next_run_at`` None: no time matches any more."""

    name: str
    kind: str
    action: str
    args: list[Any]
    next_run_at: datetime | None
    last_run_at: datetime | None
    max_history: int
    interval: timedelta | None = None
    expression: str | None = None
    timezone: str | None = None


@dataclass(frozen=True, slots=True)
class CronFire:
    """One time that a recurring schedule fired. ``result`` is ``running``, ``ok``, ``error`` or ``skipped`` (the fire
    before still ran)."""

    action: str
    scheduled_at: datetime
    fired_at: datetime
    finished_at: datetime | None
    result: str
    error: ErrorInfo | None

    @property
    def interrupted(self) -> bool:
        """Did its worker go away while it ran?"""
        return self.error is not None and self.error.is_a("ScheduleInterrupted")
