"""``atomic=True``: a step's own writes and its record are one commit, whatever happens in between."""

from __future__ import annotations

from typing import Any

import pytest
from django.db import connections, transaction

from rivet_workflows import Actor, action, client
from rivet_workflows.conf import settings
from tests import sidedb
from tests.sidedb import SideDatabase
from tests.worker.test_shell import Workers, workers

__all__ = ["workers"]
pytestmark = sidedb.both


def execute(sql: str, *params: Any) -> list[Any]:
    with connections[settings.DATABASE].cursor() as cursor:
        cursor.execute(sql, params)
        return list(cursor.fetchall()) if cursor.description else []


@pytest.fixture(autouse=True)
def table(side: SideDatabase) -> Any:
    execute("DROP TABLE IF EXISTS bookings")
    execute("CREATE TABLE bookings (what varchar(100))")
    yield
    execute("DROP TABLE IF EXISTS bookings")


def booked() -> list[str]:
    return [row[0] for row in execute("SELECT what FROM bookings ORDER BY what")]


def book(step: Any, what: str) -> str:
    execute("INSERT INTO bookings VALUES (%s)", what)
    step.state["booked"] += 1
    return what


def book_and_fail(step: Any, failures: list[int]) -> None:
    book(step, f"attempt {step.attempt}")
    if step.attempt in failures:
        raise ValueError("not this time")


def test_writes_of_an_atomic_step_are_there_with_its_record(side: SideDatabase, workers: Workers):
    class Booker(Actor):
        state = {"booked": 0}

        async def run(self, ctx: Any) -> str:
            return await ctx.step("book", book, "a room", atomic=True)  # type: ignore[no-any-return]

        @action(read_only=True)
        def get(self, c: Any) -> Any:
            return c.state

    handle = client.create(Booker, "1")
    workers.run_dry()
    assert handle.result() == "a room"
    assert booked() == ["a room"]
    assert handle.call("get") == {"booked": 1}


def test_a_failed_attempt_of_an_atomic_step_leaves_nothing(side: SideDatabase, workers: Workers):
    class FailingBooker(Actor):
        state = {"booked": 0}

        async def run(self, ctx: Any) -> None:
            await ctx.step("book", book_and_fail, [1, 2], atomic=True, retry_backoff_base=0)

        @action(read_only=True)
        def get(self, c: Any) -> Any:
            return c.state

    handle = client.create(FailingBooker, "1")
    workers.run_dry()
    handle.result()
    assert booked() == ["attempt 3"]
    assert handle.call("get") == {"booked": 1}
    assert len(handle.history()[0].attempts) == 3


def test_a_constraint_that_fails_at_the_commit_fails_the_attempt(side: SideDatabase, workers: Workers):
    if side.store.vendor != "postgresql":
        pytest.skip("a deferred constraint is needed")
    execute("ALTER TABLE bookings ADD CONSTRAINT one UNIQUE (what) DEFERRABLE INITIALLY DEFERRED")
    execute("INSERT INTO bookings VALUES ('taken')")

    class TakenBooker(Actor):
        state = {"booked": 0}

        async def run(self, ctx: Any) -> Any:
            tried = await ctx.try_step(
                "book", book, "taken", atomic=True, max_retries=1, retry_backoff_base=0
            )
            return tried.failure.kind, tried.failure.attempts

    handle = client.create(TakenBooker, "1")
    workers.run_dry()
    assert handle.result() == ("exhausted", 2)
    assert booked() == ["taken"]


def test_an_action_meanwhile_makes_the_step_run_again_which_is_no_attempt(
    side: SideDatabase, workers: Workers
):
    if side.store.vendor == "sqlite":
        pytest.skip("SQLite has one writer: an action waits for the atomic step")
    disturbed: list[int] = []

    class ContestedBooker(Actor):
        state = {"booked": 0}

        async def run(self, ctx: Any) -> None:
            await ctx.step("book", contested, atomic=True)

        @action
        def bump(self, c: Any) -> None:
            c.state["booked"] += 10

        @action(read_only=True)
        def get(self, c: Any) -> Any:
            return c.state

    def contested(step: Any) -> None:
        book(step, "room")
        if len(disturbed) < 3:
            disturbed.append(1)
            in_another_thread(lambda: client.get(ContestedBooker, "1").call("bump"))

    handle = client.create(ContestedBooker, "1")
    workers.run_dry()
    handle.result()
    assert booked() == ["room"]
    assert handle.call("get") == {"booked": 31}
    assert len(handle.history()[0].attempts) == 1


def in_another_thread(function: Any) -> None:
    import threading

    def call() -> None:
        try:
            function()
        finally:
            connections.close_all()

    thread = threading.Thread(target=call)
    thread.start()
    thread.join()


def test_an_open_transaction_of_the_callers_is_not_needed_and_not_touched(
    side: SideDatabase, workers: Workers
):
    class PlainBooker(Actor):
        state = {"booked": 0}

        async def run(self, ctx: Any) -> None:
            for n in range(3):
                await ctx.step("book", book, f"room {n}", atomic=True)
                await ctx.step("other", lambda step: None)

    with transaction.atomic(using=settings.DATABASE):
        handle = client.create(PlainBooker, "1")
    workers.run_dry()
    handle.result()
    assert booked() == ["room 0", "room 1", "room 2"]
