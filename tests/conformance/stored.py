"""The driver on a real database: each commit is written by the store, each machine is made of what the store reads.

The lists of the driver in memory are kept beside it, and must say the same: so what a rule of the engine records is
there, to the letter, after a trip through the tables.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable
from dataclasses import fields, replace
from operator import attrgetter
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

from rivet_workflows.engine import Turn
from rivet_workflows.models import Actor, Event, History, Message, Run, State, Timer
from rivet_workflows.records import Claimed, Commit, CommitItem, Entry, Outgoing, Release
from rivet_workflows.store import get_store
from rivet_workflows.worker.holding import Pending
from tests.engine.driver import ACTOR, START, Driver

TYPES = {"test": "v1"}
TABLES = (Actor, Run, State, History, Message, Timer, Event)
_seq = attrgetter("seq")


class StoredDriver(Driver):
    """On the suite's database, always replayed."""

    def __init__(self, run: Any, **options: Any) -> None:
        super().__init__(run, replay=True, **options)
        self.store = get_store("default")
        self.worker = self.store.register_worker("host", 1, TYPES)
        for table in TABLES:  # a test's driver before this one had the same actor
            table.objects.filter(**{"id" if table is Actor else "actor_id": ACTOR}).delete()
        with patch("rivet_workflows.store.actors.uuid7", return_value=ACTOR):
            self.store.create_actor("test", '["k"]', input=self.input)
        self._epoch = self._commit_no = 0
        #: Numbers of messages in the database, by those that the workflow knows.
        self._ids: dict[int, int] = {}
        self._committing = False
        #: What both say; where a test has changed the lists by hand since, the tables follow.
        self._agreed: tuple[list[Entry], int] = [], 1

    def claimed(self) -> Claimed:
        wanted = super().claimed()
        self._give_back(wanted, by_hand=self._position(wanted.entries, wanted.next_seq) != self._agreed)
        ((read,), _) = self.store.claim(self.worker, TYPES, 1)
        assert (read.name, read.key, read.input) == (wanted.name, wanted.key, wanted.input)
        assert (read.inflight, read.next_seq) == (wanted.inflight, wanted.next_seq)
        assert sorted(read.entries, key=_seq) == sorted(wanted.entries, key=_seq)
        self._epoch, self._commit_no = read.epoch, read.commit_no
        self._agreed = self._position(read.entries, read.next_seq)
        return replace(read, created_at=START)

    @staticmethod
    def _position(entries: Iterable[Entry], next_seq: int) -> tuple[list[Entry], int]:
        return sorted(map(copy.copy, entries), key=_seq), next_seq

    def _give_back(self, position: Claimed, *, by_hand: bool) -> None:
        run = Run.objects.get(actor_id=ACTOR)
        if run.owner_id is not None:
            (result,) = self.store.release([Release(ACTOR, run.epoch, 1, position.inflight)])
            assert result.outcome is Commit.OK
        Actor.objects.filter(id=ACTOR).update(input=position.input)
        if run.owner_id is None or by_hand:
            # In the place of the client's control operations, which have tests of their own.
            changed = {"inflight": position.inflight, "next_seq": position.next_seq, "blocked": 0}
            Run.objects.filter(actor_id=ACTOR).update(**changed)
            self.store.wake(ACTOR)
        if by_hand:
            History.objects.filter(actor_id=ACTOR).delete()
            names = [field.name for field in fields(Entry)]
            rows = ({name: getattr(entry, name) for name in names} for entry in position.entries)
            History.objects.bulk_create(History(actor_id=ACTOR, **row) for row in rows)

    def _put(self, queue: str, text: str, wants_reply: bool = False) -> int:
        number = super()._put(queue, text, wants_reply)
        if not self._committing:
            (sent,) = self.store.send([Outgoing(ACTOR, queue, text, wants_reply=wants_reply)])
            self._ids[number] = sent.id
        return number

    def _write(self, turn: Turn) -> None:
        self._committing = True
        super()._write(turn)
        self._committing = False

    def _written(self, turns: list[Turn]) -> None:
        pending = Pending(CommitItem(ACTOR, self._epoch, self._commit_no, self.next_seq, self.inflight))
        for turn in turns:
            pending.add(turn, SimpleNamespace(code="v1"))  # type: ignore[arg-type]
        item, known = pending.item, self._ids
        item.takes = [known[n] for n in item.takes]
        item.holds = [(known[n], seq) for n, seq in item.holds]
        item.unholds = [known[n] for n in item.unholds]
        item.completes = [(known[n], text) for n, text in item.completes]
        item.unanswered = [known[n] for n in item.unanswered]
        (result,) = self.store.commit_group([item])
        assert result.outcome is Commit.OK, result
        self._commit_no += 1
        self._agreed = self._position(self.rows, self.next_seq)
        if not self.over:
            self._compare_messages()

    def _compare_messages(self) -> None:
        stored = list(Message.objects.filter(actor_id=ACTOR).order_by("id"))
        known = set(self._ids.values())
        new = [message.id for message in stored if message.id not in known]
        self._ids |= zip((m.id for m in self.queue if m.id not in self._ids), new, strict=True)
        assert [(m.id, m.queue, m.body, m.holder_seq, m.wants_reply) for m in stored] == [
            (self._ids[m.id], m.queue, m.body, self.holders.get(m.id), m.wants_reply) for m in self.queue
        ]
