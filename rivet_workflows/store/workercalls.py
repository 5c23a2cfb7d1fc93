"""Calls of actions that must run where a worker holds the actor: asked by a caller, taken by the holder, answered.

A call is a row. The caller inserts it, with a wake for the actor, and waits for the row's answer. The holder marks it
as running *before* the action begins, so that it never runs twice, and writes the answer in the transaction of the
action's effects: there are either both or none. No answer is written when the caller's time is up, and the caller
takes the row away; then the holder rolls back. So whoever gave up knows that nothing was stored.

Where the worker goes away in the middle, whoever forgets it ends the call as failed. It is not run again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from rivet_workflows.exceptions import ActorNotFound
from rivet_workflows.models import Actor, Call, Dedupe, Run, Timer
from rivet_workflows.records import Blocked, Called, CallStatus, Claimed, TimerKind, WorkerCall
from rivet_workflows.store.base import StoreBase, marks, to_uuid
from rivet_workflows.store.calls import CallVerbs
from rivet_workflows.store.deduping import KeyVerbs
from rivet_workflows.store.rows import type_id

#: Calls of one actor that one look brings.
BATCH = 20
#: Microseconds that an answer nobody fetched is kept.
ANSWER_KEPT = 3600 * 1_000_000

_WANTED = (
    "SELECT DISTINCT c.actor_id, r.owner_id, r.blocked FROM rivet_call c JOIN rivet_run r ON r.actor_id = c.actor_id"
    " WHERE c.type_id IN ({marks}) AND c.status = %s AND c.until > %s AND (r.owner_id IS NULL OR r.owner_id = %s)"
    " AND r.format <= %s LIMIT %s"
)


@dataclass(frozen=True, slots=True)
class Asked:
    """A call as it was stored; or what came of it when it was made before under the same key."""

    call_id: int
    result: str | None = None


@dataclass(frozen=True, slots=True)
class Wanted:
    """Actors with calls that wait, by what has to be done: ring the holder (us); take the actor as a guest, since no
    workflow of it can be run; have it claimed as any other."""

    ours: list[UUID]
    guests: list[UUID]
    asleep: list[UUID]

    def __bool__(self) -> bool:
        return bool(self.ours or self.guests or self.asleep)


class WorkerCallVerbs(CallVerbs, KeyVerbs, StoreBase):
    """See the module."""

    # -- the caller's, in the transaction that is open there

    def ask_worker(self, call: WorkerCall, kept_until: int = 0) -> Asked:
        """Store a call. One with a ``once`` key is stored once until ``kept_until``, as long as it has not failed.

        Raises ``ActorNotFound``.
        """
        with self.atomic():
            if call.once is None:
                return Asked(self._insert_call(call))
            fresh, result = self.begin_call(call.actor_id, call.once, kept_until)
            if not fresh:
                if result is not None:
                    return Asked(0, result)
                earlier = self.sent_under(call.actor_id, call.once)
                if self.query(f"SELECT 1 FROM rivet_call WHERE id = %s{self.as_of_now}", [earlier]):
                    return Asked(earlier)
            call_id = self._insert_call(call)
            self._keys(call).update(message_id=call_id)
            return Asked(call_id)

    def _insert_call(self, call: WorkerCall) -> int:
        live = Actor.objects.using(self.alias).filter(id=call.actor_id, live_hash__isnull=False)
        kind = Run.objects.using(self.alias).filter(actor_id=call.actor_id).values_list("type_id", flat=True)
        found = kind.first() if live.exists() else None
        if found is None:
            raise ActorNotFound(f"there is no actor {call.actor_id}, or it was destroyed")
        row = Call.objects.using(self.alias).create(
            type_id=found,
            actor_id=call.actor_id,
            action=call.action,
            args=call.args,
            user=call.user,
            waits=call.waits,
            status=int(CallStatus.WAITING),
            until=call.until,
            once=call.once,
        )
        Timer.objects.using(self.alias).create(
            actor_id=call.actor_id, type_id=found, kind=int(TimerKind.WAKE), due=self.clock.now()
        )
        return row.id

    def call_answer(self, call_id: int) -> tuple[CallStatus, str | None] | None:
        """Where the call stands, and its answer; None: it is gone, with its actor."""
        row = self._calls(id=call_id).values_list("status", "answer").first()
        return None if row is None else (CallStatus(row[0]), row[1])

    def drop_call(self, call: WorkerCall, call_id: int, *, failed: bool = False) -> None:
        """The answer was read. One that failed may be asked for again under its key."""
        with self.atomic():
            self._calls(id=call_id).delete()
            if failed and call.once is not None:
                self._keys(call).delete()

    def withdraw_call(self, call: WorkerCall, call_id: int) -> CallStatus | None:
        """Take the call away, whether it waits or runs: where it stood, and nothing of it will be stored. None: it is
        answered."""
        with self.atomic():
            for status in (CallStatus.WAITING, CallStatus.RUNNING):
                if self._calls(id=call_id, status=int(status)).delete()[0]:
                    if call.once is not None:
                        self._keys(call).delete()
                    return status
        return None

    def any_worker_lives(self, lease: int) -> bool:
        """Has a worker shown a sign of life within ``lease`` microseconds?"""
        rows = self.query(
            "SELECT 1 FROM rivet_worker WHERE heartbeat_at >= %s LIMIT 1", [self.clock.now() - lease]
        )
        return bool(rows)

    # -- the holder's

    def called(self, held: Sequence[tuple[UUID, int]]) -> list[Called]:
        """The calls that wait for these actors, which were held in these epochs. Ask after their wakes were taken
        away: what is committed later leaves a wake of its own."""
        ids = [actor_id for actor_id, _ in held]
        runs = Run.objects.using(self.alias).filter(actor_id__in=ids, owner_id__isnull=False)
        epochs = dict(runs.values_list("actor_id", "epoch"))
        waiting: dict[UUID, list[WorkerCall]] = {}
        rows = self._calls(
            actor_id__in=ids, status=int(CallStatus.WAITING), until__gt=self.clock.now()
        ).order_by("id")
        for row in rows:
            calls = waiting.setdefault(row.actor_id, [])
            if len(calls) < BATCH:
                calls.append(_call(row))
        return [Called(a, epoch, epochs.get(a) == epoch, waiting.get(a, ())) for a, epoch in held]

    def take_call(self, call_id: int, worker_id: int) -> bool:
        """Mark it as running here; False: it was withdrawn, is late, or somebody else's."""
        waiting = self._calls(id=call_id, status=int(CallStatus.WAITING), until__gt=self.clock.now())
        taken: int = waiting.update(status=int(CallStatus.RUNNING), worker_id=worker_id)
        return taken == 1

    def answer_call(self, call: WorkerCall, worker_id: int, status: CallStatus, answer: str | None) -> bool:
        """Record how it ended, in the transaction of its effects. False: nobody wants it any more, and the effects
        must not be committed."""
        running = self._calls(
            id=call.id, status=int(CallStatus.RUNNING), worker_id=worker_id, until__gt=self.clock.now()
        )
        gone = {} if call.waits else running.delete()[1]
        done = bool(gone) or running.update(status=int(status), answer=answer) == 1
        if done and call.once is not None and status is CallStatus.DONE:
            self.end_call(call.actor_id, call.once, answer or "null")
        return done

    def wanted(self, worker_id: int, actor_names: Sequence[str], limit: int) -> Wanted:
        """Actors of these types with calls that wait, held here or by nobody."""
        kinds = [type_id(name) for name in actor_names]
        rows = self.query(
            _WANTED.format(marks=marks(kinds)),
            [*kinds, int(CallStatus.WAITING), self.clock.now(), worker_id, self.format, limit],
        )
        found = Wanted([], [], [])
        for actor_id, owner, blocked in rows:
            place = found.ours if owner is not None else found.guests if blocked else found.asleep
            place.append(to_uuid(actor_id))
        return found

    def take_guests(self, worker_id: int, actor_ids: Sequence[UUID]) -> list[Claimed]:
        """Take these actors for their calls alone, as far as nobody holds them. What blocks their workflows stays."""
        with self.atomic():
            runs = Run.objects.using(self.alias).filter(actor_id__in=list(actor_ids), owner_id__isnull=True)
            runs = runs.exclude(blocked=int(Blocked.NO)).order_by("actor_id")
            if self.vendor != "sqlite":
                runs = runs.select_for_update(skip_locked=True, no_key=self.vendor == "postgresql")
            taken = list(runs)
            for run in taken:
                run.owner_id, run.epoch = worker_id, run.epoch + 1
            Run.objects.using(self.alias).bulk_update(taken, ["owner_id", "epoch"])
            live = Actor.objects.using(self.alias).filter(live_hash__isnull=False)
            actors = {a.id: a for a in live.filter(id__in=[run.actor_id for run in taken])}
        return [
            Claimed(
                run.actor_id, a.name, a.key, None, a.created_at, run.epoch, run.commit_no, run.next_seq, "",
                guest=True,
            )
            for run in taken
            if (a := actors.get(run.actor_id)) is not None
        ]  # fmt: skip

    def wake_called(self, actor_ids: Sequence[UUID]) -> None:
        """Have these actors claimed: the wakes of their calls went with a holder that did not come to them."""
        now = self.clock.now()
        there = Timer.objects.using(self.alias).filter(actor_id__in=list(actor_ids), due__lte=now)
        missing = set(actor_ids) - set(there.values_list("actor_id", flat=True))
        runs = Run.objects.using(self.alias).filter(actor_id__in=missing)
        Timer.objects.using(self.alias).bulk_create(
            Timer(actor_id=actor_id, type_id=kind, kind=int(TimerKind.WAKE), due=now)
            for actor_id, kind in runs.values_list("actor_id", "type_id")
        )

    # -- tidying up

    def interrupt_calls(self, worker_id: int) -> int:
        """Calls that ran on a worker that is gone end as failed, without an answer; how many."""
        running = self._calls(worker_id=worker_id, status=int(CallStatus.RUNNING))
        gone: int = running.filter(waits=False).delete()[0]
        ended: int = running.update(status=int(CallStatus.FAILED), answer=None)
        return gone + ended

    def _calls(self, **conditions: Any) -> Any:
        return Call.objects.using(self.alias).filter(**conditions)

    def _keys(self, call: WorkerCall) -> Any:
        return Dedupe.objects.using(self.alias).filter(actor_id=call.actor_id, key_hash=call.once)


def _call(row: Call) -> WorkerCall:
    return WorkerCall(row.actor_id, row.action, row.args, row.until, row.user, row.waits, row.once, row.id)
