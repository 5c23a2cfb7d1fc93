"""What the pages read of the tables, and the only place that does. Selects only; nothing counts, nothing is unbounded.

Texts are cut in the database (a page of a hundred outputs of 5 MB is not loaded to show their beginnings), and rows
come as plain values: whether they make sense is for ``timeline`` and ``values`` to find out, row by row.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Any, cast
from uuid import UUID

from django.db.models import Case, F, OuterRef, QuerySet, Subquery, TextField, Value, When
from django.db.models.functions import Length, Substr

from rivet_workflows.conf import settings
from rivet_workflows.models import Actor, Event, History, Message, Run, Schedule, State, Timer, Worker
from rivet_workflows.records import Blocked, Lifecycle
from rivet_workflows.store import get_store
from rivet_workflows.store.rows import ActorRow, RunRow

Row = dict[str, Any]

#: Characters read of a value in the history, a message or an event; of a state or an actor's input; of an error.
VALUE, WHOLE, ERROR = 2_000, 20_000, 60_000
#: A list shows what an actor waits for; beyond this its position is not read for that.
POSITION = 20_000
#: Actors held by workers that the list of workers counts at most, over all of them.
HELD = 2_000
#: Workers that are looked at.
WORKERS = 50

ACTOR = ("id", "name", "key", "lifecycle", "created_at", "finished_at", "parent_id")
_RUN = (
    "actor_id", "owner_id", "epoch", "commit_no", "next_seq", "event_seq", "blocked", "blocked_code", "code", "format",
)  # fmt: skip
_ENTRY = (
    "seq", "scope", "name", "kind", "occurrence", "status", "started_at", "done_seq", "done_at", "rollback",
    "rolled_back_at",
)  # fmt: skip


def now() -> int:
    """The store's time, which timers and heartbeats go by."""
    return get_store().clock.now()


def actors() -> QuerySet[Actor]:
    """Actors for the list, without their values. Destroyed ones are gone."""
    return Actor.objects.using(settings.DATABASE).filter(live_hash__isnull=False).only(*ACTOR)


def actor(actor_id: UUID) -> Row | None:
    """Who an actor is; ``input``, ``output`` and ``error`` cut."""
    rows = Actor.objects.using(settings.DATABASE).filter(id=actor_id, live_hash__isnull=False)
    row: Row | None = rows.values(*ACTOR, **_cut(input=VALUE, output=VALUE, error=ERROR)).first()
    return row


def runs(actor_ids: Sequence[UUID], position: int | None = None) -> dict[UUID, Row]:
    """Where runs stand, and when each is next woken; of a position longer than ``position`` an empty text."""
    rows = Run.objects.using(settings.DATABASE).filter(actor_id__in=actor_ids)
    due = Timer.objects.using(settings.DATABASE).filter(actor_id=OuterRef("actor_id")).order_by("due")
    text: Any = F("inflight")
    if position is not None:
        rows = rows.annotate(size=Length("inflight"))
        text = Case(When(size__lte=position, then=F("inflight")), default=Value(""), output_field=TextField())
    found = rows.values(*_RUN, position=text, wake_at=Subquery(due.values("due")[:1]))
    return {row["actor_id"]: row for row in found}


def run_row(run: Row, name: str, lifecycle: int) -> RunRow:
    """The same as the client reads it. Raises ValueError for what this version does not know."""
    return RunRow(
        actor_id=run["actor_id"],
        owner_id=run["owner_id"],
        epoch=run["epoch"],
        commit_no=run["commit_no"],
        next_seq=run["next_seq"],
        event_seq=run["event_seq"],
        inflight=run["position"],
        blocked=Blocked(run["blocked"]),
        blocked_code=run["blocked_code"],
        code=run["code"],
        format=run["format"],
        name=name,
        lifecycle=Lifecycle(lifecycle),
        wake_at=run["wake_at"],
    )


def actor_row(row: Row) -> ActorRow:
    """Likewise. Without its values: what is cut is not what they were."""
    return ActorRow(
        row["id"], row["name"], row["key"], Lifecycle(row["lifecycle"]), row["created_at"], row["finished_at"]
    )


def state(actor_id: UUID) -> Row | None:
    rows = State.objects.using(settings.DATABASE).filter(actor_id=actor_id)
    row: Any = rows.values("version", **_cut(body=WHOLE)).first()
    return cast("Row | None", row)


def history(
    actor_id: UUID, *, before: int | None = None, since: int | None = None, limit: int = 100
) -> list[Row]:
    """Finished entries by ``seq``: the last ones, or those before or from a number on; one more than ``limit`` says
    that there are more."""
    rows = _entries(actor_id)
    if since is not None:
        return list(rows.filter(seq__gte=since).order_by("seq")[: limit + 1])
    if before is not None:
        rows = rows.filter(seq__lt=before)
    return list(rows.order_by("-seq")[: limit + 1])[::-1]


def openers(actor_id: UUID, seqs: Iterable[int]) -> list[Row]:
    """The entries that opened the scopes of others."""
    wanted = sorted(set(seqs))[:500]
    return list(_entries(actor_id).filter(seq__in=wanted)) if wanted else []


def _entries(actor_id: UUID) -> QuerySet[Any, Row]:
    rows = History.objects.using(settings.DATABASE).filter(actor_id=actor_id)
    found: Any = rows.values(*_ENTRY, **_cut(input=VALUE, output=VALUE, error=ERROR, attempts=ERROR))
    return cast("QuerySet[Any, Row]", found)


def messages(actor_id: UUID, limit: int) -> list[Row]:
    """What lies in the queues, queue by queue; one more than ``limit``."""
    rows = Message.objects.using(settings.DATABASE).filter(actor_id=actor_id).order_by("queue", "id")
    columns = ("id", "queue", "sent_at", "visible_at", "holder_seq", "wants_reply")
    return list(rows.values(*columns, **_cut(body=VALUE))[: limit + 1])


def events(actor_id: UUID, limit: int) -> list[Row]:
    """The last events, the newest first; one more than ``limit``."""
    rows = Event.objects.using(settings.DATABASE).filter(actor_id=actor_id).order_by("-seq")
    found: Any = rows.values("seq", "name", "created_at", **_cut(payload=VALUE))[: limit + 1]
    return list(found)


def schedules(actor_id: UUID, limit: int) -> list[Row]:
    """Schedules in the order they were made; one more than ``limit``."""
    rows = Schedule.objects.using(settings.DATABASE).filter(actor_id=actor_id).order_by("id")
    columns = ("id", "name", "kind", "action", "rule", "timezone", "next_at", "last_at")
    return list(rows.values(*columns, **_cut(args=VALUE))[: limit + 1])


def workers() -> QuerySet[Worker]:
    return Worker.objects.using(settings.DATABASE).all()


def held(worker_id: int, limit: int) -> list[Row]:
    """Actors that a worker holds, with who they are; one more than ``limit``."""
    owned = Run.objects.using(settings.DATABASE).filter(owner_id=worker_id).order_by("actor_id")
    ids = list(owned.values_list("actor_id", flat=True)[: limit + 1])
    return list(Actor.objects.using(settings.DATABASE).filter(id__in=ids).order_by("id").values(*ACTOR))


def held_by(worker_ids: Sequence[int]) -> tuple[Counter[int], bool]:
    """How many actors each worker holds, and whether that is all: at most :data:`HELD` are looked at."""
    owned = Run.objects.using(settings.DATABASE).filter(owner_id__in=worker_ids)
    owners = list(owned.values_list("owner_id", flat=True)[: HELD + 1])
    return Counter(owner for owner in owners if owner is not None), len(owners) <= HELD


@dataclass(frozen=True, slots=True)
class Fleet:
    """The workers as they are now, the last heard of first."""

    now: int
    workers: list[Worker]

    @property
    def alive(self) -> list[Worker]:
        """Their heartbeats say so."""
        since = self.now - int(settings.LEASE * 1_000_000)
        return [worker for worker in self.workers if worker.heartbeat_at >= since]


def fleet() -> Fleet:
    """At most :data:`WORKERS` of them."""
    return Fleet(now(), list(workers().order_by("-heartbeat_at")[:WORKERS]))


def version(actor_id: UUID, fleet: Fleet) -> str:
    """A text that is another once the actor's page would be: one look by keys instead of the page's ten."""
    alias = settings.DATABASE

    def of(rows: QuerySet[Any], column: str) -> Subquery:
        return Subquery(rows.using(alias).filter(actor_id=OuterRef("pk")).values(column)[:1])

    run, last_schedule = Run.objects, Schedule.objects.order_by("-id")
    looks = {
        "epoch": of(run.all(), "epoch"),
        "commit": of(run.all(), "commit_no"),
        "event": of(run.all(), "event_seq"),
        "owner": of(run.all(), "owner_id"),
        "state": of(State.objects.all(), "version"),
        "message": of(Message.objects.order_by("-id"), "id"),
        "schedule": of(last_schedule, "id"),
        "fired": of(last_schedule, "last_at"),
    }
    found = (
        Actor.objects.using(alias)
        .filter(id=actor_id)
        .annotate(**looks)
        .values_list("lifecycle", *looks)
        .first()
    )
    alive = sorted(f"{worker.id}{'d' if worker.draining else ''}" for worker in fleet.alive)
    text = json.dumps([found, alive], default=str)  # ids of schedules are UUIDs
    return sha256(text.encode()).hexdigest()[:16]


def raw(actor_id: UUID, what: str, seq: int | None) -> str | None:
    """A stored text, whole, for a download. None: there is none."""
    alias = settings.DATABASE
    rows: QuerySet[Any, Any]
    if seq is not None and what in ("input", "output", "error", "attempts"):
        rows = History.objects.using(alias).filter(actor_id=actor_id, seq=seq)
    elif what in ("input", "output", "error"):
        rows = Actor.objects.using(alias).filter(id=actor_id, live_hash__isnull=False)
    elif what == "state":
        rows, what = State.objects.using(alias).filter(actor_id=actor_id), "body"
    else:
        return None
    text: str | None = rows.values_list(what, flat=True).first()
    return text


def _cut(**limits: int) -> dict[str, Substr]:
    """Annotations: each column's first characters, and one more that says whether it goes on."""
    return {f"{name}_head": Substr(name, 1, limit + 1) for name, limit in limits.items()}
