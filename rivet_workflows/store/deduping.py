"""Keys under which something is sent once. A row each, written in the transaction of what is sent."""

from __future__ import annotations

from uuid import UUID

from rivet_workflows.records import Outgoing
from rivet_workflows.store.base import StoreBase

_INTO = "INTO rivet_dedupe (actor_id, key_hash, message_id, expires_at) VALUES (%s, %s, 0, %s)"
#: A key whose time has passed and that was not pruned yet counts as never sent.
_CLAIM = (
    f"INSERT {_INTO} ON CONFLICT (actor_id, key_hash) DO UPDATE SET message_id = 0, expires_at = excluded.expires_at"
    " WHERE rivet_dedupe.expires_at <= {now}"
)
_RENEW = (
    "UPDATE rivet_dedupe SET message_id = 0, expires_at = %s"
    " WHERE actor_id = %s AND key_hash = %s AND expires_at <= {now}"
)
_SENT_UNDER = "SELECT message_id FROM rivet_dedupe WHERE actor_id = %s AND key_hash = %s"


class KeyVerbs(StoreBase):
    """What sends from a caller's transaction and from a group's commit have in common."""

    def claim_key(self, message: Outgoing) -> bool:
        """Is the message's key ours? Waits for another sender's open transaction that has it."""
        where, until = [self.uid(message.actor_id), message.dedupe_hash], message.dedupe_until
        if self.vendor != "mysql":
            return self.execute(_CLAIM.format(now=self.clock.sql), [*where, until]) == 1
        if self.execute(f"INSERT IGNORE {_INTO}", [*where, until]) == 1:
            return True
        return self.execute(_RENEW.format(now=self.clock.sql), [until, *where]) == 1

    def sent_under(self, actor_id: UUID, key_hash: str | None) -> int:
        """The message, or the call, of a key that is taken; 0 where none was noted."""
        rows = self.query(_SENT_UNDER + self.as_of_now, [self.uid(actor_id), key_hash])
        return int(rows[0][0]) if rows else 0
