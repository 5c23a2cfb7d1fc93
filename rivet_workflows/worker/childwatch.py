"""Whose ends one held actor waits for (``ctx.child``), and which of these must still be read. Pure bookkeeping.

A child's end leaves a wake for its parent; a look into the parent's queues takes it away again. So the rule: whatever
takes wakes away reads the ends after it (:meth:`ChildWatch.wakes_go`). That includes children that are just being
begun on another thread: their watch may be in the database, and their end too, before the core hears of the beginning.
"""

from __future__ import annotations

from collections.abc import Container
from uuid import UUID


class ChildWatch:
    """The children of one actor, by the ``seq`` of their entries."""

    __slots__ = ("_beginning", "_begun", "_reads", "_unread")

    def __init__(self) -> None:
        #: Orders that are being carried out.
        self._beginning: dict[int, None] = {}
        #: Children that are there and whose end wakes the parent.
        self._begun: dict[int, UUID] = {}
        #: A wake was taken away while children were being begun: it may have told the end of one of these.
        self._unread = False
        #: Reads of ends that were ordered and not answered.
        self._reads = 0

    def __bool__(self) -> bool:
        return bool(self._beginning or self._begun)

    @property
    def busy(self) -> bool:
        """Children are being begun, or their ends read: the actor must not be let go before that is known. The wake
        that told of an end may be gone, and nobody else would hear of it."""
        return bool(self._beginning) or self._reads > 0

    def reading(self) -> None:
        """Ends are about to be read."""
        self._reads += 1

    def read(self) -> None:
        """They were read, and those there are will be told."""
        self._reads = max(0, self._reads - 1)

    def begin(self, seq: int) -> None:
        """Its order goes out."""
        self._beginning[seq] = None

    def knows(self, seq: int) -> bool:
        """Is this one still waited for?"""
        return seq in self._beginning or seq in self._begun

    def begun(self, seq: int, child_id: UUID) -> list[UUID]:
        """It is there, and its end will leave a wake. Returns the children whose ends to read now."""
        self._beginning.pop(seq, None)
        self._begun[seq] = child_id
        unread, self._unread = self._unread, self._unread and bool(self._beginning)
        return [child_id] if unread else []

    def ended(self, seq: int) -> None:
        """Its end is known."""
        self._beginning.pop(seq, None)
        self._begun.pop(seq, None)
        self._unread = self._unread and bool(self._beginning)

    def only(self, waiting: Container[int]) -> None:
        """The workflow has given up what is not among these: a branch lost its race, say."""
        for seq in [seq for seq in (*self._beginning, *self._begun) if seq not in waiting]:
            self.ended(seq)

    def wakes_go(self) -> list[UUID]:
        """The actor's wakes are about to be taken away. Returns the children whose ends to read after that."""
        self._unread = self._unread or bool(self._beginning)
        return list(self._begun.values())

    def of(self, child_ids: Container[UUID]) -> list[tuple[int, UUID]]:
        """Entries that wait for these children."""
        return [(seq, child_id) for seq, child_id in self._begun.items() if child_id in child_ids]
