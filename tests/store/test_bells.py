"""Bells go out after the commit, once, to whom they concern; a listener that lost its connection says so."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any
from uuid import UUID, uuid4

import pytest
from django.db import connections, transaction

from rivet_workflows.records import Finish, Lifecycle, Outgoing
from rivet_workflows.store import bells
from rivet_workflows.store.listening import Listener
from rivet_workflows.store.store import Store
from tests.store.conftest import TYPES, item

Make = Callable[..., Any]


@contextmanager
def listening(store: Store, **more: Any) -> Iterator[Listener]:
    """A listener that has begun to listen."""
    listener = Listener(store.alias, **more)
    try:
        if store.vendor == "postgresql":
            assert listener.wait(10).everything
        elif store.vendor == "sqlite":
            listener.wait(0)
        yield listener
    finally:
        listener.close()


def hear(listener: Listener) -> bells.Heard:
    heard = listener.wait(10)
    assert heard
    return heard


def ids_of(listener: Listener, count: int = 1) -> set[UUID]:
    found: set[UUID] = set()
    while len(found) < count:
        heard = hear(listener)
        found |= heard.work | heard.news
    return found


def test_a_bell_waits_for_the_commit_and_is_rung_once(store: Store) -> None:
    with listening(store, worker_id=1) as listener:
        one, two, three, four = (uuid4() for _ in range(4))
        with transaction.atomic():
            bells.ring(store.alias, [one])
            bells.ring(store.alias, [one, two])
            with transaction.atomic():
                bells.ring(store.alias, [four])
                transaction.set_rollback(True)
            with transaction.atomic():
                bells.ring(store.alias, [three])
            assert len(connections[store.alias].run_on_commit) == 2
            assert not listener.wait(0).work
        assert ids_of(listener, 3) == {one, two, three}
        with transaction.atomic():
            bells.ring(store.alias, [four])
            transaction.set_rollback(True)
        bells.ring(store.alias, [one])
        assert ids_of(listener) == {one}


def test_a_holder_hears_its_own_actors_and_others_do_not(store: Store, make: Make) -> None:
    if store.vendor != "postgresql":
        pytest.skip("one channel for all there")
    one, two = (store.register_worker("h", n, TYPES) for n in range(2))
    held = make()
    store.claim(one, TYPES, 10)
    free = make()
    with listening(store, worker_id=one) as first, listening(store, worker_id=two) as second:
        bells.ring(store.alias, [held.id, free.id])
        assert ids_of(first, 2) == {held.id, free.id}
        assert ids_of(second) == {free.id}
        assert not second.wait(0)


def test_news_go_to_those_who_wait_for_news(store: Store, claimed: Callable[..., Any]) -> None:
    one, two, three = claimed(3)
    with listening(store, news=True) as clients, listening(store, worker_id=10**9) as worker:
        items = [
            item(one, finish=Finish(Lifecycle.COMPLETED, 1)),
            item(two, sends=[Outgoing(three.actor_id, "q", "1")]),
            item(three),
        ]
        store.commit_group(items)
        bells.ring_items(store.alias, items)
        news: set[UUID] = set()
        work: set[UUID] = set()
        while not news:
            news |= hear(clients).news
        assert news == {one.actor_id}
        if store.vendor == "postgresql":
            store.query(
                "SELECT pg_notify('rivet', 'not a uuid'), pg_notify('rivet_w1000000000', %s)",
                [str(two.actor_id)],
            )
            while not work:
                work |= hear(worker).work
            assert work == {two.actor_id}


def test_a_wait_ends_when_told_to(store: Store) -> None:
    with listening(store, worker_id=1) as listener, ThreadPoolExecutor(1) as pool:
        future = pool.submit(listener.wait, 30)
        listener.wake()
        assert not future.result(10).work
        future = pool.submit(listener.wait, 30)
        listener.close()
        assert not future.result(10).work
        assert not listener.wait(5)


def test_after_a_lost_connection_everything_is_checked(store: Store) -> None:
    if store.vendor != "postgresql":
        pytest.skip("has no connection to lose")
    with listening(store, worker_id=1) as listener:
        ended = store.query(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE query LIKE 'LISTEN%%'"
        )
        assert ended
        assert hear(listener).everything
        actor_id = uuid4()
        bells.ring(store.alias, [actor_id])
        assert ids_of(listener) == {actor_id}


def test_another_connections_commit_is_heard_on_sqlite(pair: tuple[Store, Store]) -> None:
    left, right = pair
    if left.vendor != "sqlite":
        pytest.skip("SQLite's way")
    with listening(left, worker_id=1) as listener:
        listener.wait(0)
        with transaction.atomic(using=right.alias):
            right.create_actor("order", '["1"]')
            assert not listener.wait(0)
        assert hear(listener).everything
        assert not listener.wait(0)


def test_a_bell_that_fails_does_not_fail_the_caller(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*args: Any) -> None:
        from django.db import OperationalError

        raise OperationalError("gone")

    monkeypatch.setattr(bells, "_send", broken)
    with transaction.atomic():
        bells.ring(store.alias, [uuid4()])
    bells.ring(store.alias, [uuid4()])
