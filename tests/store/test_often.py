"""What callers run often is planned once per connection of the project's, where that can do no harm; else it is run as
it is, and nobody can tell."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from enum import Enum
from typing import Any
from urllib.parse import urlsplit

import pytest
from django.db import connections, transaction

from rivet_workflows.records import Outgoing
from rivet_workflows.store.errors import sqlstate
from rivet_workflows.store.postgres import often
from rivet_workflows.store.postgres.often import Often
from rivet_workflows.store.store import Store
from tests.faults.pooling import pgbouncer, pooled

pytestmark = pytest.mark.requires_postgres


@pytest.fixture
def project(store: Store) -> Iterator[Any]:
    """The store on a new connection that nobody tuned."""
    if store.vendor != "postgresql":
        pytest.skip("the suite's database is another")
    connections[store.alias].close()
    yield store
    connections[store.alias].close()


@pytest.fixture
def actor(project: Any, make: Any) -> Any:
    made = make()
    connections[project.alias].close()
    return made.id


def prepared(store: Any) -> list[str]:
    return [name for (name,) in store.query("SELECT name FROM pg_prepared_statements ORDER BY name")]


def send(store: Any, actor_id: Any, times: int = 1) -> None:
    for _ in range(times):
        store.send([Outgoing(actor_id, "q", "1")])


def test_a_connection_that_sends_once_or_twice_prepares_nothing(project: Any, actor: Any):
    send(project, actor, often.FIRST)
    assert prepared(project) == []
    send(project, actor)
    assert len(prepared(project)) == 1
    assert project.queue_size(actor) == often.FIRST + 1


def test_what_is_sent_made_and_found_is_the_same_prepared_or_not(project: Any):
    rows = [
        project.create_actor("order", f'["{n}"]', input='{"a": "\\u00e9\\""}', state="1") for n in range(6)
    ]
    assert all(made for _, made in rows)
    assert [project.create_actor("order", f'["{n}"]') for n in range(6)] == [(row, False) for row, _ in rows]
    assert [project.find("order", f'["{n}"]') for n in range(6)] == [row for row, _ in rows]
    assert [project.get(row.id) for row, _ in rows] == [row for row, _ in rows]
    assert len(prepared(project)) == 3


def test_in_a_transaction_it_is_run_as_it_is(project: Any, actor: Any):
    with transaction.atomic():
        send(project, actor, 5)
        assert prepared(project) == []
    send(project, actor, 5)
    with transaction.atomic():
        project.execute("DEALLOCATE ALL")
        send(project, actor, 5)
        transaction.set_rollback(True)
    assert project.queue_size(actor) == 10


@pytest.mark.parametrize("gone", ["DEALLOCATE ALL", "DISCARD ALL"])
def test_nothing_is_lost_where_the_session_forgets_what_was_prepared(project: Any, actor: Any, gone: str):
    for _ in range(2 * often.LOSSES):
        send(project, actor, 5)
        project.execute(gone)
    assert project.queue_size(actor) == 10 * often.LOSSES


def test_where_each_statement_meets_another_session_it_is_given_up(
    project: Any, actor: Any, monkeypatch: Any
):
    prepare = Often._prepare

    def elsewhere(self: Often, cursor: Any, sql: str) -> str:
        name = prepare(self, cursor, sql)
        cursor.execute("DEALLOCATE ALL")
        return name

    monkeypatch.setattr(Often, "_prepare", elsewhere)
    send(project, actor, often.FIRST + often.LOSSES + 1)
    monkeypatch.undo()
    send(project, actor, 5)
    assert prepared(project) == []
    assert project.queue_size(actor) == often.FIRST + often.LOSSES + 6


@pytest.mark.skipif(pgbouncer() is None, reason="PgBouncer is not installed")
def test_nothing_is_lost_or_doubled_behind_a_pooler_that_the_settings_do_not_tell_of(
    project: Any, actor: Any, monkeypatch: Any
):
    connection = connections[project.alias]
    there = connection.settings_dict
    address = f"{there['HOST'] or '127.0.0.1'}:{there['PORT'] or 5432}"
    url = f"postgres://{there['USER']}@{address}/{there['NAME']}"
    with pooled(url) as url, monkeypatch.context() as through:
        through.setitem(there, "HOST", "127.0.0.1")
        through.setitem(there, "PORT", str(urlsplit(url).port))

        def sender(_: int) -> None:
            try:
                send(project, actor, 40)
                project.find("order", "[]")
            finally:
                connections[project.alias].close()

        with ThreadPoolExecutor(6) as pool:
            list(pool.map(sender, range(6)))
    assert project.queue_size(actor) == 240


def test_whoever_watches_the_queries_sees_them(project: Any, actor: Any):
    send(project, actor, 5)
    seen: list[str] = []

    def watch(execute: Any, sql: str, params: Any, many: bool, context: Any) -> Any:
        seen.append(sql)
        return execute(sql, params, many, context)

    with connections[project.alias].execute_wrapper(watch):
        send(project, actor)
    assert len(seen) == 1
    assert "INSERT INTO rivet_message" in seen[0]


def test_a_caller_that_waits_for_a_lock_can_be_ended_and_others_go_on(project: Any, actor: Any):
    send(project, actor, 5)
    project.execute("SET statement_timeout = '100ms'")
    locked, done = threading.Event(), threading.Event()

    def hold() -> None:
        with transaction.atomic():
            connections["default"].cursor().execute("LOCK TABLE rivet_message IN ACCESS EXCLUSIVE MODE")
            locked.set()
            done.wait(30)
        connections["default"].close()

    holder = threading.Thread(target=hold)
    holder.start()
    try:
        assert locked.wait(10)
        with pytest.raises(Exception, match="statement timeout") as caught:
            send(project, actor)
        assert sqlstate(caught.value) == "57014"
    finally:
        done.set()
        holder.join()
    send(project, actor)
    assert project.queue_size(actor) == 6


def test_tables_may_change_under_a_connection(project: Any, actor: Any):
    assert [project.reply(1) for _ in range(5)] == [None] * 5
    project.execute("ALTER TABLE rivet_reply ALTER status TYPE bigint")
    try:
        assert [project.reply(1) for _ in range(5)] == [None] * 5
    finally:
        project.execute("ALTER TABLE rivet_reply ALTER status TYPE smallint")
    assert [project.reply(1) for _ in range(5)] == [None] * 5


def test_a_value_that_no_column_takes_is_the_same_error_or_none(project: Any):
    assert [project.reply(2**63) for _ in range(5)] == [None] * 5


def test_each_statement_goes_through_the_connection_s_own_cursor(project: Any, actor: Any, monkeypatch: Any):
    """It sets sessions up for tenants, in some projects."""
    connection: Any = connections[project.alias]
    opened: list[int] = []
    cursor = connection._cursor

    def counted(name: str | None = None) -> Any:
        opened.append(1)
        return cursor(name)

    monkeypatch.setattr(connection, "_cursor", counted)
    for times in range(1, 7):
        before = len(opened)
        send(project, actor)
        assert len(opened) > before, times


def test_a_connection_that_was_cut_is_seen_by_its_health_check(project: Any, actor: Any, monkeypatch: Any):
    connection: Any = connections[project.alias]
    send(project, actor, 5)
    monkeypatch.setitem(connection.settings_dict, "CONN_HEALTH_CHECKS", True)
    monkeypatch.setattr(connection, "health_check_enabled", True)
    ((pid,),) = project.query("SELECT pg_backend_pid()")

    def cut() -> None:
        connections[project.alias].cursor().execute("SELECT pg_terminate_backend(%s, 10000)", [pid])
        connections[project.alias].close()

    cutter = threading.Thread(target=cut)
    cutter.start()
    cutter.join()
    connection.health_check_done = False
    send(project, actor, 5)
    assert project.queue_size(actor) == 10


def test_a_text_that_is_also_an_enum_is_that_text_prepared_or_not(project: Any, actor: Any):
    class Name(str, Enum):  # noqa: UP042  of the older kind, whose str() is its name
        ORDERS = "orders"

    for _ in range(5):
        project.send([Outgoing(actor, Name.ORDERS, "1")])
    assert {message.queue for message in project.messages(actor)} == {"orders"}
