"""Control operations. Each locks the run row, writes, raises the epoch, clears the owner and inserts a wake
(D-19): whoever held the actor is fenced by the one rule, and whoever takes it up next finds what was decided.

What ``recover``, ``replay_from`` or ``skip`` mean for the open entries is the engine's; it comes here as an
:class:`Edit` made from the row as it is under the lock.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any
from uuid import UUID

from django.db.models import Exists, OuterRef, Q

from rivet_workflows.exceptions import ActorNotFound
from rivet_workflows.models import Actor, History, Message, Run, Timer
from rivet_workflows.records import Blocked, Entry, Lifecycle, Prune, TimerKind
from rivet_workflows.store import bells
from rivet_workflows.store.base import StoreBase
from rivet_workflows.store.children import ChildVerbs
from rivet_workflows.store.reads import run_row
from rivet_workflows.store.rows import ENTRY_COLUMNS, Edit, RunRow, entry_values
from rivet_workflows.store.states import LOCK_TIMEOUT, StateVerbs

Change = Callable[[RunRow], Edit | None]


class ControlVerbs(ChildVerbs, StateVerbs, StoreBase):
    """``edit_run`` and the operations made from it. They return whether something was done."""

    def edit_run(self, actor_id: UUID, change: Change, timeout: float = LOCK_TIMEOUT) -> bool:
        """The general operation: ``change(run)``, called under the row's lock, says what to change; None:
        nothing.

        Raises ``ActorNotFound`` for an actor that is not (any more), ``ActorBusy`` after ``timeout`` seconds.
        """
        with self.atomic():
            self.lock_run(actor_id, timeout)
            run = Run.objects.using(self.alias).get(actor_id=actor_id)
            cold = (
                Actor.objects.using(self.alias)
                .filter(id=actor_id, live_hash__isnull=False)
                .values_list("name", "lifecycle")
                .first()
            )
            if cold is None:
                raise ActorNotFound(f"the actor {actor_id} was destroyed")
            edit = change(run_row(run, *cold))
            if edit is None:
                return False
            self._apply(run, edit)
            return True

    def _apply(self, run: Run, edit: Edit) -> None:
        changes: dict[str, Any] = {"epoch": run.epoch + 1, "owner_id": None}
        if edit.inflight is not None:
            changes["inflight"] = edit.inflight
        if edit.next_seq is not None:
            changes["next_seq"] = edit.next_seq
        if edit.blocked is not None:
            changes |= {"blocked": int(edit.blocked), "blocked_code": ""}
        Run.objects.using(self.alias).filter(actor_id=run.actor_id).update(**changes)
        self._edit_messages(run.actor_id, edit)
        self._edit_history(run.actor_id, edit)
        cold: dict[str, Any] = {}
        if edit.lifecycle is not None:
            cold["lifecycle"] = int(edit.lifecycle)
        if edit.clear_result:
            cold |= {"output": None, "error": None, "finished_at": None, "unpruned_since": None}
        if edit.finished_at is not None:
            cold |= {"finished_at": edit.finished_at, "unpruned_since": edit.finished_at}
        if edit.error is not None:
            cold["error"] = edit.error
        if cold:
            Actor.objects.using(self.alias).filter(id=run.actor_id).update(**cold)
        if edit.blocked is Blocked.OVER:
            bells.ring(self.alias, self.wake_waiters([run.actor_id]))
        if edit.wake:
            Timer.objects.using(self.alias).create(
                actor_id=run.actor_id, type_id=run.type_id, kind=int(TimerKind.CONTROL), due=self.clock.now()
            )

    def _edit_messages(self, actor_id: UUID, edit: Edit) -> None:
        held = Q()
        if edit.unhold_from is not None:
            held |= Q(holder_seq__gte=edit.unhold_from)
        unholds = list(edit.unholds)
        if unholds:
            held |= Q(id__in=unholds)
        back = {message.id: message for message in edit.give_back}
        if back:
            there = Message.objects.using(self.alias).filter(id__in=list(back)).values_list("id", flat=True)
            for message_id in list(there):
                del back[message_id]
            Message.objects.using(self.alias).bulk_create(
                Message(
                    id=m.id,
                    actor_id=actor_id,
                    queue=m.queue,
                    body=m.body,
                    sent_at=m.sent_at,
                    visible_at=m.sent_at,
                )
                for m in back.values()
            )
        if held:
            Message.objects.using(self.alias).filter(held, actor_id=actor_id).update(holder_seq=None)
        for message_id, seq in edit.holds:
            Message.objects.using(self.alias).filter(id=message_id, actor_id=actor_id).update(holder_seq=seq)

    def _edit_history(self, actor_id: UUID, edit: Edit) -> None:
        rows = History.objects.using(self.alias).filter(actor_id=actor_id)
        gone = Q()
        if edit.delete_from is not None:
            gone |= Q(seq__gte=edit.delete_from)
        seqs = [*edit.delete_seqs, *(row.seq for row in edit.rows)]
        if seqs:
            gone |= Q(seq__in=seqs)
        for prune in edit.delete_scopes:
            gone |= _pruned(prune)
        if gone:
            rows.filter(gone).delete()
        History.objects.using(self.alias).bulk_create(_model(actor_id, row) for row in edit.rows)

    def replace_open(
        self, actor_id: UUID, rewrite: Callable[[str], str | None], timeout: float = LOCK_TIMEOUT
    ) -> bool:
        """Rewrite the open entries: ``rewrite(inflight)``; None: nothing to do."""

        def change(run: RunRow) -> Edit | None:
            text = rewrite(run.inflight)
            return None if text is None else Edit(inflight=text)

        return self.edit_run(actor_id, change, timeout)

    def cancel(self, actor_id: UUID, *, error: str | None = None, timeout: float = LOCK_TIMEOUT) -> bool:
        """End the run as cancelled, which is final until ``recover``. Messages it held are given back."""

        def change(run: RunRow) -> Edit | None:
            if run.blocked is Blocked.OVER:
                return None
            return Edit(
                blocked=Blocked.OVER,
                lifecycle=Lifecycle.CANCELLED,
                finished_at=self.clock.now(),
                error=error,
                unhold_from=0,
                wake=False,
            )

        return self.edit_run(actor_id, change, timeout)

    def pause(self, actor_id: UUID, timeout: float = LOCK_TIMEOUT) -> bool:
        """Have no worker take the actor up until ``resume``."""
        return self.edit_run(
            actor_id,
            lambda run: Edit(blocked=Blocked.PAUSED, wake=False) if run.blocked is Blocked.NO else None,
            timeout,
        )

    def resume(self, actor_id: UUID, timeout: float = LOCK_TIMEOUT) -> bool:
        """End a pause."""
        return self.edit_run(
            actor_id,
            lambda run: Edit(blocked=Blocked.NO) if run.blocked is Blocked.PAUSED else None,
            timeout,
        )

    def wake(self, actor_id: UUID, timeout: float = LOCK_TIMEOUT) -> bool:
        """Have a worker take the actor up now; one whose history did not fit its code is tried again.

        Unlike the others it leaves epoch and owner alone where nothing is set aside: nothing changes under a
        holder's feet, it only looks again.
        """

        def change(run: RunRow) -> Edit | None:
            if run.blocked is not Blocked.DIVERGED:
                return None
            return Edit(blocked=Blocked.NO, lifecycle=Lifecycle.LIVE, clear_result=True)

        run = Run.objects.using(self.alias).filter(actor_id=actor_id).first()
        if run is not None and run.blocked == Blocked.NO:
            Timer.objects.using(self.alias).create(
                actor_id=actor_id, type_id=run.type_id, kind=int(TimerKind.CONTROL), due=self.clock.now()
            )
            return True
        return self.edit_run(actor_id, change, timeout)

    def recover(
        self,
        actor_id: UUID,
        change: Change | None = None,
        *,
        timeout: float = LOCK_TIMEOUT,
    ) -> bool:
        """Run on after an end or a block: unblocked, live again, its result forgotten. ``change`` adds what
        the engine has to say about open entries and failed rows, and may refuse with None."""

        def whole(run: RunRow) -> Edit | None:
            edit = Edit() if change is None else change(run)
            if edit is None:
                return None
            return replace(edit, blocked=Blocked.NO, lifecycle=Lifecycle.LIVE, clear_result=True)

        return self.edit_run(actor_id, whole, timeout)

    def replay_from(
        self,
        actor_id: UUID,
        from_seq: int,
        change: Change | None = None,
        *,
        timeout: float = LOCK_TIMEOUT,
    ) -> bool:
        """Forget the entries from ``from_seq`` on and run again from there. Messages that they held are given
        back. ``change`` adds the engine's part, as in :meth:`recover`."""

        def whole(run: RunRow) -> Edit | None:
            edit = Edit() if change is None else change(run)
            return None if edit is None else replace(edit, delete_from=from_seq, unhold_from=from_seq)

        return self.recover(actor_id, whole, timeout=timeout)

    def destroy(self, actor_id: UUID, timeout: float = LOCK_TIMEOUT) -> bool:
        """Remove the actor: its key is free and its id unknown at once, its rows go with the reaper."""

        def change(run: RunRow) -> Edit | None:
            now = self.clock.now()
            Actor.objects.using(self.alias).filter(id=actor_id).update(
                live_hash=None, destroyed_at=now, unpruned_since=now
            )
            ended = run.lifecycle in (Lifecycle.COMPLETED, Lifecycle.FAILED, Lifecycle.CANCELLED)
            return Edit(
                blocked=Blocked.OVER, lifecycle=run.lifecycle if ended else Lifecycle.CANCELLED, wake=False
            )

        return self.edit_run(actor_id, change, timeout)

    def wake_diverged(self, types: dict[str, str]) -> int:
        """Wake the actors that other code than this (name to hash) refused, so that it may try. Call it when
        a worker starts and now and then: the wakes of such actors are deleted by workers of the refusing
        code."""
        woken = 0
        now = self.clock.now()
        for name, code in types.items():
            aside = Actor.objects.using(self.alias).filter(name=name, lifecycle=int(Lifecycle.SET_ASIDE))
            runs = Run.objects.using(self.alias).filter(
                actor_id__in=aside.values("id"), blocked=int(Blocked.DIVERGED)
            )
            # Asked of each, not for all at once: of what is due there may be very much.
            waiting = Timer.objects.using(self.alias).filter(actor_id=OuterRef("actor_id"), due__lte=now)
            for_us = runs.exclude(blocked_code=code).exclude(Exists(waiting))
            created = Timer.objects.using(self.alias).bulk_create(
                Timer(actor_id=run.actor_id, type_id=run.type_id, kind=int(TimerKind.CONTROL), due=now)
                for run in for_us.only("actor_id", "type_id")
            )
            woken += len(created)
        return woken


def _pruned(prune: Prune) -> Q:
    rows = Q(scope__gte=prune.first, scope__lt=prune.end)
    if prune.keep_handlers:
        rows &= Q(rollback__isnull=True) | Q(rolled_back_at__isnull=False)
    return rows


def _model(actor_id: UUID, entry: Entry) -> History:
    values: Sequence[Any] = entry_values(entry)
    return History(actor_id=actor_id, **dict(zip(ENTRY_COLUMNS, values, strict=True)))
