"""Waiting for an actor: rung awake, and polling behind the bell."""

from __future__ import annotations

import threading
from typing import Any
from uuid import uuid4

import pytest

from rivet_workflows import client
from rivet_workflows.client import bells, waiting
from rivet_workflows.client.twins import pool
from rivet_workflows.records import Blocked, Lifecycle
from rivet_workflows.store import get_store
from rivet_workflows.store.rows import Edit
from tests.client.shop import Order


@pytest.fixture(autouse=True)
def no_threads_left():
    yield
    bells.shutdown()
    pool.shutdown()


def test_a_bell_ends_a_wait_long_before_the_next_look(monkeypatch):
    monkeypatch.setattr(waiting, "FIRST_PAUSE", 60)
    monkeypatch.setattr(waiting, "LONGEST_PAUSE", 60)
    actor_id, looked = uuid4(), threading.Event()
    done: list[str] = []

    def look():
        looked.set()
        return done[0] if done else None

    def finish():
        assert looked.wait(10)
        done.append("value")
        bells.spread([actor_id])

    other = threading.Thread(target=finish)
    other.start()
    assert waiting.wait_for(actor_id, look, 30) == "value"
    other.join()


def test_without_any_bell_it_looks_again_by_itself(monkeypatch):
    monkeypatch.setattr(waiting, "FIRST_PAUSE", 0.001)
    answers = iter([None, None, None, "value"])
    assert waiting.wait_for(uuid4(), lambda: next(answers), 30) == "value"


def test_pauses_grow_to_a_bound_and_stop_at_the_deadline():
    pauses = waiting._Pauses(None)
    taken = [pauses.next() for _ in range(30)]
    assert taken[0] == waiting.FIRST_PAUSE
    assert taken[-1] == waiting.LONGEST_PAUSE
    pauses.rung()
    assert pauses.next() == waiting.FIRST_PAUSE
    assert waiting._Pauses(0).next() is None


@pytest.mark.django_db(transaction=True)
class TestWithDatabase:
    """The bell of the database itself, from a thread that stands for another process."""

    def finish(self, actor_id):
        def change(run):
            return Edit(blocked=Blocked.OVER, lifecycle=Lifecycle.COMPLETED, finished_at=1, wake=False)

        get_store().edit_run(actor_id, change)
        bells.announce(news=[actor_id])

    @pytest.mark.parametrize("lost", [False, True], ids=["rung", "bell lost"])
    def test_a_result_that_comes_while_waiting(self, monkeypatch, lost):
        connection: Any = get_store().connection
        if connection.vendor == "sqlite" and connection.is_in_memory_db():
            pytest.skip("two threads on one database in memory refuse each other")
        if not lost:
            monkeypatch.setattr(waiting, "FIRST_PAUSE", 60)
            monkeypatch.setattr(waiting, "LONGEST_PAUSE", 60)
        else:
            monkeypatch.setattr(bells, "announce", lambda **_: None)
        order = client.create(Order, 1)
        looked = threading.Event()
        end = order._end

        def look():
            found = end()
            looked.set()
            return found

        future = pool.submit(waiting.wait_for, order.actor_id, look, 30)
        assert looked.wait(10)
        self.finish(order.actor_id)
        assert future.result(30) is not None
        assert order.result() is None

    def test_the_thread_ends_when_nobody_waits(self, monkeypatch):
        monkeypatch.setattr(bells, "LINGER", 0.01)
        monkeypatch.setattr(bells, "CHECK", 0.01)
        bells.shutdown()  # the one of an earlier test may still linger, with the times of then
        actor_id = uuid4()
        callback = bells.listen(actor_id, lambda: None)
        thread = bells._exchange._thread
        assert thread is not None
        bells.unlisten(actor_id, callback)
        thread.join(10)
        assert not thread.is_alive()
        assert bells._exchange._thread is None
