"""Reading queues, on SQLite and MariaDB."""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

from rivet_workflows.crashpoints import crashpoint
from rivet_workflows.records import Look, Looked
from rivet_workflows.store.base import Meanwhile
from rivet_workflows.store.merging import QueueRead, merge
from rivet_workflows.store.portable.base import PortableBase

_READ = (
    "SELECT id, queue, body, sent_at, wants_reply FROM rivet_message WHERE actor_id = %s AND queue = %s"
    " AND visible_at <= %s AND holder_seq IS NULL ORDER BY id LIMIT %s"
)


class PortableLooks(PortableBase):
    """The verb ``look``."""

    def look(self, looks: Sequence[Look], *, meanwhile: Meanwhile | None = None) -> list[Looked]:
        """What the queues hold for these actors, and their due wakes deleted.

        The wakes go first: a message that is committed between the two leaves its wake, and is read as well.
        """
        if not looks:
            return []
        crashpoint("before-look")
        answers = []
        with self.writing():
            now = self.clock.now()
            self.drop_wakes({look.actor_id: look.epoch for look in looks}, now, deadlines=False)
            for look in looks:
                names = self._queues(look.actor_id) if look.names is None else look.names
                read: QueueRead = {}
                for name in names:
                    rows = self.query(_READ, [self.uid(look.actor_id), name, now, look.limit])
                    if rows:
                        read[name] = list(rows)
                answers.append(merge(look, read, now))
        crashpoint("after-look")
        return answers

    def _queues(self, actor_id: UUID) -> list[str]:
        """Every queue of the actor that holds a message: from one to the next along the index."""
        names: list[str] = []
        last = ""
        while True:
            rows = self.query(
                "SELECT min(queue) FROM rivet_message WHERE actor_id = %s AND queue > %s",
                [self.uid(actor_id), last],
            )
            if rows[0][0] is None:
                return names
            last = rows[0][0]
            names.append(last)
