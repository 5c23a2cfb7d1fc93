"""``@action(on_worker=True)`` under the testing kit: what it sees, what it leaves, how it fails."""

from __future__ import annotations

import logging
from datetime import timedelta
from typing import Any

import pytest
from django.contrib.auth.models import AnonymousUser, User
from django.db import transaction

from rivet_workflows import (
    ActionFailed,
    Actor,
    ActorBusy,
    ActorNotFound,
    NoWorker,
    PayloadTooLarge,
    RivetError,
    SerializationError,
    UserError,
    ValidationFailed,
    action,
)
from rivet_workflows.client.actions import run_action
from rivet_workflows.models import Call, Run
from tests.workercalls.actors import declare


@pytest.fixture
def feed(rivet: Any) -> Any:
    return rivet.client.get_or_create(declare(), "f")


def test_it_runs_with_the_vars_that_steps_see(rivet, feed):
    feed.send("numbers", 7)
    rivet.run_until_idle()
    assert feed.put("a") == ["a", "n7"]
    assert feed.put(key="b", value=2) == ["a", "b", "n7"]
    assert feed.look() == {"n7": 7, "a": 1, "b": 2}
    assert not Call.objects.exists()


def test_its_state_events_and_messages_commit_with_it(rivet, feed):
    feed.put("a")
    assert feed.flush() == 1
    rivet.run_until_idle()
    assert feed.get() == {"seen": [["a"]], "sum": 1}
    assert [(e.name, e.payload) for e in rivet.events(feed)] == [("flushed", 1)]


def test_one_that_raises_leaves_no_trace_in_the_database_and_tells_why(rivet, feed, caplog):
    feed.put("a")
    with pytest.raises(UserError, match="not now") as refused:
        feed.flush(fail="user")
    assert (refused.value.code, refused.value.metadata) == ("busy", {"until": 5})
    with caplog.at_level(logging.ERROR), pytest.raises(ActionFailed, match="nothing to see") as failed:
        feed.flush(fail="own")
    assert failed.value.error is not None
    assert failed.value.error.is_a("LookupError")
    assert any("'flush' of feed/f failed" in r.getMessage() and r.exc_info for r in caplog.records)
    rivet.run_until_idle()
    assert feed.get() == {"seen": [], "sum": 0}
    assert rivet.events(feed) == []
    # Memory is no database: what it changed there has stayed.
    assert feed.look()["flushes"] == 2


def test_arguments_are_checked_at_the_caller_and_results_before_the_commit(rivet, feed, settings):
    with pytest.raises(ValidationFailed, match="value"):
        feed.put("a", value="many")
    with pytest.raises(PayloadTooLarge, match="arguments of action"):
        feed.put("a" * 2_000_000)
    with pytest.raises(SerializationError):
        feed.give("object")
    with pytest.raises(PayloadTooLarge, match="result of action"):
        feed.give("text")
    assert feed.get()["sum"] == 0


def test_d_24_inside_a_transaction_it_is_refused_at_once(rivet, feed):
    with (
        pytest.raises(RuntimeError, match=r"feed\.put, an @action\(on_worker=True\), waits"),
        transaction.atomic(),
    ):
        feed.put("a")
    assert not Call.objects.exists()


def test_async_callers_wait_for_it_too(rivet, feed):
    from asgiref.sync import async_to_sync

    async def call() -> Any:
        return await feed.aput("a"), await feed.acall("look")

    assert async_to_sync(call)() == (["a"], {"a": 1})


def test_it_destroys_its_actor_at_its_end(rivet, feed):
    assert feed.close() is None
    with pytest.raises(ActorNotFound):
        feed.look()


def test_remote_callers_are_known_by_their_account(rivet, feed):
    user = User.objects.create_user("ada")

    def call(who: Any) -> Any:
        return run_action(feed.actor_id, "feed", "who", user=who)[0]

    seen: list[Any] = []

    class Asking(Actor):
        @action(on_worker=True)
        def who(self, c):
            seen.append(c.user)

    asking = rivet.client.create(Asking)
    for who in (user, AnonymousUser(), None):
        run_action(asking.actor_id, "asking", "who", user=who)
    assert seen == [user, AnonymousUser(), None]
    assert call(None) is None


@pytest.mark.parametrize("state", ["none", "completed", "cancelled", "paused", "failed"])
def test_it_works_in_every_state_and_changes_nothing_about_that(rivet, state):
    feed = rivet.client.get_or_create(declare(workflow=state != "none"), "f")
    if state == "completed":
        feed.send("numbers", -1)
    elif state == "failed":
        rivet.fail_step("note", times=None, error=ZeroDivisionError)
        feed.send("numbers", 1)
    rivet.advance(minutes=5)
    if state == "cancelled":
        feed.cancel()
    elif state == "paused":
        feed.pause()
    before = str(feed.status())
    assert before == {"none": "idle"}.get(state, state)
    assert feed.put("a") == ["a"]
    assert feed.put("b") == ["a", "b"]  # it is still held: the same vars
    assert str(feed.status()) == before
    rivet.evict()
    assert str(feed.status()) == before
    assert not Run.objects.filter(owner_id__isnull=False).exists()
    assert feed.look() == {}  # taken up anew
    if state == "cancelled":
        assert feed.recover()
        feed.send("numbers", 3)
        rivet.run_until_idle()
        assert str(feed.status()) == "sleeping"
        assert feed.look() == {"n3": 3}


def test_hooks_of_waking_come_before_it_and_on_sleep_after(rivet):
    told: list[str] = []
    feed = rivet.client.get_or_create(
        declare(
            workflow=False,
            on_wake=lambda self, c: told.append("wake"),
            on_sleep=lambda self, c: told.append(f"sleep {sorted(c.vars)}"),
        ),
        "f",
    )
    feed.put("a")
    told.append("called")
    rivet.evict()
    assert told == ["wake", "called", "sleep ['a']"]


def test_vars_that_could_not_be_made_fail_the_call(rivet):
    class Broken(Actor):
        def create_vars(self, c):
            raise ConnectionError("no line")

        @action(on_worker=True)
        def use(self, c):
            return c.vars

    broken = rivet.client.create(Broken)
    with pytest.raises((RivetError, ActionFailed), match="create_vars failed"):
        broken.use()


def test_a_step_calls_it_once_however_often_it_is_attempted(rivet):
    feed = rivet.client.get_or_create(declare(), "f")

    class Caller(Actor):
        async def run(self, ctx):
            return await ctx.step("ask", self.ask)

        def ask(self, step):
            return step.client().get("feed", "f").flush()

    caller = rivet.client.create(Caller)
    feed.put("a")
    rivet.fail_step("ask", times=2, after=True)
    assert caller.result(timeout=3600) == 1
    assert feed.get()["seen"] == [["a"]]


def test_a_step_that_was_refused_asks_again(rivet):
    tries: list[int] = []

    class Moody(Actor):
        @action(on_worker=True)
        def ask(self, c):
            tries.append(1)
            if len(tries) < 3:
                raise UserError("not yet")
            return len(tries)

    class Caller(Actor):
        async def run(self, ctx):
            return await ctx.step("ask", self.ask)

        def ask(self, step):
            return step.client().get("moody").ask()

    rivet.client.create(Moody)
    assert rivet.client.create(Caller).result(timeout=3600) == 3


def test_an_actor_may_ask_itself_from_a_step(rivet):
    class Selfish(Actor):
        vars = dict

        async def run(self, ctx):
            return await ctx.step("ask", self.ask)

        def ask(self, step):
            step.vars["here"] = True
            return step.client().get_for_id(self.actor_id).look()

        @action(on_worker=True)
        def look(self, c):
            return dict(c.vars)

    assert rivet.client.create(Selfish).result(timeout=60) == {"here": True}


def test_without_a_worker_it_says_so_and_never_begins(db, settings):
    from rivet_workflows import client

    settings.RIVET_WORKFLOWS = {"WORKER_ACTION_TIMEOUT": 0.05}
    feed = client.get_or_create(declare(), "f")
    with pytest.raises(NoWorker, match=r"no worker is running: start `manage\.py rivet_worker`") as told:
        feed.put("a")
    assert told.value.metadata == {"reason": "no_worker"}
    assert not Call.objects.exists()


def test_its_own_timeout_comes_before_the_setting(db, settings):
    from rivet_workflows import client

    class Quick(Actor):
        @action(on_worker=True, timeout=timedelta(milliseconds=50))
        def ask(self, c): ...

    with pytest.raises(NoWorker, match=r"within 0\.05 s"):
        client.create(Quick).ask()


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"timeout": 5}, TypeError),
        ({"on_worker": True, "timeout": 0}, ValueError),
        ({"on_worker": True, "timeout": "5"}, TypeError),
    ],
)
def test_a_timeout_that_means_nothing_is_refused_where_it_stands(options, error):
    with pytest.raises(error, match="timeout"):
        action(**options)


def test_a_state_locked_by_others_is_busy_there_as_here(rivet, feed, monkeypatch):
    from rivet_workflows.store.states import StateVerbs

    def busy(*_: object) -> Any:
        raise ActorBusy("locked")

    monkeypatch.setattr(StateVerbs, "lock_state", busy)
    with pytest.raises(ActorBusy, match="locked"):
        feed.flush()


def scheduling(told: list[Any]) -> Any:
    class Scheduled(Actor):
        vars = dict

        @action
        def plan(self, c, fail: bool = False):
            c.schedule.after(60, "flush", "once")
            c.cron.every(name="flush", interval=60, action="flush", args=["again", fail])

        @action(on_worker=True)
        def flush(self, c, what: str, fail: bool = False):
            c.vars[what] = c.vars.get(what, 0) + 1
            told.append((what, c.vars[what]))
            if fail:
                raise UserError("no")

        @action(read_only=True)
        def fires(self, c):
            return [fire.result for fire in c.cron.history("flush")]

    return Scheduled


def test_schedules_call_it_where_the_actor_is_held(rivet):
    told: list[Any] = []
    actor = rivet.client.create(scheduling(told))
    actor.plan()
    rivet.advance(121)
    assert sorted(told) == [("again", 1), ("again", 2), ("once", 1)]
    assert actor.fires() == ["ok", "ok"]
    assert not Call.objects.exists()


def test_a_scheduled_one_that_fails_is_in_the_history(rivet):
    told: list[Any] = []
    actor = rivet.client.create(scheduling(told))
    actor.plan(fail=True)
    rivet.advance(61)
    assert actor.fires() == ["error"]
