"""``atomic=True``: a step's own writes and its record are one commit, whatever happens in between."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from django.db import OperationalError, connections, transaction

from rivet_workflows import Actor, ActorBusy, Event, action, client
from rivet_workflows.conf import settings
from rivet_workflows.worker import atomic
from tests import sidedb
from tests.sidedb import SideDatabase
from tests.waiting import until
from tests.worker.fleet import Workers
from tests.worker.support import LONG

pytestmark = sidedb.each


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


def booker(name: str, function: Any) -> Any:
    """A kind of actor that has one atomic step, whose state actions change beside it."""

    class Booker(Actor, name=name):
        state = {"booked": 0}

        async def run(self, ctx: Any) -> None:
            await ctx.step("book", function, atomic=True)

        @action
        def bump(self, c: Any) -> None:
            c.state["booked"] += 10

        @action(read_only=True)
        def get(self, c: Any) -> Any:
            return c.state

    return Booker


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


@pytest.mark.parametrize("ends", ["raises", "returns"])
def test_a_step_whose_connection_is_lost_before_its_transaction_ends_runs_again(
    side: SideDatabase, workers: Workers, monkeypatch: pytest.MonkeyPatch, ends: str
):
    """As when the server is restarted meanwhile: the transaction cannot even be rolled back."""
    attempts: list[int] = []

    def lose(connection: Any) -> None:
        def refuse(_params: Any) -> None:
            monkeypatch.delattr(connection, "get_new_connection")
            raise OperationalError("the database system is starting up")

        connection.connection.close()
        monkeypatch.setattr(connection, "get_new_connection", refuse, raising=False)

    def book_and_lose(step: Any) -> None:
        attempts.append(step.attempt)
        book(step, f"call {len(attempts)}")
        if len(attempts) == 1:
            lose(connections[settings.DATABASE])
            if ends == "raises":
                raise ValueError("the server is gone")

    class LosingBooker(Actor):
        state = {"booked": 0}

        async def run(self, ctx: Any) -> None:
            await ctx.step("book", book_and_lose, atomic=True, retry_backoff_base=0)

    handle = client.create(LosingBooker, "1")
    workers.run_dry()
    assert handle.result(timeout=0) is None
    assert booked() == ["call 2"]


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


def test_a_step_that_gave_up_waiting_for_the_core_runs_again(
    side: SideDatabase, workers: Workers, monkeypatch: pytest.MonkeyPatch
):
    """Its transaction is rolled back by then; an answer that comes later must not leave the actor waiting for it."""
    called: list[int] = []

    def book_slowly(step: Any) -> None:
        monkeypatch.setattr(atomic, "ANSWER", LONG if called else 0)
        called.append(step.attempt)
        book(step, "a room")

    class Booker(Actor):
        state = {"booked": 0}

        async def run(self, ctx: Any) -> None:
            await ctx.step("book", book_slowly, atomic=True)

    handle = client.create(Booker, "1")
    workers.run_dry()
    assert handle.result(timeout=0) is None
    assert booked() == ["a room"]
    assert set(called) == {1}


def test_an_action_meanwhile_makes_the_step_run_again_which_is_no_attempt(
    side: SideDatabase, workers: Workers
):
    if side.store.vendor == "sqlite":
        pytest.skip("SQLite has one writer: an action waits for the atomic step")
    disturbed: list[int] = []

    def contested(step: Any) -> None:
        book(step, "room")
        if len(disturbed) < 3:
            disturbed.append(1)
            in_another_thread(lambda: client.get("ContestedBooker", "1").call("bump"))

    handle = client.create(booker("ContestedBooker", contested), "1")
    workers.run_dry()
    handle.result()
    assert booked() == ["room"]
    assert handle.call("get") == {"booked": 31}
    (attempt,) = handle.history()[0].attempts
    assert attempt.reruns == 3


def test_a_step_that_loses_to_actions_five_times_locks_the_state(
    side: SideDatabase, workers: Workers, settings: Any
):
    if side.store.vendor == "sqlite":
        pytest.skip("SQLite has one writer: an action waits for the atomic step")
    settings.RIVET_WORKFLOWS |= {"ACTION_LOCK_TIMEOUT": 0.1}
    waited: list[str] = []

    def bump() -> None:
        try:
            client.get("BesiegedBooker", "1").call("bump")
        except ActorBusy as busy:
            waited.append(str(busy))

    def besieged(step: Any) -> None:
        book(step, "room")
        in_another_thread(bump)

    handle = client.create(booker("BesiegedBooker", besieged), "1")
    workers.run_dry()
    handle.result()
    assert booked() == ["room"]
    assert handle.call("get") == {"booked": 51}
    assert len(waited) == 1
    (attempt,) = handle.history()[0].attempts
    assert attempt.reruns == 5


def test_an_update_of_an_atomic_step_is_applied_under_the_lock_and_never_makes_it_run_again(
    side: SideDatabase, workers: Workers, settings: Any
):
    if side.store.vendor == "sqlite":
        pytest.skip("SQLite has one writer: an action waits for the atomic step")
    settings.RIVET_WORKFLOWS |= {"ACTION_LOCK_TIMEOUT": 0.1}
    calls: list[str] = []

    def bump() -> None:
        try:
            client.get("UpdatingBooker", "1").call("bump")
        except ActorBusy:
            calls.append("busy")

    def add(state: Any) -> None:
        in_another_thread(bump)
        state["booked"] += 1

    def updating(step: Any) -> None:
        calls.append("step")
        in_another_thread(lambda: client.get("UpdatingBooker", "1").call("bump"))
        step.update(add)

    handle = client.create(booker("UpdatingBooker", updating), "1")
    workers.run_dry()
    handle.result()
    assert calls == ["step", "busy"]
    assert handle.call("get") == {"booked": 11}
    assert handle.history()[0].attempts[0].reruns == 0


def test_an_action_that_broadcasts_and_an_atomic_step_do_not_wait_for_each_other(
    side: SideDatabase, workers: Workers
):
    if side.store.vendor != "postgresql":
        pytest.skip("rows that are waited for are seen on PostgreSQL")
    actions: list[threading.Thread] = []
    failures: list[Exception] = []
    holds = threading.Event()

    class LoudBooker(Actor):
        state = {"booked": 0}
        bumped = Event(int)

        async def run(self, ctx: Any) -> None:
            await ctx.step("book", loud, atomic=True)

        @action
        def bump(self, c: Any) -> None:
            c.state["booked"] += 10
            holds.set()
            # Should each wait for the other, it is this one that finds out.
            execute("SET LOCAL deadlock_timeout = '1ms'")
            waiting = (
                "SELECT 1 FROM pg_locks WHERE NOT granted AND pg_backend_pid() = ANY(pg_blocking_pids(pid))"
            )
            until(lambda: execute(waiting))
            c.broadcast("bumped", 10)

        @action(read_only=True)
        def get(self, c: Any) -> Any:
            return c.state

    def bump() -> None:
        try:
            client.get(LoudBooker, "1").call("bump")
        except Exception as error:
            failures.append(error)
        finally:
            holds.set()
            connections.close_all()

    def loud(step: Any) -> None:
        book(step, "room")
        if not actions:
            actions.append(threading.Thread(target=bump))
            actions[0].start()
            holds.wait(20)

    handle = client.create(LoudBooker, "1")
    workers.run_dry()
    handle.result()
    actions[0].join(20)
    assert failures == []
    assert handle.call("get") == {"booked": 11}
    assert booked() == ["room"]


def in_another_thread(function: Any) -> None:
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
