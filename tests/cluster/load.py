"""A load to hurt workers and databases under, and the count in the end: nothing lost, nothing doubled.

Senders create actors of the kind ``errand`` and send each its messages, as a web process would: in transactions with a
row of their own, tried again with the same dedupe key when the database fails them. When all actors are through,
:meth:`Load.check` compares what was asked with what was done: in the ledger, which is a file outside every database,
in the states, in rows that atomic steps wrote, and in the senders' own rows.

A step's function may run again only when its first call was cut off. So for every second call of one idempotency key
there has to be a :class:`Harm`: something that was done to the process of the first between the two. Atomic steps
apart, where the database itself is hurt: what breaks their transaction takes back what they did, and they are called
again.
"""

from __future__ import annotations

import re
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeVar

from tests.cluster.cluster import Call, read_ledger
from tests.waiting import until

T = TypeVar("T")

#: Steps of one errand beside those of its messages: first, two branches, last; and two of its child's.
OTHER_STEPS, STEPS_OF_CHILD, STEPS_PER_MESSAGE = 4, 2, 2
#: How the ledger's notes of atomic steps begin.
ATOMIC = "effect"
_NONE: Mapping[str, int] = MappingProxyType({})
#: Seconds that a worker may take to notice, after it was stopped, that its lease is lost.
NOTICES = 1.0


@dataclass(frozen=True, slots=True)
class Harm:
    """What befell a process, by the machine's clock. A kill has no end: the process calls nothing more."""

    pid: int
    begin: float
    end: float

    def cut_off(self, first: Call, second: Call) -> bool:
        """Does it tell why ``second`` was called, though ``first`` had been?"""
        concerned = self.pid in (first.pid, second.pid)
        return concerned and self.begin <= second.at and first.at <= self.end + NOTICES


def lost_leases(log: Path) -> list[Harm]:
    """Workers that say they have lost their lease, as one on a machine that is too busy does."""
    lines = re.findall(r"^([\d.]+) (\d+) ERROR .*has lost its lease", log.read_text(), re.MULTILINE)
    return [Harm(int(pid), float(at), float(at)) for at, pid in lines]


class Load:
    """Senders on threads, from :meth:`start` to :meth:`finish`."""

    def __init__(self, folder: Path, *, senders: int = 2, messages: int = 4, every: float = 0.05) -> None:
        self.folder = folder
        self.messages = messages
        self.every = every
        #: Keys of the actors that were created, by sender.
        self.keys: dict[int, list[str]] = {n: [] for n in range(senders)}
        #: How often the database failed a sender.
        self.refused = 0
        self.failed: list[BaseException] = []
        self._ending = threading.Event()
        self._threads = [threading.Thread(target=self._send, args=[n], daemon=True) for n in self.keys]

    def start(self) -> None:
        from django.db import connection

        with connection.cursor() as cursor:
            cursor.execute("CREATE TABLE effect (actor varchar(200), n integer)")
            cursor.execute("CREATE TABLE sent (actor varchar(200), n integer)")
        for thread in self._threads:
            thread.start()

    @property
    def created(self) -> int:
        return sum(map(len, self.keys.values()))

    def finish(self, timeout: float = 240) -> None:
        """Let the senders end, and wait until every actor is through. Raises AssertionError."""
        self._ending.set()
        for thread in self._threads:
            thread.join(timeout)
            assert not thread.is_alive(), "a sender does not get through"
        assert not self.failed, self.failed

        def through() -> bool:
            from django.db.models import Q

            from rivet_workflows.models import Actor
            from rivet_workflows.records import Lifecycle

            # Others may have actors of their own beside.
            mine = Actor.objects.filter(Q(name="errand") | Q(name="slow_steps", key__startswith='["of-'))
            done = mine.filter(lifecycle=int(Lifecycle.COMPLETED))
            return persist(done.count) == 2 * self.created

        try:
            until(through, "all actors are through", timeout)
        except AssertionError as error:
            raise AssertionError(f"{error}: {self._left()}") from None

    def _left(self) -> list[str]:
        from rivet_workflows.models import Actor, Run
        from rivet_workflows.records import Lifecycle

        left = Actor.objects.exclude(lifecycle=int(Lifecycle.COMPLETED))[:10]
        runs = Run.objects.in_bulk([actor.id for actor in left])
        return [
            f"{actor.name}/{actor.key}: owner {run.owner_id}, epoch {run.epoch}, blocked {run.blocked}, "
            f"in flight {run.inflight[:300]}"
            for actor in left
            for run in [runs[actor.id]]
        ]

    def _send(self, number: int) -> None:
        from django.db import connection

        try:
            while not self._ending.wait(self.every):
                self._one(f"{number}-{len(self.keys[number])}", number)
        except BaseException as error:
            self.failed.append(error)
        finally:
            connection.close()

    def _one(self, key: str, number: int) -> None:
        from rivet_workflows import client

        handle = self._persist(lambda: client.get_or_create("errand", key, input={"messages": self.messages}))
        self.keys[number].append(key)
        for n in range(self.messages):
            self._persist(lambda n=n: self._deliver(handle, n))  # type: ignore[misc]

    def _deliver(self, handle: Any, n: int) -> None:
        """One message, with a row of the sender's own in the same transaction."""
        from django.db import connection, transaction

        with transaction.atomic(), connection.cursor() as cursor:
            where: tuple[str, int] = (str(handle.key), n)
            cursor.execute("SELECT count(*) FROM sent WHERE actor = %s AND n = %s", where)
            if cursor.fetchone()[0] == 0:
                cursor.execute("INSERT INTO sent (actor, n) VALUES (%s, %s)", where)
                handle.send("work", n, dedupe_key=str(n))

    def _persist(self, ask: Callable[[], T]) -> T:
        def refused() -> None:
            self.refused += 1

        return persist(ask, refused)

    # -- the count

    def check(
        self, harms: Sequence[Harm] = (), *, database_hurt: bool = False, beside: Mapping[str, int] = _NONE
    ) -> dict[str, Any]:
        """What was done, when all are through. Raises AssertionError where it is not what was asked.

        ``beside``: the actors that others have created, and the steps of each.
        """
        from rivet_workflows import client

        keys = [key for keys in self.keys.values() for key in keys]
        numbers = list(range(self.messages))
        ids = dict(beside)
        for key in keys:
            handle = client.get("errand", key)
            state = handle.call("get_state")
            assert state == {"seen": numbers, "count": 2}, f"{key}: {state}"
            assert handle.result(timeout=0) == self.messages + 1
            child = client.get("slow_steps", f"of-{key}")
            ids[str(handle.actor_id)] = OTHER_STEPS + STEPS_PER_MESSAGE * self.messages
            ids[str(child.actor_id)] = STEPS_OF_CHILD
        for table in ("effect", "sent"):
            assert _rows(table) == sorted((key, n) for key in keys for n in numbers), table
        calls = read_ledger(self.folder / "ledger")
        return {
            "actors": len(ids),
            "refused": self.refused,
            **_count(calls, ids, harms, ATOMIC if database_hurt else None),
        }


def _rows(table: str) -> list[tuple[str, int]]:
    from django.db import connection

    with connection.cursor() as cursor:
        cursor.execute(f"SELECT actor, n FROM {table}")
        return sorted(cursor.fetchall())


def _count(
    calls: Iterable[Call], wanted: dict[str, int], harms: Sequence[Harm], excused: str | None
) -> dict[str, int]:
    """The ledger against the number of steps that each actor has. ``excused``: how the note of a call begins that
    may be made again."""
    by_key: dict[str, list[Call]] = defaultdict(list)
    for call in sorted(calls, key=lambda call: call.at):
        by_key[call.key].append(call)
    found: dict[str, int] = defaultdict(int)
    for some in by_key.values():
        found[some[0].actor_id] += 1
    wrong = {actor: (n, found.get(actor)) for actor, n in wanted.items() if found.get(actor) != n}
    assert not wrong, f"steps per actor, wanted and found: {wrong}"
    assert found.keys() == wanted.keys(), f"calls for actors that nobody made: {found.keys() - wanted.keys()}"
    for some in by_key.values():
        for first, second in pairwise(some):
            by_itself = excused is not None and first.note.startswith(excused)
            assert by_itself or any(harm.cut_off(first, second) for harm in harms), (
                f"called again without a cause: {first}, then {second}"
            )
    again = sum(len(some) - 1 for some in by_key.values())
    return {"steps": len(by_key), "calls": len(by_key) + again, "again": again}


def persist(ask: Callable[[], T], refused: Callable[[], None] = lambda: None, timeout: float = 120) -> T:
    """Ask until the database answers, on a new connection each time: what a caller outside has to do."""
    from django.db import InterfaceError, InternalError, OperationalError, connection

    end = time.monotonic() + timeout
    while True:
        try:
            return ask()
        except (OperationalError, InterfaceError, InternalError):
            refused()
            if time.monotonic() > end:
                raise
            connection.close()
            time.sleep(0.05)
