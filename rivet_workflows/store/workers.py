"""The rows of workers: a fresh one each start, its heartbeat the only proof that its process lives."""

from __future__ import annotations

import json
from collections.abc import Iterable
from uuid import UUID

from rivet_workflows.models import Run, Timer, Worker
from rivet_workflows.records import TimerKind
from rivet_workflows.store.base import StoreBase
from rivet_workflows.store.errors import WorkerForgotten
from rivet_workflows.store.rows import type_id


class WorkerVerbs(StoreBase):
    """The verbs about workers."""

    def register_worker(self, host: str, pid: int, codes: dict[str, str], format: int = 1) -> int:
        """A new worker's id. ``codes``: each actor name it runs, with the hash of that workflow's code."""
        now = self.clock.now()
        worker = Worker.objects.using(self.alias).create(
            host=host,
            pid=pid,
            started_at=now,
            heartbeat_at=now,
            codes=json.dumps(codes, sort_keys=True),
            format=format,
        )
        return worker.id

    def heartbeat(self, worker_id: int) -> int:
        """Say that the worker lives; the database's time. Raises :class:`WorkerForgotten` once it was taken for
        dead, and its actors for others."""
        now = self.clock.now()
        if Worker.objects.using(self.alias).filter(id=worker_id).update(heartbeat_at=now) != 1:
            raise WorkerForgotten(f"worker {worker_id} was taken for dead")
        return now

    def drain(self, worker_id: int) -> None:
        """Note that the worker takes up nothing more."""
        Worker.objects.using(self.alias).filter(id=worker_id).update(draining=True)

    def dead_workers(self, lease: int) -> list[int]:
        """Workers whose last heartbeat is more than ``lease`` microseconds old."""
        before = self.clock.now() - lease
        rows = Worker.objects.using(self.alias).filter(heartbeat_at__lt=before).order_by("id")
        return list(rows.values_list("id", flat=True))

    def live_codes(self) -> dict[str, set[str]]:
        """Which actor names can be run now, and by which codes: those of workers that are not draining."""
        known: dict[str, set[str]] = {}
        for text in Worker.objects.using(self.alias).filter(draining=False).values_list("codes", flat=True):
            for name, code in json.loads(text or "{}").items():
                known.setdefault(name, set()).add(code)
        return known

    def next_wake(self, types: Iterable[str]) -> int | None:
        """When the next wake of these actors that is not due yet will be; None: there is none. One look into the
        index for each type."""
        now = self.clock.now()
        moments = (
            Timer.objects.using(self.alias)
            .filter(type_id=type_id(name), due__gt=now)
            .order_by("due")
            .values_list("due", flat=True)
            .first()
            for name in types
        )
        return min((at for at in moments if at is not None), default=None)

    def held(self, worker_id: int) -> dict[UUID, int]:
        """The actors that the worker holds, with their epochs: what it compares with its memory after a lost
        answer to a claim."""
        rows = Run.objects.using(self.alias).filter(owner_id=worker_id)
        return dict(rows.values_list("actor_id", "epoch"))

    def forget_worker(self, worker_id: int, batch: int = 500) -> None:
        """Remove a worker's row. What it still holds is let go first: free for whoever has code for it."""
        while True:
            with self.atomic():
                runs = list(
                    Run.objects.using(self.alias)
                    .filter(owner_id=worker_id)
                    .select_for_update(no_key=self.vendor == "postgresql")
                    .order_by("actor_id")[:batch]
                )
                if not runs:
                    break
                now = self.clock.now()
                for run in runs:
                    run.owner_id = None
                    run.epoch += 1
                Run.objects.using(self.alias).bulk_update(runs, ["owner_id", "epoch"])
                Timer.objects.using(self.alias).bulk_create(
                    Timer(actor_id=run.actor_id, type_id=run.type_id, kind=int(TimerKind.WAKE), due=now)
                    for run in runs
                )
        Worker.objects.using(self.alias).filter(id=worker_id).delete()
