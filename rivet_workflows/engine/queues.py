"""``ctx.queue``: waiting for messages, and sending to itself. Pure."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from .. import jsontext
from ..exceptions import MessageNotCompleted, QueueTimeout, failure_from_record, failure_record
from ..records import EntryStatus, Kind, MessageRow
from .calls import Call, Done, Result, instant
from .history import noted
from .options import micros, whole
from .results import Message

if TYPE_CHECKING:
    from .scope import Scope


class QueueCall(Call):
    """``queue.next`` (``single``) and ``queue.next_batch``."""

    __slots__ = ("completable", "count", "deadline", "names", "single", "taken")
    kind = Kind.MESSAGE

    def __init__(
        self,
        scope: Scope,
        name: str,
        names: tuple[str, ...] | None,
        count: int,
        timeout: int | None,
        completable: bool,
        single: bool,
    ) -> None:
        self.names = names
        self.count = count
        self.deadline = None if timeout is None else scope.machine.now + timeout
        self.completable = completable
        self.single = single
        #: What it goes on with, as the mailbox has matched it.
        self.taken: list[MessageRow] = []
        super().__init__(scope, name)

    def fresh(self) -> None:
        machine, rec = self.scope.machine, self.rec
        assert rec is not None
        machine.turn.must_commit = True
        if machine.held:
            error = MessageNotCompleted(
                "Previous completable queue message is not completed. Complete message "
                f"{next(iter(machine.held))} before {self.what}"
            )
            rec["e"] = json.dumps(failure_record(error))
            self._refuse(rec["e"])
            return
        rec |= {"q": self.names, "c": self.count}
        if self.deadline is not None:
            rec["d"] = self.deadline
        if self.completable:
            rec["m"] = 1
        self._wait()

    def resume(self) -> None:
        rec = self.rec
        assert rec is not None
        if "e" in rec:
            self._refuse(rec["e"])
            return
        names = rec.get("q")
        self.names = None if names is None else tuple(names)
        self.count, self.deadline, self.completable = rec["c"], rec.get("d"), bool(rec.get("m"))
        self._wait()

    def _refuse(self, error: str) -> None:
        self.entry.error = error
        self.scope.machine.tasks.live.append(self)

    def _wait(self) -> None:
        machine, seq = self.scope.machine, self.entry.seq
        machine.calls[seq] = machine.mailbox.waits[seq] = self
        if self.deadline is None:
            return
        if self.deadline <= machine.now:
            self.due()
        else:
            machine.timers.at(self.deadline, seq)

    def due(self) -> None:
        assert self.deadline is not None
        self.scope.machine.mailbox.reached(self.deadline, self.entry.seq)

    def wants(self, message: MessageRow) -> bool:
        """The message is of its queues, and was sent by its deadline."""
        if self.deadline is not None and message.sent_at > self.deadline:
            return False
        return self.names is None or message.queue in self.names

    def finish(self) -> Result:
        machine, entry = self.scope.machine, self.entry
        if entry.error is not None:
            machine.close(self, EntryStatus.FAILED)
            return False, failure_from_record(json.loads(entry.error))
        entry.input = jsontext.encode({"names": self.names, "count": self.count, "deadline": self.deadline})
        # Bodies are encoded texts already: the whole is the encoding of a list of lists.
        parts = (
            f"[{m.id},{jsontext.encode(m.queue)},{m.body},{m.sent_at},{int(self.completable)}]"
            for m in self.taken
        )
        entry.output = f"[{','.join(parts)}]"
        # Read before it is taken: a message that cannot be read stays in its queue.
        result = self._result()
        machine.take_messages(self.taken, entry, completable=self.completable)
        machine.close(self, EntryStatus.COMPLETED)
        return result

    def replay(self) -> Result:
        if self.entry.status is EntryStatus.FAILED:
            return False, failure_from_record(noted(self.entry.error))
        return self._result()

    def _result(self) -> Result:
        machine = self.scope.machine
        assert self.entry.output is not None
        records: Sequence[Sequence[Any]] = machine.decode(self.entry.output, "a message of", self)
        messages = [
            Message(id=number, name=name, body=body, created_at=instant(sent))._bind(
                machine, bool(completable)
            )
            for number, name, body, sent, completable in records
        ]
        if not self.single:
            return True, messages
        if messages:
            return True, messages[0]
        return False, QueueTimeout(
            f"{self.what} timed out without a message; use queue.next_batch, which gives [], where that is expected"
        )


class QueueFace:
    """``ctx.queue``."""

    __slots__ = ("_scope",)

    def __init__(self, scope: Scope) -> None:
        self._scope = scope

    def next(
        self,
        name: str,
        *,
        names: Any = None,
        timeout: float | timedelta | None = None,
        completable: bool = False,
    ) -> Awaitable[Message[Any]]:
        """Wait for one message of the queues ``names`` (none: any). ``name`` names the entry.

        Raises QueueTimeout after ``timeout`` seconds without one. ``completable``: the message stays hidden in the
        queue until ``message.complete(response)``.
        """
        return self._wait(name, names, 1, timeout, completable, single=True)

    def next_batch(
        self,
        name: str,
        *,
        names: Any = None,
        count: int = 1,
        timeout: float | timedelta | None = None,
        completable: bool = False,
    ) -> Awaitable[list[Message[Any]]]:
        """Up to ``count`` messages of those there now, waiting for the first; ``[]`` after ``timeout`` seconds."""
        whole(count, f"count of queue wait {name!r}")
        return self._wait(name, names, count, timeout, completable, single=False)

    def _wait(
        self, name: str, names: Any, count: int, timeout: Any, completable: bool, *, single: bool
    ) -> Awaitable[Any]:
        dead = self._scope.gate()
        if dead is not None:
            return dead
        program = self._scope.machine.program
        if names is not None and not isinstance(names, list | tuple | set | frozenset):
            names = (names,)
        wanted = tuple(dict.fromkeys(program.queue_name(n) for n in names or ())) or None
        limit = None if timeout is None else micros(timeout, f"the timeout of queue wait {name!r}")
        return QueueCall(self._scope, name, wanted, count, limit, bool(completable), single)

    def send(self, queue: Any, body: Any = None) -> Awaitable[None]:
        """Put a message into one of the actor's own queues, once, however often this is replayed."""
        scope, machine = self._scope, self._scope.machine
        dead = scope.gate()
        if dead is not None:
            return dead
        name = machine.program.queue_name(queue)
        text = machine.codec.dumps(machine.program.check_body(name, body), what=f"message to queue {name!r}")
        entry, _, new = scope.enter(Kind.SEND, name)
        if new:
            machine.send(entry, text)
        return Done(scope, None, f"send {name!r}")
