"""Schedules that are due: found, taken by one worker, and their ends recorded.

A one-shot is taken inside the transaction of its action: with that it is gone, or it is still there. A recurring one
is taken in a transaction of its own, which leaves a row ``running`` and the next time; the effects of its action commit
together with that row's end. Where the worker dies in between, the row becomes an interrupted error (D-23).
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any
from uuid import UUID

from rivet_workflows.exceptions import ErrorInfo, ScheduleInterrupted
from rivet_workflows.models import Fire, Schedule
from rivet_workflows.records import FireResult, ScheduleKind
from rivet_workflows.store.base import chunks, to_uuid
from rivet_workflows.store.cron import following
from rivet_workflows.store.rows import type_id
from rivet_workflows.store.schedules import KEPT_FIRES, MAX_FIRES, ScheduleVerbs

logger = logging.getLogger("rivet_workflows.store")

#: Due, and no earlier one-shot of the same actor is: those go in order, one by one (A-SCHED-04). One that fires just
#: now is still there for others.
_DUE = (
    "SELECT s.next_at, s.id, s.actor_id, s.kind FROM rivet_schedule s WHERE s.type_id = %s AND s.next_at <= %s"
    " AND NOT EXISTS (SELECT 1 FROM rivet_schedule e WHERE e.actor_id = s.actor_id AND e.kind = 1"
    " AND (e.next_at < s.next_at OR (e.next_at = s.next_at AND e.id < s.id)))"
    " ORDER BY s.next_at, s.id LIMIT %s"
)
_NEXT = "(SELECT min(next_at) FROM rivet_schedule WHERE type_id = %s AND next_at > %s{only})"


@dataclass(frozen=True, slots=True)
class DueSchedule:
    """What a worker may try to take."""

    id: UUID
    actor_id: UUID
    kind: ScheduleKind
    scheduled_at: int


@dataclass(frozen=True, slots=True)
class TakenFire:
    """A fire that is this worker's to carry out. ``fire_id``: its row, of a recurring schedule."""

    schedule_id: UUID
    actor_id: UUID
    name: str | None
    kind: ScheduleKind
    action: str
    args: str
    scheduled_at: int
    fired_at: int
    next_at: int | None = None
    max_history: int = 0
    fire_id: int | None = None
    #: The fire before still runs: nothing is to be done (A-CRON-09).
    skipped: bool = False


class FireVerbs(ScheduleVerbs):
    """The verbs of firing."""

    def next_fires(
        self, actor_names: Iterable[str], after: int = -1, *, one_shots: bool = False
    ) -> dict[str, int]:
        """Per actor type, when its first schedule after ``after`` is due; types without any are left out.

        A subselect each: the walk along the index ends at the first row.
        """
        found: dict[str, int] = {}
        sub = _NEXT.format(only=f" AND kind = {int(ScheduleKind.AT)}" if one_shots else "")
        for names in chunks(list(actor_names), 100):
            params = [value for name in names for value in (type_id(name), after)]
            (row,) = self.query(f"SELECT {', '.join([sub] * len(names))}", params)
            found |= {name: at for name, at in zip(names, row, strict=True) if at is not None}
        return found

    def due_schedules(self, actor_names: Iterable[str], limit: int) -> list[DueSchedule]:
        """Schedules of these types that are due, the longest first."""
        now = self.clock.now()
        rows = [row for name in actor_names for row in self.query(_DUE, [type_id(name), now, limit])]
        rows.sort(key=lambda row: (row[0], str(row[1])))
        return [
            DueSchedule(to_uuid(key), to_uuid(actor_id), ScheduleKind(kind), at)
            for at, key, actor_id, kind in rows[:limit]
        ]

    def take_one_shot(self, due: DueSchedule) -> TakenFire | None:
        """Remove it, in the open transaction, and carry it out there. None: somebody else has, or does."""
        rows = Schedule.objects.using(self.alias).filter(id=due.id)
        found = self._locked(rows, skip=True)
        if not found or rows.delete()[0] != 1:
            return None
        return self._taken(found[0], due, self.clock.now())

    def take_recurring(self, due: DueSchedule, worker_id: int) -> TakenFire | None:
        """Note that it fires, and when it will again, in a transaction of its own.

        None: somebody else was faster, or the actor is gone. Where the fire before still runs this one is recorded,
        and returned, as skipped.
        """
        with self.changing():
            rows = Schedule.objects.using(self.alias).filter(id=due.id, next_at=due.scheduled_at)
            found = self._locked(rows, skip=True)
            if not found:
                return None
            (row,) = found
            if row.name is None or not self._is_live(row.actor_id):
                rows.delete()
                return None
            now = self.clock.now()
            next_at = _following(row, now)
            runs = Fire.objects.using(self.alias).filter(
                actor_id=row.actor_id, name=row.name, result=int(FireResult.RUNNING)
            )
            overlaps = runs.exists()
            changes: dict[str, Any] = (
                {"next_at": next_at} if overlaps else {"next_at": next_at, "last_at": now}
            )
            rows.update(**changes)
            fire = Fire.objects.using(self.alias).create(
                actor_id=row.actor_id,
                name=row.name,
                action=row.action,
                scheduled_at=due.scheduled_at,
                fired_at=now,
                finished_at=now if overlaps else None,
                result=int(FireResult.SKIPPED if overlaps else FireResult.RUNNING),
                worker_id=None if overlaps else worker_id,
            )
            self._prune_after(fire, row.max_history)
            taken = self._taken(row, due, now)
            return replace(taken, next_at=next_at, fire_id=fire.id, skipped=overlaps)

    def finish_fire(self, taken: TakenFire, error: str | None) -> bool:
        """Record how it ended, in the transaction of its effects. False: it was taken for interrupted meanwhile, and
        the effects must not be committed."""
        assert taken.name is not None
        assert taken.fire_id is not None
        fires = Fire.objects.using(self.alias).filter(id=taken.fire_id)
        changed = fires.filter(result=int(FireResult.RUNNING)).update(
            result=int(FireResult.OK if error is None else FireResult.ERROR),
            error=error,
            finished_at=self.clock.now(),
            worker_id=None,
        )
        if not changed:
            return not fires.exists()  # its action may have deleted the job, and this row with it
        kept = Schedule.objects.using(self.alias).filter(actor_id=taken.actor_id, name=taken.name)
        keep = kept.values_list("max_history", flat=True).first()
        self.prune_fires(taken.actor_id, taken.name, taken.max_history if keep is None else keep)
        return True

    def interrupt_fires(self, worker_id: int) -> int:
        """Fires that ran on a worker that is gone end as interrupted; how many."""
        fires = Fire.objects.using(self.alias).filter(worker_id=worker_id, result=int(FireResult.RUNNING))
        return fires.update(
            result=int(FireResult.ERROR), error=INTERRUPTED, finished_at=self.clock.now(), worker_id=None
        )

    def drop_undefined(self, taken: TakenFire) -> bool:
        """Remove a job whose action is no longer there, unless it was changed since it was taken (A-CRON-11)."""
        rows = Schedule.objects.using(self.alias).filter(
            id=taken.schedule_id, action=taken.action, next_at=taken.next_at
        )
        return rows.delete()[0] == 1

    # -- within

    def _is_live(self, actor_id: UUID) -> bool:
        rows = self.query(
            "SELECT 1 FROM rivet_actor WHERE id = %s AND live_hash IS NOT NULL", [self.uid(actor_id)]
        )
        return bool(rows)

    def _prune_after(self, fire: Fire, keep: int) -> None:
        self.prune_fires(fire.actor_id, fire.name, max(keep, 1) if fire.finished_at is None else keep)
        if fire.id % 100 == 0:
            every = Fire.objects.using(self.alias).filter(actor_id=fire.actor_id)
            if every.count() > MAX_FIRES:
                self._prune_beyond(every, KEPT_FIRES)

    @staticmethod
    def _taken(row: Schedule, due: DueSchedule, now: int) -> TakenFire:
        return TakenFire(
            schedule_id=row.id,
            actor_id=row.actor_id,
            name=row.name,
            kind=ScheduleKind(row.kind),
            action=row.action,
            args=row.args,
            scheduled_at=due.scheduled_at,
            fired_at=now,
            max_history=row.max_history,
        )


def _following(row: Schedule, now: int) -> int | None:
    try:
        return following(ScheduleKind(row.kind), row.rule, row.timezone, row.next_at or now, now)
    except Exception:
        # Its time zone is no longer known here, say. It is not lost: setting it again gives it a next time.
        logger.exception("The next time of schedule %r of actor %s cannot be told", row.name, row.actor_id)
        return None


def _interrupted() -> str:
    error = ScheduleInterrupted("the worker went away while the scheduled action ran; it is not run again")
    return json.dumps(ErrorInfo.from_exception(error, with_traceback=False).to_dict())


INTERRUPTED = _interrupted()
