"""Workflows that wait for the end of other actors' workflows (``ctx.child``): who waits, and how it ended.

The end of a child wakes whoever waits for it in the commit (or control operation) that ends it, so a crash cannot come
in between. Registering takes the child's row: an end that is being committed meanwhile is either seen, or sees.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from uuid import UUID

from django.db import IntegrityError
from django.db.models import F

from rivet_workflows.models import Actor, Run, Timer, Waiter
from rivet_workflows.records import Lifecycle, TimerKind
from rivet_workflows.store.base import StoreBase

_OVER = (Lifecycle.COMPLETED, Lifecycle.FAILED, Lifecycle.CANCELLED)


@dataclass(slots=True, frozen=True)
class Ending:
    """How a run ended. ``gone``: the actor was destroyed, or never was."""

    lifecycle: Lifecycle
    output: str | None = None
    error: str | None = None
    gone: bool = False


class ChildVerbs(StoreBase):
    """The verbs about waiting for children."""

    def watch(self, parent_id: UUID, child_id: UUID) -> Ending | None:
        """Have the end of ``child_id`` wake ``parent_id``; how it ended, when it has."""
        with self.atomic():
            runs = Run.objects.using(self.alias).filter(actor_id=child_id)
            # The first write of the transaction: on SQLite it takes the database, elsewhere the child's row. A lock
            # alone would not do: a group's statement that began before we commit and comes to the row after it
            # would find it free and as it was, and end the child without seeing our row. Written, it finds the row
            # changed since it began, and comes again.
            if not runs.update(epoch=F("epoch")):
                return Ending(Lifecycle.CANCELLED, gone=True)
            ended = self.endings([child_id]).get(child_id)
            if ended is None:
                with suppress(IntegrityError), self.atomic():  # it may wait already
                    Waiter.objects.using(self.alias).create(child_id=child_id, parent_id=parent_id)
            return ended

    def endings(self, child_ids: Sequence[UUID]) -> dict[UUID, Ending]:
        """Those of these actors whose run is over, and how it ended."""
        rows = Actor.objects.using(self.alias).filter(id__in=child_ids)
        found: dict[UUID, Ending] = dict.fromkeys(child_ids, Ending(Lifecycle.CANCELLED, gone=True))
        for actor_id, life, output, error, live in rows.values_list(
            "id", "lifecycle", "output", "error", "live_hash"
        ):
            lifecycle = Lifecycle(life)
            if live is None and lifecycle not in _OVER:
                continue
            if lifecycle in _OVER:
                found[actor_id] = Ending(lifecycle, output, error, gone=live is None)
            else:
                del found[actor_id]
        return found

    def read_ends(self, parent_id: UUID, child_ids: Sequence[UUID]) -> dict[UUID, Ending]:
        """How those of these children that are over have ended; the end of each of the others will wake ``parent_id``.

        They are registered as waited for, except where one ended, which took that away, and runs again (``recover``):
        it is registered anew.
        """
        ends = self.endings(child_ids)
        left = [child_id for child_id in child_ids if child_id not in ends]
        if left:
            waited_for = set(
                Waiter.objects.using(self.alias)
                .filter(parent_id=parent_id, child_id__in=left)
                .values_list("child_id", flat=True)
            )
            for child_id in left:
                ended = None if child_id in waited_for else self.watch(parent_id, child_id)
                if ended is not None:
                    ends[child_id] = ended
        return ends

    def wake_waiters(self, child_ids: Iterable[UUID]) -> list[UUID]:
        """Wake whoever waits for these actors, whose end is written in this transaction; the actors woken."""
        waiters = Waiter.objects.using(self.alias).filter(child_id__in=list(child_ids))
        parents = sorted(set(waiters.values_list("parent_id", flat=True)))
        if not parents:
            return []
        now = self.clock.now()
        runs = Run.objects.using(self.alias).filter(actor_id__in=parents).values_list("actor_id", "type_id")
        Timer.objects.using(self.alias).bulk_create(
            Timer(actor_id=actor_id, type_id=kind, kind=int(TimerKind.WAKE), due=now)
            for actor_id, kind in runs
        )
        waiters.delete()
        return parents
