"""What users of other engines met, of the database: see ``tests/known_failures.md``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from rivet_workflows.models import Message, Timer, Worker
from rivet_workflows.records import Claimed, Commit, Look, Outgoing
from rivet_workflows.store.store import Store
from tests.store.conftest import TYPES, item

Make = Callable[..., Any]


def test_br_003_br_015_a_worker_of_the_same_name_renews_nothing_of_the_one_before(
    store: Store, claimed: Callable[..., list[Claimed]], worker: int
) -> None:
    claimed(2)
    Worker.objects.filter(id=worker).update(heartbeat_at=1)
    again = store.register_worker("host", 1, TYPES)
    store.heartbeat(again)
    assert again != worker
    assert store.dead_workers(1_000_000) == [worker]
    assert len(store.take_over(again, worker, TYPES, 10)) == 2


@pytest.mark.parametrize("number", [2**31 + 5, 2**53 + 1], ids=["2**31", "2**53"])
def test_br_116_numbers_may_grow_beyond_what_an_int_or_a_double_holds(
    store: Store, make: Make, number: int
) -> None:
    for model in (Message, Timer, Worker):
        begin_at(store, model._meta.db_table, number)
    actor = make()
    worker = store.register_worker("host", 1, TYPES)
    sent = store.send([Outgoing(actor.id, "work", str(n)) for n in range(2)])
    assert [row.id for row in sent] == [number, number + 1]
    ((one,), _) = store.claim(worker, TYPES, 10)
    (looked,) = store.look([Look(one.actor_id, ("work",), 10, one.epoch)])
    assert [message.id for message in looked.messages] == [number, number + 1]
    (result,) = store.commit_group([item(one, takes=[number], holds=[(number + 1, 1)])])
    assert result.outcome is Commit.OK
    assert list(Message.objects.values_list("id", "holder_seq")) == [(number + 1, 1)]
    assert store.forget_worker(worker)


def begin_at(store: Store, table: str, number: int) -> None:
    """The next row of the table gets this id."""
    if store.vendor == "postgresql":
        store.query(f"SELECT setval(pg_get_serial_sequence('{table}', 'id'), {number}, false)")
    elif store.vendor == "mysql":
        store.execute(f"ALTER TABLE {table} AUTO_INCREMENT = {number}")
    else:
        store.execute("DELETE FROM sqlite_sequence WHERE name = %s", [table])
        store.execute("INSERT INTO sqlite_sequence (name, seq) VALUES (%s, %s)", [table, number - 1])


def test_br_125_an_actor_that_was_destroyed_writes_nothing_into_its_successor(
    store: Store, worker: int
) -> None:
    first, _ = store.create_actor("order", '["same"]')
    ((held,), _) = store.claim(worker, TYPES, 10)
    assert store.destroy(first.id)
    second, created = store.create_actor("order", '["same"]')
    assert created
    late = item(held, events=[("e", "1")], sends=[Outgoing(second.id, "work", "1")])
    (result,) = store.commit_group([late])
    assert result.outcome is Commit.STALE
    assert store.events(second.id) == []
    assert not Message.objects.exists()
