"""Calls that must happen once although they are made again: by a step whose attempt is repeated.

The key is remembered in the transaction of the call itself, with the encoded result, beside the dedupe keys of sends
and for as long. A second call that comes while the first is under way waits for it.
"""

from __future__ import annotations

from uuid import UUID

from django.db import IntegrityError

from rivet_workflows.models import Dedupe
from rivet_workflows.store.base import StoreBase

_RESULT = "SELECT result FROM rivet_dedupe WHERE actor_id = %s AND key_hash = %s"


class CallVerbs(StoreBase):
    """The verbs ``begin_call`` and ``end_call``; both inside the caller's transaction."""

    def begin_call(self, actor_id: UUID, key_hash: str, until: int) -> tuple[bool, str | None]:
        """Whether this call is the first under its key, and else the result that was recorded."""
        try:
            with self.atomic():
                Dedupe.objects.using(self.alias).create(
                    actor_id=actor_id, key_hash=key_hash, message_id=0, expires_at=until
                )
            return True, None
        except IntegrityError:
            return False, self.recorded_call(actor_id, key_hash)

    def recorded_call(self, actor_id: UUID, key_hash: str) -> str | None:
        """The result recorded under a key; None where there is none."""
        rows = self.query(_RESULT + self.as_of_now, [self.uid(actor_id), key_hash])
        return rows[0][0] if rows else None

    def knows_call(self, actor_id: UUID, key_hash: str) -> bool:
        """Was something done under this key?"""
        return Dedupe.objects.using(self.alias).filter(actor_id=actor_id, key_hash=key_hash).exists()

    def end_call(self, actor_id: UUID, key_hash: str, result: str) -> None:
        """Record the encoded result of the call that was begun."""
        Dedupe.objects.using(self.alias).filter(actor_id=actor_id, key_hash=key_hash).update(result=result)
