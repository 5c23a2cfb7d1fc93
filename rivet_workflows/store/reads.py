"""What can be read of an actor without touching it. Nothing here locks, and nothing counts without a
bound."""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

from django.db.models import Min, Q

from rivet_workflows.models import Actor, Event, History, Message, Run, Timer
from rivet_workflows.records import SCOPE_END, Blocked, Entry, EntryStatus, Lifecycle, MessageRow
from rivet_workflows.store.base import StoreBase
from rivet_workflows.store.rows import ENTRY_COLUMNS, EventRow, ReplyStatus, RunRow, entry_from_row


class ReadVerbs(StoreBase):
    """The verbs that only read."""

    def position(self, actor_id: UUID) -> RunRow | None:
        """Where the actor's run stands."""
        run = Run.objects.using(self.alias).filter(actor_id=actor_id).first()
        cold = (
            Actor.objects.using(self.alias)
            .filter(id=actor_id, live_hash__isnull=False)
            .values_list("name", "lifecycle")
            .first()
        )
        if run is None or cold is None:
            return None
        wake_at = Timer.objects.using(self.alias).filter(actor_id=actor_id).aggregate(at=Min("due"))["at"]
        return run_row(run, cold[0], cold[1], wake_at)

    def history(self, actor_id: UUID, after_seq: int | None = None, limit: int | None = None) -> list[Entry]:
        """Finished entries by ``seq``. Open ones are in ``position(…).inflight``."""
        rows = History.objects.using(self.alias).filter(actor_id=actor_id)
        if after_seq is not None:
            rows = rows.filter(seq__gt=after_seq)
        return [entry_from_row(row) for row in rows.order_by("seq").values_list(*ENTRY_COLUMNS)[:limit]]

    def rollback_rows(self, actor_id: UUID, checkpoints: Sequence[tuple[int, str]]) -> list[Entry]:
        """Completed entries whose rollback handler has yet to run and that lie behind one of the checkpoints,
        ``(seq, scope)``, in its scope or deeper; the last completed first."""
        behind = Q()
        for seq, scope in checkpoints:
            behind |= Q(seq__gt=seq, scope__gte=scope, scope__lt=scope + SCOPE_END)
        if not checkpoints:
            return []
        rows = History.objects.using(self.alias).filter(
            behind,
            actor_id=actor_id,
            rollback__isnull=False,
            rolled_back_at__isnull=True,
            status=int(EntryStatus.COMPLETED),
        )
        return [entry_from_row(row) for row in rows.order_by("-done_seq").values_list(*ENTRY_COLUMNS)]

    def events(self, actor_id: UUID, after: int = 0, limit: int = 100) -> list[EventRow]:
        """Events by ``seq``, from the one behind ``after`` on."""
        rows = Event.objects.using(self.alias).filter(actor_id=actor_id, seq__gt=after).order_by("seq")
        return [EventRow(*row) for row in rows.values_list("seq", "name", "payload", "created_at")[:limit]]

    def messages(self, actor_id: UUID, limit: int = 100) -> list[MessageRow]:
        """What lies in the actor's queues, held and delayed messages included, queue by queue."""
        rows = Message.objects.using(self.alias).filter(actor_id=actor_id).order_by("queue", "id")
        return [
            MessageRow(*row)
            for row in rows.values_list("id", "queue", "body", "sent_at", "wants_reply")[:limit]
        ]

    def queue_size(self, actor_id: UUID, at_most: int = 1_000) -> int:
        """How many messages the actor has, counted up to ``at_most``."""
        return Message.objects.using(self.alias).filter(actor_id=actor_id).order_by()[:at_most].count()

    def reply(self, message_id: int) -> tuple[str, str | None] | None:
        """How a message with a waiting sender ended: ``completed`` or ``failed``, and the response."""
        rows = self.query_often("SELECT status, body FROM rivet_reply WHERE message_id = %s", [message_id])
        return (ReplyStatus(rows[0][0]).label, rows[0][1]) if rows else None


def run_row(run: Run, name: str, lifecycle: int, wake_at: int | None = None) -> RunRow:
    return RunRow(
        run.actor_id,
        run.owner_id,
        run.epoch,
        run.commit_no,
        run.next_seq,
        run.event_seq,
        run.inflight,
        Blocked(run.blocked),
        run.blocked_code,
        run.code,
        run.format,
        name,
        Lifecycle(lifecycle),
        wake_at,
    )
