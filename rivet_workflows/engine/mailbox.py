"""What waits for messages and for points in time, and which of them goes on next. Pure.

Messages are found by looking; a look answers for a set of queues at one moment. The order of what has come is the
order of *time*, however late the worker wakes: a message that was sent by a deadline goes before it (D-15), in the
wait's own timeout as in a race against a sleep. So before a deadline takes effect, every open wait must be known up
to that time, and :meth:`Mailbox.wants` asks for the look that tells.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..records import MessageRow
from .timers import Timers

if TYPE_CHECKING:
    from .queues import QueueCall

#: Messages asked for at once, unless a wait wants more.
LOOK_LIMIT = 20
NEVER = -1


_NOTHING: frozenset[int] = frozenset()


@dataclass(slots=True)
class Seen:
    """The answer to one look, without what was taken since."""

    #: Sorted; None: any queue.
    names: tuple[str, ...] | None
    messages: list[MessageRow]
    #: There were no more than these.
    complete: bool
    at: int
    #: Nothing can have come since; False after the bell.
    fresh: bool

    def answers(self, wait: QueueCall) -> bool:
        return self.names is None or (
            wait.names is not None and all(name in self.names for name in wait.names)
        )

    def exactly(self, wait: QueueCall) -> bool:
        return self.names == (None if wait.names is None else tuple(sorted(wait.names)))


class Mailbox:
    """The open waits of one actor, the messages seen and not taken, and the deadlines that have come."""

    __slots__ = ("_asked", "_deadlines", "_gone", "_rung", "_seen", "held", "waits")

    def __init__(self, held: dict[int, tuple[int, str]]) -> None:
        self.waits: dict[int, QueueCall] = {}
        #: Completable messages that were received and not completed: id to (seq, scope) of their entry (D-16).
        self.held = held
        self._seen: list[Seen] = []
        #: Taken or held by a turn that may not be committed yet: a look still shows them.
        self._gone: frozenset[int] = _NOTHING
        #: Of sleeps and waits: those that have come, and were not told yet.
        self._deadlines = Timers()
        self._asked = self._rung = False

    # -- what comes in -------------------------------------------------------------------------------

    def show(self, found: Iterable[MessageRow], names: Iterable[str] | None, complete: bool, at: int) -> None:
        """A look has shown ``found``, in order of arrival."""
        wanted = None if names is None else tuple(sorted(names))
        self._seen = [seen for seen in self._seen if seen.fresh and seen.names != wanted]
        fresh = not self._rung
        self._asked = self._rung = False
        messages = [message for message in found if message.id not in self._gone]
        self._seen.append(Seen(wanted, messages, complete, at, fresh))

    def ring(self) -> None:
        """There may be more messages now. Also while a look is under way: its answer may be older than the bell."""
        for seen in self._seen:
            seen.fresh = False
        self._rung = self._asked

    def reached(self, deadline: int, seq: int) -> None:
        """The deadline of a call has come. Whether nothing was sent by then only a look after it can tell (D-15)."""
        self._deadlines.at(deadline, seq)

    def early(self, at: int) -> list[tuple[int, int]]:
        """The deadlines that the estimate of the time took for reached and that are not, as the look's time shows;
        each with the entry."""
        return self._deadlines.pop_after(at)

    def forget(self, seq: int) -> None:
        """The call ``seq`` does not wait any more."""
        self.waits.pop(seq, None)
        self._deadlines.cancel(seq)

    # -- what goes on --------------------------------------------------------------------------------

    def next(self) -> int | None:
        """The call that gets its result next; None while there is none or a look must come first."""
        best: tuple[int, int] | None = None
        known: int | None = None
        for seq, wait in self.waits.items():
            until = self._match(wait)
            if until is None:
                first = (wait.taken[0].sent_at, seq)
                best = first if best is None else min(best, first)
                continue
            known = until if known is None else min(known, until)
        timer = self._deadlines.first()
        if timer is None or (best is not None and best[0] <= timer[0]):
            return None if best is None else best[1]
        if known is not None and known < timer[0]:
            return None
        return timer[1]

    def _match(self, wait: QueueCall) -> int | None:
        """Set what ``wait`` takes; None: it goes on with that. Else until when it is known that nothing came for it."""
        seen = next((seen for seen in reversed(self._seen) if seen.answers(wait)), None)
        wait.taken = []
        if seen is None:
            return NEVER
        taken = [message for message in seen.messages if wait.wants(message)][: wait.count]
        # An incomplete look at just these queues that shows others still: they came too late for this wait.
        sure = seen.fresh and (seen.complete or (seen.exactly(wait) and len(seen.messages) > len(taken)))
        if taken and (sure or len(taken) == wait.count):
            wait.taken = taken
            return None
        return seen.at if sure else NEVER

    def wants(self) -> tuple[tuple[str, ...] | None, int] | None:
        """The queues (None: any) to look into, and for how many messages; None where no look is needed.

        Call it when the look is about to be ordered: a bell that rings after that makes its answer stale.
        """
        if not self.waits:
            return None
        due = self._deadlines.next()
        wanting = [
            wait
            for _, wait in sorted(self.waits.items())
            if (until := self._match(wait)) is not None
            and (until == NEVER or (due is not None and until < due))
        ]
        if not wanting:
            return None
        self._asked, self._rung = True, False
        if any(seen.fresh and not seen.complete for seen in self._seen):
            # One busy queue filled the common look: the others are asked for one by one.
            del wanting[1:]
        names: dict[str, None] | None = {}
        for wait in wanting:
            names = None if names is None or wait.names is None else names | dict.fromkeys(wait.names)
        return None if names is None else tuple(names), max(LOOK_LIMIT, *(wait.count for wait in wanting))

    # -- what was taken ------------------------------------------------------------------------------

    def take(self, messages: Sequence[MessageRow]) -> None:
        """These belong to an entry now."""
        ids = {message.id for message in messages}
        self._gone |= ids
        for seen in self._seen:
            seen.messages = [message for message in seen.messages if message.id not in ids]

    def give_back(self, message: int) -> None:
        """A held message is visible again, at its old place."""
        del self.held[message]
        self._gone -= {message}
        self._seen.clear()

    def committed(self, message_ids: Iterable[int]) -> None:
        """These are taken, or hidden, for good: a look does not show them any more."""
        self._gone = self._gone.difference(message_ids) or _NOTHING
