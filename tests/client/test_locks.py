"""Who waits for whom: an action against other actions, a worker's commits and senders."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from django.db import connection, connections, transaction

from rivet_workflows import ActorBusy, client
from rivet_workflows.models import Run, State
from tests.client.shop import Cart

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture(autouse=True)
def rows_can_be_locked(settings):
    if connection.vendor == "sqlite":
        pytest.skip("SQLite locks the whole database, never a row")
    settings.RIVET_WORKFLOWS = {"ACTION_LOCK_TIMEOUT": 0.2}


@contextmanager
def locked(model, actor_id) -> Iterator[None]:
    """Another connection holds the actor's row of this table."""
    held, release = threading.Event(), threading.Event()

    def hold():
        try:
            with transaction.atomic():
                model.objects.select_for_update().get(pk=actor_id)
                held.set()
                release.wait(20)
        finally:
            connections.close_all()

    holder = threading.Thread(target=hold)
    holder.start()
    assert held.wait(20)
    try:
        yield
    finally:
        release.set()
        holder.join()


def test_an_action_waits_a_bounded_time_for_its_actor():
    cart = client.create(Cart, 1)
    with locked(State, cart.actor_id), pytest.raises(ActorBusy, match="try again"):
        cart.add({"sku": "a"})
    assert cart.add({"sku": "a"}) == 1


def test_a_busy_action_does_not_spoil_the_callers_transaction():
    one, other = client.create(Cart, 1), client.create(Cart, 2)
    with locked(State, one.actor_id), transaction.atomic():
        other.add({"sku": "a"})
        with pytest.raises(ActorBusy):
            one.add({"sku": "a"})
        other.add({"sku": "b"})
    assert len(other.get_lines()) == 2


def test_reading_and_sending_never_wait():
    cart = client.create(Cart, 1)
    with locked(State, cart.actor_id), locked(Run, cart.actor_id):
        assert cart.get_lines() == []
        assert cart.send("notes", "x").status == "queued"
        assert str(cart.status()) == "idle"
        assert cart.history() == []


def test_an_action_that_only_touches_state_does_not_meet_the_workers_row():
    class Counter(Cart, name="counter"):
        pass

    counter = client.create(Counter, 1)
    with locked(Run, counter.actor_id):
        counter.note("a message takes no lock")
        assert counter.who()[0] == "1"
        assert counter.call("aadd_slowly", {"sku": "a"}) == 1
        with pytest.raises(ActorBusy):
            counter.add({"sku": "broadcasts, so its events must be numbered"})
