"""How many statements each call costs, through Python and REST. Beginnings and ends of transactions count too, and
bells that are statements of their own. None of them waits for a worker: there is none here."""

from __future__ import annotations

from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from rivet_workflows import Actor, Queue, action, client
from rivet_workflows.store import get_store

pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.skipif(connection.vendor == "mysql", reason="counted on PostgreSQL and SQLite"),
]


class Counter(Actor):
    state = {"n": 0}
    q = Queue()

    async def run(self, ctx): ...

    @action
    def add(self, c):
        c.state["n"] += 1
        return c.state["n"]

    @action(read_only=True)
    def get(self, c):
        return c.state["n"]


@pytest.fixture
def counter():
    return client.create(Counter, "one")


@pytest.fixture
def statements(monkeypatch):
    """The statements of a call: Django's, and what the store runs beside Django's cursors."""

    def of(call):
        store: Any = get_store()
        beside: list[str] = []
        if hasattr(store, "fast"):
            fast = store.fast

            def counted(sql, *values):
                beside.append(sql)
                return fast(sql, *values)

            monkeypatch.setattr(store, "fast", counted)
        with CaptureQueriesContext(connection) as captured:
            call()
        monkeypatch.undo()
        return [query["sql"] for query in captured.captured_queries] + beside

    return of


def post(api, url, status, **body):
    answer = api.post(f"/rivet/{url}", body, format="json")
    assert answer.status_code == status, answer.content


def put(api, status, key):
    answer = api.put("/rivet/actors/", {"name": "counter", "key": key}, format="json")
    assert answer.status_code == status, answer.content


CALLS = {
    "send": (1, 4, lambda one, api: one.send("q", 1)),
    "send with a dedupe key": (7, 8, lambda one, api: one.send("q", 1, dedupe_key="a")),
    "send by REST": (2, 5, lambda one, api: post(api, f"actors/{one.actor_id}/queues/q/", 202, body=1)),
    "send by REST to a name and key": (
        2, 5, lambda one, api: post(api, "send/counter/q/", 202, key="one", body=1)
    ),
    "call": (5, 5, lambda one, api: one.add()),
    "call by REST": (6, 6, lambda one, api: post(api, f"actors/{one.actor_id}/actions/add/", 200)),
    "call by REST with a name and key": (
        6, 6, lambda one, api: post(api, "call/counter/add/", 200, key="one")
    ),
    "call, read only": (2, 2, lambda one, api: one.get()),
    "call, read only, by REST": (
        3, 3, lambda one, api: post(api, f"actors/{one.actor_id}/actions/get/", 200)
    ),
    "get": (1, 1, lambda one, api: client.get(Counter, "one")),
    "get_or_create": (1, 1, lambda one, api: client.get_or_create(Counter, "one")),
    "get_or_create, made": (2, 9, lambda one, api: client.get_or_create(Counter, "two")),
    "create": (1, 8, lambda one, api: client.create(Counter, "two")),
    "get_or_create by REST": (5, 5, lambda one, api: put(api, 200, "one")),
    "get_or_create by REST, made": (7, 14, lambda one, api: put(api, 201, "two")),
}  # fmt: skip


@pytest.mark.parametrize("name", CALLS)
def test_a_call_costs_no_more_statements_than_it_says(name, counter, api, statements):
    on_postgres, on_sqlite, call = CALLS[name]
    found = statements(lambda: call(counter, api))
    assert len(found) == (on_postgres if connection.vendor == "postgresql" else on_sqlite), "\n".join(found)


@pytest.mark.parametrize("name", ["send", "call", "get_or_create", "call, read only, by REST"])
def test_a_call_costs_the_same_beside_many_messages_and_actors(name, counter, api, statements):
    call = CALLS[name][2]
    alone = len(statements(lambda: call(counter, api)))
    for n in range(30):
        client.create(Counter, n).send("q", n)
        counter.send("q", n)
    assert len(statements(lambda: call(counter, api))) == alone
