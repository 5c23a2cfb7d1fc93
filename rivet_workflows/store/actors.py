"""Actors: made, found, listed. In the caller's transaction, if there is one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any
from uuid import UUID

from django.db import IntegrityError
from django.db.models import QuerySet

from rivet_workflows.models import Actor, Run, State, Timer, uuid7
from rivet_workflows.records import Blocked, Lifecycle, TimerKind
from rivet_workflows.store import bells
from rivet_workflows.store.base import StoreBase, to_uuid
from rivet_workflows.store.rows import ActorRow, live_hash, type_id

_COLUMNS = (
    "id",
    "name",
    "key",
    "lifecycle",
    "created_at",
    "finished_at",
    "input",
    "output",
    "error",
    "parent_id",
)
_SELECTED = ", ".join(f"a.{column}" for column in _COLUMNS)

#: One round trip for the four rows; the unique hash decides between racing creators.
_CREATE_POSTGRES = (
    "WITH a AS (INSERT INTO rivet_actor (id, name, key, live_hash, lifecycle, created_at, input, parent_id, labels)"
    " VALUES (%s, %s, %s, %s, 1, {now}, %s, %s, %s) ON CONFLICT (live_hash) DO NOTHING RETURNING id, created_at),"
    " r AS (INSERT INTO rivet_run (actor_id, type_id, epoch, commit_no, next_seq, event_seq, inflight, blocked,"
    " blocked_code, code, format) SELECT id, %s, 0, 0, 1, 0, '', %s, '', '', %s FROM a),"
    " s AS (INSERT INTO rivet_state (actor_id, version, body) SELECT id, 1, %s FROM a),"
    " t AS (INSERT INTO rivet_timer (type_id, actor_id, kind, due, priority)"
    " SELECT %s, id, %s, created_at, 0 FROM a WHERE %s) SELECT a.created_at{bell} FROM a"
)


class ActorVerbs(StoreBase):
    """The verbs ``create_actor``, ``find``, ``get`` and ``list_actors``."""

    def create_actor(
        self,
        name: str,
        key: str,
        *,
        input: str | None = None,
        state: str | None = None,
        runs: bool = True,
        parent_id: UUID | None = None,
        labels: str = "",
    ) -> tuple[ActorRow, bool]:
        """The live actor of that name and key (JSON text), made if there is none; and whether it was.

        Of any number of racing callers one makes it. With ``runs`` it is taken up by a worker once the
        caller's transaction commits, which rings for it; without, it is a plain actor that no worker claims.
        """
        born = ActorRow(uuid7(), name, key, Lifecycle.LIVE, 0, input=input, parent_id=parent_id)
        blocked = Blocked.NO if runs else Blocked.OVER
        insert = self._insert_at_once if self.vendor == "postgresql" else self._insert_portably
        while True:
            created_at = insert(born, labels, state, blocked)
            if created_at is not None:
                return replace(born, created_at=created_at), True
            found = self._find_now(name, key)
            if found is not None:
                return found, False
            # It was destroyed between the two looks.

    def _insert_at_once(
        self, actor: ActorRow, labels: str, state: str | None, blocked: Blocked
    ) -> int | None:
        """Write its rows; when it was made, None where the name and key are taken."""
        kind, runs = type_id(actor.name), blocked is Blocked.NO
        rings = runs and bells.in_statement(self.connection)
        rows = self.query_often(
            _CREATE_POSTGRES.format(now=self.clock.sql, bell=f", {bells.TO_ALL}" if rings else ""),
            [
                actor.id, actor.name, actor.key, live_hash(actor.name, actor.key), actor.input, actor.parent_id,
                labels, kind, int(blocked), self.format, state, kind, int(TimerKind.WAKE), runs,
            ],
        )  # fmt: skip
        if not rows:
            return None
        if runs and not rings:
            bells.ring(self.alias, work=[actor.id])
        return int(rows[0][0])

    def _insert_portably(
        self, actor: ActorRow, labels: str, state: str | None, blocked: Blocked
    ) -> int | None:
        with self.atomic():
            now, kind = self.clock.now(), type_id(actor.name)
            try:
                with self.atomic():
                    Actor(
                        id=actor.id,
                        name=actor.name,
                        key=actor.key,
                        live_hash=live_hash(actor.name, actor.key),
                        lifecycle=int(actor.lifecycle),
                        created_at=now,
                        input=actor.input,
                        parent_id=actor.parent_id,
                        labels=labels,
                    ).save(using=self.alias, force_insert=True)
            except IntegrityError:
                return None
            Run(actor_id=actor.id, type_id=kind, blocked=int(blocked), format=self.format).save(
                using=self.alias, force_insert=True
            )
            State(actor_id=actor.id, body=state).save(using=self.alias, force_insert=True)
            if blocked is Blocked.NO:
                self.insert_wake(actor.id, kind, TimerKind.WAKE, now)
                bells.ring(self.alias, work=[actor.id])
            return now

    def insert_wake(self, actor_id: UUID, kind_of_actor: int, kind: TimerKind, due: int) -> None:
        """Have a worker take the actor up at ``due``."""
        Timer.objects.using(self.alias).create(
            actor_id=actor_id, type_id=kind_of_actor, kind=int(kind), due=due
        )

    def find(self, name: str, key: str) -> ActorRow | None:
        """The live actor of that name and key."""
        return self._one("a.live_hash = %s", live_hash(name, key))

    def _find_now(self, name: str, key: str) -> ActorRow | None:
        """As :meth:`find`, also when it was made after a transaction that is open here began."""
        return self._one(f"a.live_hash = %s{self.as_of_now}", live_hash(name, key))

    def get(self, actor_id: UUID) -> ActorRow | None:
        """The actor of that id, unless it was destroyed."""
        return self._one("a.id = %s AND a.live_hash IS NOT NULL", self.uid(actor_id))

    def _one(self, condition: str, value: Any) -> ActorRow | None:
        rows = self.query_often(f"SELECT {_SELECTED} FROM rivet_actor a WHERE {condition}", [value])
        return _row(rows[0]) if rows else None

    def list_actors(
        self,
        name: str | None = None,
        lifecycle: Lifecycle | None = None,
        after: UUID | None = None,
        limit: int = 100,
    ) -> list[ActorRow]:
        """Live actors by id (so, roughly, by age), from the one behind ``after`` on."""
        actors = Actor.objects.using(self.alias).filter(live_hash__isnull=False)
        known: dict[str, Any] = {}
        if name is not None:
            known["name"] = name
        if lifecycle is not None:
            known["lifecycle"] = int(lifecycle)
        if known and self.vendor == "postgresql":
            actors = _along_index(actors, known, after)
        else:
            actors = actors.filter(**known, **({} if after is None else {"id__gt": after})).order_by("id")
        return [_row(row) for row in actors.values_list(*_COLUMNS)[:limit]]


def _along_index(
    actors: QuerySet[Actor, Actor], known: dict[str, Any], after: UUID | None
) -> QuerySet[Actor, Actor]:
    """Those whose columns are as ``known``, by id: as a range of the index that has these columns and the id.

    Said as equalities, and the id apart, the same rows are also found along the primary key, which the planner takes
    for cheaper: a page behind 50,000 actors of another type then took 130 ms instead of 1.
    """
    columns, marks = ", ".join([*known, "id"]), ", ".join(["%s"] * (len(known) + 1))
    first, last = after or UUID(int=0), UUID(int=2**128 - 1)
    return actors.extra(  # noqa: S610  names of columns alone
        where=[f"({columns}) > ({marks}) AND ({columns}) <= ({marks})"],
        params=[*known.values(), first, *known.values(), last],
    ).order_by(*known, "id")


def _row(values: Sequence[Any]) -> ActorRow:
    """From the values of :data:`_COLUMNS`."""
    actor_id, name, key, lifecycle, created_at, finished_at, input, output, error, parent_id = values
    return ActorRow(
        to_uuid(actor_id),
        name,
        key,
        Lifecycle(lifecycle),
        created_at,
        finished_at,
        input,
        output,
        error,
        None if parent_id is None else to_uuid(parent_id),
    )
