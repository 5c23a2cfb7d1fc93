"""Doorbells: telling other processes, after a commit, that there is something to look for.

A bell carries an actor's id and nothing else, may be lost, and is never the only way: who waits also polls.
Two kinds. *Work*: an actor may have something to do; it goes to the worker that holds the actor, on a channel
of that worker's own, or to all of them (else each send would wake every worker). *News*: something was
committed that a client may wait for, an answer, an end, an event.

On PostgreSQL bells are NOTIFY. On SQLite a listener watches ``PRAGMA data_version``; on MariaDB there is no
bell between processes. Inside one process bells are rung directly, whatever the database.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from uuid import UUID

from django.db import Error, connections, transaction
from django.db.backends.base.base import BaseDatabaseWrapper

from rivet_workflows.records import CommitItem
from rivet_workflows.store.base import chunks

logger = logging.getLogger("rivet_workflows.store")

#: Rung like an actor: schedules were set, and workers look again when the next is due.
SCHEDULES = UUID(int=0)

WORK_CHANNEL = "rivet"
NEWS_CHANNEL = "rivet_r"


def worker_channel(worker_id: int) -> str:
    """The channel on which the worker hears of actors it holds."""
    return f"rivet_w{worker_id}"


#: An actor that has just been released or claimed gets its bell on the channel of before; polling finds it.
_NOTIFY = (
    "SELECT pg_notify(coalesce((SELECT 'rivet_w' || r.owner_id FROM rivet_run r WHERE r.actor_id = w.id), 'rivet'),"
    " w.id::text) FROM unnest(%s::uuid[]) w(id)"
)
#: The same inside a statement that has the run row at hand as ``r``; see :func:`in_statement`.
TO_HOLDER = "pg_notify(coalesce('rivet_w' || r.owner_id, 'rivet'), r.actor_id::text)"
#: Likewise for an actor that is new, as ``a``: nobody holds it.
TO_ALL = "pg_notify('rivet', a.id::text)"
_NOTIFY_NEWS = "SELECT pg_notify('rivet_r', w.id) FROM unnest(%s::text[]) w(id)"


@dataclass(slots=True)
class Heard:
    """What was rung since the last time. ``everything``: something was, or may have been; check all."""

    work: set[UUID] = field(default_factory=set)
    news: set[UUID] = field(default_factory=set)
    everything: bool = False

    def __bool__(self) -> bool:
        return self.everything or bool(self.work) or bool(self.news)


class Mailbox:
    """Bells inside this process: what arrives is kept until it is taken."""

    def __init__(self) -> None:
        self._heard = Heard()
        self._lock = threading.Lock()
        self.arrived = threading.Event()

    def put(self, work: Iterable[UUID] = (), news: Iterable[UUID] = (), everything: bool = False) -> None:
        with self._lock:
            self._heard.work.update(work)
            self._heard.news.update(news)
            self._heard.everything = self._heard.everything or everything
        self.arrived.set()

    def take(self) -> Heard:
        with self._lock:
            self.arrived.clear()
            heard, self._heard = self._heard, Heard()
        return heard


_mailboxes: dict[str, set[Mailbox]] = {}
_guard = threading.Lock()


def subscribe(alias: str) -> Mailbox:
    """A mailbox for what is rung in this process on this database."""
    mailbox = Mailbox()
    with _guard:
        _mailboxes.setdefault(alias, set()).add(mailbox)
    return mailbox


def unsubscribe(alias: str, mailbox: Mailbox) -> None:
    with _guard:
        _mailboxes.get(alias, set()).discard(mailbox)


def ring(alias: str, work: Iterable[UUID] = (), news: Iterable[UUID] = ()) -> None:
    """Ring for these actors once the caller's transaction on ``alias`` has committed; at once outside one.

    However often it is called in one transaction, the bells go out together. A bell that fails harms nobody:
    the database's errors are logged and the wake rows are found by polling.
    """
    connection = connections[alias]
    if not connection.in_atomic_block:
        _ring_now(alias, set(work), set(news))
        return
    # Kept on the last hook of this transaction, so that rolled-back savepoints drop theirs with their hooks.
    hooks = connection.run_on_commit
    last = hooks[-1][1] if hooks and set(hooks[-1][0]) == set(connection.savepoint_ids) else None
    if isinstance(last, _Pending):
        last.work.update(work)
        last.news.update(news)
    else:
        transaction.on_commit(_Pending(alias, set(work), set(news)), using=alias, robust=True)


def in_statement(connection: BaseDatabaseWrapper) -> bool:
    """Should a statement that writes for others also ring for them? PostgreSQL delivers that with its commit, so there
    is no other round trip, and no other commit. Inside a transaction the holder may be another by its end: it rings
    after that (:func:`ring`)."""
    return connection.vendor == "postgresql" and not connection.in_atomic_block


class _Pending:
    """The bells of a transaction that is open."""

    def __init__(self, alias: str, work: set[UUID], news: set[UUID]) -> None:
        self.alias = alias
        self.work = work
        self.news = news

    __qualname__ = "rivet_workflows.store.bells.ring"  # how Django's log names a hook that failed

    def __call__(self) -> None:
        _ring_now(self.alias, self.work, self.news)


def ring_items(alias: str, items: Sequence[CommitItem]) -> None:
    """Ring for what these committed items left for others: receivers of messages, and waiting clients. (On PostgreSQL
    these have heard already: the statement of the commit rings for them.)"""
    work = {outgoing.actor_id for item in items for outgoing in item.sends}
    if any(item.schedules for item in items):
        work.add(SCHEDULES)
    rung = connections[alias].vendor == "postgresql"
    news = set() if rung else {item.actor_id for item in items if item.is_news()}
    if work or news:
        _ring_now(alias, work, news)


def _ring_now(alias: str, work: set[UUID], news: set[UUID]) -> None:
    connection = connections[alias]
    try:
        _send(connection, alias, work, news)
    except Error:
        # What was committed is committed: its writer must not hear that it failed.
        logger.warning("A bell could not be rung; polling will find what it announced", exc_info=True)


def _send(connection: BaseDatabaseWrapper, alias: str, work: set[UUID], news: set[UUID]) -> None:
    if connection.vendor == "postgresql":
        with connection.cursor() as cursor:
            for some in chunks(sorted(work)):
                cursor.execute(_NOTIFY, [list(some)])
            if news:
                cursor.execute(_NOTIFY_NEWS, [[str(actor_id) for actor_id in sorted(news)]])
        return
    with _guard:
        mailboxes = list(_mailboxes.get(alias, ()))
    for mailbox in mailboxes:
        mailbox.put(work, news)
