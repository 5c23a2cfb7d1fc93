"""The rows of workers: a fresh one each start, its heartbeat the only proof that its process lives."""

from __future__ import annotations

import json
from collections.abc import Iterable
from uuid import UUID

from django.db.models import QuerySet

from rivet_workflows.models import Run, Timer, Worker
from rivet_workflows.records import TimerKind
from rivet_workflows.store.errors import WorkerForgotten
from rivet_workflows.store.fires import FireVerbs
from rivet_workflows.store.rows import type_id
from rivet_workflows.store.workercalls import WorkerCallVerbs


class WorkerVerbs(WorkerCallVerbs, FireVerbs):
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
        """Say that the worker lives; the database's time. Raises :class:`WorkerForgotten` once it was taken
        for dead, and its actors for others."""
        now = self.clock.now()
        if Worker.objects.using(self.alias).filter(id=worker_id).update(heartbeat_at=now) != 1:
            raise WorkerForgotten(f"worker {worker_id} was taken for dead")
        return now

    def drain(self, worker_id: int) -> None:
        """Note that the worker takes up nothing more."""
        Worker.objects.using(self.alias).filter(id=worker_id).update(draining=True)

    def dead_workers(self, lease: int) -> list[int]:
        """Workers whose last heartbeat is more than ``lease`` microseconds old, and ids that hold actors and have
        no row: of a worker that was stopped in its tracks, forgotten, and claimed once more before it noticed."""
        before = self.clock.now() - lease
        # Owners first: a worker that registers and claims in between is not taken for one without a row.
        holding = self._owners()
        known = dict(Worker.objects.using(self.alias).values_list("id", "heartbeat_at"))
        return sorted({w for w, beat in known.items() if beat < before} | (holding - known.keys()))

    def _owners(self) -> set[int]:
        """Every id that holds actors: from one to the next along the index, however many each holds."""
        found: set[int] = set()
        last = 0
        while True:
            rows = self.query("SELECT min(owner_id) FROM rivet_run WHERE owner_id > %s", [last])
            if rows[0][0] is None:
                return found
            last = rows[0][0]
            found.add(last)

    def live_codes(self) -> dict[str, set[str]]:
        """Which actor names can be run now, and by which codes: those of workers that are not draining."""
        known: dict[str, set[str]] = {}
        for text in Worker.objects.using(self.alias).filter(draining=False).values_list("codes", flat=True):
            for name, code in json.loads(text or "{}").items():
                known.setdefault(name, set()).add(code)
        return known

    def held(self, worker_id: int) -> dict[UUID, int]:
        """The actors that the worker holds, with their epochs: what it compares with its memory after a lost
        answer to a claim."""
        rows = Run.objects.using(self.alias).filter(owner_id=worker_id)
        return dict(rows.values_list("actor_id", "epoch"))

    def next_wake(self, types: Iterable[str]) -> int | None:
        """When the next wake of an actor of these types will be due that nothing blocks; None: there is none.

        Those of held actors count: a message sent with a delay to a parked actor rings no bell when its time
        comes. What is due already is the claim's. The walk along the index ends at the first of each type.
        """
        now = self.clock.now()
        sql = (
            "SELECT t.due FROM rivet_timer t WHERE t.type_id = %s AND t.due > %s AND (SELECT r.blocked"
            " FROM rivet_run r WHERE r.actor_id = t.actor_id) = 0 ORDER BY t.due LIMIT 1"
        )
        found = [row[0] for name in types for row in self.query(sql, [type_id(name), now])]
        return min(found, default=None)

    def forget_worker(self, worker_id: int, batch: int = 500) -> bool:
        """Remove a worker's row. What it still holds is let go first: free for whoever has code for it.

        False: some of that is locked by others just now, and the row stays; call it again.
        """
        workers = Worker.objects.using(self.alias).filter(id=worker_id)
        runs = Run.objects.using(self.alias).filter(owner_id=worker_id)
        while self._let_go(runs, batch):
            pass
        if runs.exists():
            return False
        self.interrupt_fires(worker_id)
        self.interrupt_calls(worker_id)
        workers.delete()
        return True

    def _let_go(self, runs: QuerySet[Run, Run], batch: int) -> int:
        with self.atomic():
            if self.vendor != "sqlite":
                runs = runs.select_for_update(skip_locked=True, no_key=self.vendor == "postgresql")
            free = list(runs.order_by("actor_id")[:batch])
            now = self.clock.now()
            for run in free:
                run.owner_id = None
                run.epoch += 1
            Run.objects.using(self.alias).bulk_update(free, ["owner_id", "epoch"])
            Timer.objects.using(self.alias).bulk_create(
                Timer(actor_id=run.actor_id, type_id=run.type_id, kind=int(TimerKind.WAKE), due=now)
                for run in free
            )
        return len(free)
