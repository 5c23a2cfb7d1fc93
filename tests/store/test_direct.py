"""Statements that go to PostgreSQL by libpq's own call say and raise what they do by a cursor."""

from __future__ import annotations

import select
from collections.abc import Iterator
from contextlib import closing
from typing import Any
from uuid import UUID

import pytest
from django.db import DataError, OperationalError, connections, transaction

from rivet_workflows.models import Actor
from rivet_workflows.store.errors import Trouble, classify, sqlstate
from rivet_workflows.store.postgres.prepared import Prepared
from rivet_workflows.store.store import Store

pytestmark = [
    pytest.mark.requires_postgres,
    pytest.mark.django_db(transaction=True, available_apps=["rivet_workflows"]),
]


@pytest.fixture
def postgres(store: Store, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The store on a tuned connection in autocommit, as the worker's is; ``direct`` counts what went past cursors."""
    if store.vendor != "postgresql":
        pytest.skip("the suite's database is another")
    store.tune_connection()
    direct: list[str] = []
    run = Prepared.run

    def noted(self: Prepared, sql: str, values: Any, meanwhile: Any = None) -> Any:
        direct.append(sql)
        return run(self, sql, values, meanwhile)

    monkeypatch.setattr(Prepared, "run", noted)
    yield store, direct
    connections[store.alias].close()


def test_values_come_back_as_by_a_cursor(postgres: Any):
    store, direct = postgres
    sql = "SELECT %s::text, %s::bigint, %s::uuid, %s::text, %s::int[], 7 %% 4, now() IS NULL"
    given: list[Any] = ['a "b" \\ é', 2**40, UUID(int=7), None, "{1,2}"]

    ((*values,),) = store.fast(sql, given)
    with store.atomic():
        ((*within,),) = store.fast(sql, given)
    with connections[store.alias].cursor() as cursor:
        cursor.execute(sql, given)
        by_cursor = list(cursor.fetchone())
    assert direct == [sql, sql]

    assert values == within == by_cursor == ['a "b" \\ é', 2**40, UUID(int=7), None, [1, 2], 3, False]


def test_what_was_written_in_a_transaction_goes_with_it(postgres: Any):
    store, direct = postgres
    with store.atomic():
        store.fast("SELECT 1")
        store.fast(
            "INSERT INTO rivet_timer (type_id, actor_id, kind, due, priority) VALUES (1, %s, 1, 0, 0)",
            [UUID(int=7)],
        )
        transaction.set_rollback(True, using=store.alias)
    assert len(direct) == 2
    assert store.fast("SELECT 1 FROM rivet_timer WHERE actor_id = %s", [UUID(int=7)]) == []


def test_a_rollback_leaves_the_prepared_statements_of_the_connection_alone(postgres: Any):
    store, direct = postgres
    for _ in range(3):
        with store.atomic():
            store.fast("SELECT %s::int", [1])
            Actor.objects.using(store.alias).count()
            transaction.set_rollback(True, using=store.alias)
        assert store.fast("SELECT %s::int", [2]) == [(2,)]
    assert len(direct) == 6


def test_statements_that_somebody_has_deallocated_are_prepared_again(postgres: Any):
    store, _ = postgres
    for within in (False, True):
        assert store.fast("SELECT %s::int", [1]) == [(1,)]
        with connections[store.alias].cursor() as cursor:
            cursor.execute("DEALLOCATE ALL")
        if within:
            with pytest.raises(OperationalError) as gone, store.atomic():
                store.fast("SELECT %s::int", [2])
            assert classify(gone.value) is Trouble.AGAIN
        assert store.fast("SELECT %s::int", [3]) == [(3,)]


def test_a_statement_without_rows_gives_none(postgres: Any):
    store, _ = postgres
    assert store.fast("DELETE FROM rivet_timer WHERE id = %s", [-1]) == []


def test_its_errors_are_djangos_with_the_servers_code(postgres: Any):
    store, _ = postgres
    with pytest.raises(DataError) as divided:
        store.fast("SELECT 1 / %s::int", [0])
    assert sqlstate(divided.value) == "22012"
    with pytest.raises(DataError) as cut:
        store.fast("SELECT %s::text", ["before\0after"])
    assert classify(cut.value) is Trouble.CONTENT
    assert store.fast("SELECT %s::int", [1]) == [(1,)], "the connection is as good as before"


def test_a_connection_that_is_lost_says_so(postgres: Any):
    store, _ = postgres
    ((pid,),) = store.fast("SELECT pg_backend_pid()")
    other = connections[store.alias].copy(store.alias)
    with other.cursor() as cursor:
        cursor.execute("SELECT pg_terminate_backend(%s, 5000)", [pid])
    other.close()
    for _ in range(2):
        with pytest.raises(OperationalError) as lost:
            store.fast("SELECT %s::int", [1])
        assert classify(lost.value) is Trouble.LOST


def test_something_else_is_done_until_the_answer_is_there(postgres: Any):
    store, _ = postgres
    done: list[int] = []

    def meanwhile(socket: int) -> None:
        done.append(len(done))
        if len(done) > 3:
            select.select([socket], [], [])

    assert store.fast("SELECT pg_sleep(0.05), %s::int", [7], meanwhile)[0][1] == 7
    assert done == [0, 1, 2, 3]
    assert store.fast("SELECT %s::int", [8], lambda _: None) == [(8,)]


def test_errors_are_the_same_where_something_else_was_done_meanwhile(postgres: Any):
    store, _ = postgres

    def wait(socket: int) -> None:
        select.select([socket], [], [])

    with pytest.raises(DataError):
        store.fast("SELECT 1 / %s::int", [0], wait)
    assert store.fast("SELECT %s::int", [8], wait) == [(8,)]

    def cut(socket: int) -> None:
        with closing(connections[store.alias].copy()) as other, other.cursor() as cursor:
            cursor.execute("SELECT pg_terminate_backend(%s)", [pid])
        wait(socket)

    ((pid,),) = store.fast("SELECT pg_backend_pid()")
    with pytest.raises(OperationalError) as caught:
        store.fast("SELECT pg_sleep(60), %s::int", [7], cut)
    assert classify(caught.value) is Trouble.LOST


def test_what_no_buffer_holds_is_sent_whole_before_anything_else_is_done(postgres: Any):
    store, _ = postgres
    waits: list[bool] = []

    def wait(socket: int) -> None:
        readable, _, _ = select.select([socket], [], [], 20)
        waits.append(bool(readable))
        assert readable, "the server waits for the rest"

    assert store.fast("SELECT length(%s::text)", ["é" * 20_000_000], wait) == [(20_000_000,)]


def test_an_answer_that_comes_in_pieces_is_waited_for_without_stopping_the_process():
    """libpq waits for what has not arrived with the interpreter's lock held: heartbeats would stop, too."""
    arrived = ["the rows"]
    waits: list[int] = []

    class Connection:
        socket, flush = 7, staticmethod(lambda: 0)
        send_query_prepared = staticmethod(lambda *values: None)
        read = 0
        taken = 0

        def is_busy(self) -> bool:
            return self.read <= self.taken

        def consume_input(self) -> None:
            self.read += 1

        def get_result(self) -> Any:
            assert not self.is_busy(), "it is not there yet"
            self.taken += 1
            return arrived.pop() if arrived else None

    prepared = object.__new__(Prepared)
    prepared._pgconn = Connection()  # type: ignore[assignment]
    assert prepared._send_and_wait(b"name", [], waits.append) == "the rows"
    assert waits == [7, 7]


def test_where_there_is_no_poll_a_worker_waits_for_the_server(postgres: Any, monkeypatch: pytest.MonkeyPatch):
    store, direct = postgres
    monkeypatch.delattr(select, "poll")
    assert not store.works_apart
    assert store.fast("SELECT 1", (), lambda _: pytest.fail("it cannot wait for two things")) == [(1,)]
    assert direct == ["SELECT 1"]
