"""What is no longer kept goes in small batches, a transaction per actor: nothing is locked for long, and a
million rows of one actor are many short deletes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from uuid import UUID

from django.db.models import QuerySet

from rivet_workflows.crashpoints import crashpoint
from rivet_workflows.models import (
    Actor,
    Call,
    Dedupe,
    Event,
    Fire,
    History,
    Message,
    Reply,
    Run,
    Schedule,
    State,
    Timer,
    Waiter,
)
from rivet_workflows.records import Lifecycle
from rivet_workflows.store.base import StoreBase
from rivet_workflows.store.workercalls import ANSWER_KEPT

DAY = 24 * 3600 * 1_000_000
RETENTION = 30 * DAY
#: The row of a destroyed actor stays this long, so that what a long transaction sends it late is still found.
GRACE = 3600 * 1_000_000

_OVER = (Lifecycle.COMPLETED, Lifecycle.FAILED, Lifecycle.CANCELLED)


class PruneVerbs(StoreBase):
    """The verb ``prune``."""

    def prune(
        self,
        now: int | None = None,
        batch: int = 1_000,
        *,
        retention: int = RETENTION,
        delete_after: Mapping[str, int] | None = None,
    ) -> int:
        """Delete up to about ``batch`` rows that are due to go; how many. Call it again while it fills the
        batch.

        Rows of destroyed actors; history, messages and events of actors that ended ``retention`` microseconds
        ago (their row, with output and error, stays); actors of the types in ``delete_after`` (name to
        microseconds) that long after their end; answers and dedupe keys whose time has passed.
        """
        now = self.clock.now() if now is None else now
        crashpoint("before-prune")
        done = self._prune_expired(now, batch)
        for name, after in (delete_after or {}).items():
            if done < batch:
                done += self._tombstone(name, now - after, now, batch - done)
        if done < batch:
            done += self._reap(now, batch - done)
        if done < batch:
            done += self._prune_ended(now - retention, batch - done)
        crashpoint("after-prune")
        return done

    def _prune_expired(self, now: int, batch: int) -> int:
        replies = Reply.objects.using(self.alias).filter(expires_at__lte=now)
        done = self._delete(replies, "message_id", batch, by="expires_at")
        calls = Call.objects.using(self.alias).filter(until__lte=now - ANSWER_KEPT)
        done += self._delete(calls, "id", batch, by="until")
        keys = Dedupe.objects.using(self.alias).filter(expires_at__lte=now).order_by("expires_at")
        for actor_id, key_hash in list(keys.values_list("pk", flat=True)[:batch]):
            # Looked at again: a send may have taken the key anew since.
            expired = Dedupe.objects.using(self.alias).filter(
                actor_id=actor_id, key_hash=key_hash, expires_at__lte=now
            )
            done += expired.delete()[0]
        return done

    def _tombstone(self, name: str, before: int, now: int, batch: int) -> int:
        """Destroy finished actors of a type that says so; the reaper does the rest."""
        ended = Actor.objects.using(self.alias).filter(
            name=name, finished_at__lte=before, live_hash__isnull=False, lifecycle__in=[int(x) for x in _OVER]
        )
        done = 0
        for actor_id in list(ended.order_by("finished_at").values_list("id", flat=True)[:batch]):
            with self.atomic():
                if self._lock(actor_id):
                    done += ended.filter(id=actor_id).update(
                        live_hash=None, destroyed_at=now, unpruned_since=now
                    )
        return done

    def _reap(self, now: int, batch: int) -> int:
        """Delete what belongs to destroyed actors, and after a while, once more, what came late, and their row."""
        done = 0
        gone = Actor.objects.using(self.alias).filter(destroyed_at__isnull=False).order_by("destroyed_at")
        full = gone.filter(unpruned_since__isnull=False)
        for rows, last in ((full, False), (gone.filter(destroyed_at__lte=now - GRACE), True)):
            for actor_id in list(rows.values_list("id", flat=True)[: max(0, batch - done)]):
                with self.atomic():
                    if self._lock(actor_id):
                        done += self._reap_one(actor_id, batch - done, last)
                if done >= batch:
                    break
        return done

    def _reap_one(self, actor_id: UUID, batch: int, last: bool) -> int:
        done = self._delete_children(actor_id, batch)
        actors = Actor.objects.using(self.alias).filter(id=actor_id)
        if not done and last:
            done += Run.objects.using(self.alias).filter(actor_id=actor_id).delete()[0]
            done += actors.delete()[0]
        elif not done:
            actors.update(unpruned_since=None)
        return done

    def _delete_children(self, actor_id: UUID, batch: int) -> int:
        done = self._delete_contents(actor_id, batch)
        schedules = Schedule.objects.using(self.alias).filter(actor_id=actor_id)
        if self.vendor != "sqlite":
            # One that fires just now is its fire's to remove, which may wait for this actor's rows.
            schedules = schedules.select_for_update(skip_locked=True, no_key=self.vendor == "postgresql")
        fires = Fire.objects.using(self.alias).filter(actor_id=actor_id)
        for rows, column in (
            (fires, "id"),
            (Call.objects.using(self.alias).filter(actor_id=actor_id), "id"),
            (schedules, "id"),
            (Timer.objects.using(self.alias).filter(actor_id=actor_id), "id"),
            (State.objects.using(self.alias).filter(actor_id=actor_id), "actor_id"),
            (Dedupe.objects.using(self.alias).filter(actor_id=actor_id), "key_hash"),
            (Waiter.objects.using(self.alias).filter(child_id=actor_id), "parent_id"),
            (Waiter.objects.using(self.alias).filter(parent_id=actor_id), "child_id"),
        ):
            if done < batch:
                done += self._delete(rows, column, batch - done)
        return done

    def _delete_contents(self, actor_id: UUID, batch: int) -> int:
        done = 0
        for rows, column in (
            (Message.objects.using(self.alias).filter(actor_id=actor_id), "id"),
            (History.objects.using(self.alias).filter(actor_id=actor_id), "seq"),
            (Event.objects.using(self.alias).filter(actor_id=actor_id), "seq"),
        ):
            if done < batch:
                done += self._delete(rows, column, batch - done)
        return done

    def _prune_ended(self, before: int, batch: int) -> int:
        """History, messages and events of actors whose run ended before ``before``."""
        done = 0
        # Not "destroyed_at IS NULL", which has an index too, and is true of nearly all.
        ended = Actor.objects.using(self.alias).filter(unpruned_since__lte=before, live_hash__isnull=False)
        for actor_id in list(ended.order_by("unpruned_since").values_list("id", flat=True)[:batch]):
            with self.atomic():
                # Under the run's lock: `recover` may just have brought it back to life.
                if not self._lock(actor_id) or not ended.filter(id=actor_id).exists():
                    continue
                deleted = self._delete_contents(actor_id, batch - done)
                done += deleted
                if not deleted:
                    Actor.objects.using(self.alias).filter(id=actor_id).update(unpruned_since=None)
            if done >= batch:
                break
        return done

    def _lock(self, actor_id: UUID) -> bool:
        """Lock the actor's run row unless somebody else has it."""
        rows = Run.objects.using(self.alias).filter(actor_id=actor_id)
        if self.vendor != "sqlite":
            rows = rows.select_for_update(skip_locked=True, no_key=self.vendor == "postgresql")
        return bool(list(rows.values_list("actor_id")))

    def _delete(self, rows: QuerySet[Any, Any], column: str, batch: int, by: str | None = None) -> int:
        """Delete up to ``batch`` of ``rows``: their keys first, as MariaDB has no LIMIT in a subselect. ``by`` has the
        index that finds them, else ``column`` has: in another's order the planner may walk all there are."""
        keys = list(rows.order_by(by or column).values_list(column, flat=True)[: min(batch, 500)])
        return rows.filter(**{f"{column}__in": keys}).delete()[0] if keys else 0
