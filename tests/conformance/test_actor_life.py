"""Clients, life, sleep, destruction and state of actors: A-CLIENT, A-LIFE, A-SLEEP, A-DESTROY, A-STATE. The order of
the hooks is in tests/schedules/test_lifecycle.py."""

from __future__ import annotations

from typing import Any

import pytest

from rivet_workflows import (
    Actor,
    ActorExists,
    ActorNotFound,
    PayloadTooLarge,
    Queue,
    RivetError,
    action,
)
from rivet_workflows.client import ActorState
from rivet_workflows.models import Message, Run, Schedule, Timer


def declare(**body: Any) -> Any:
    class Keeper(Actor):
        state = {"seen": []}
        vars = dict
        work = Queue(str)

        async def run(self, ctx):
            async for turn in ctx.loop("work"):
                message = await turn.queue.next("next", names=[Keeper.work])
                if message.body == "end":
                    break
                await turn.step("do", self.do, message.body)

        def do(self, step, text):
            step.vars["done"] = step.vars.get("done", 0) + 1
            step.state["seen"].append(text)
            if text == "fail":
                raise ZeroDivisionError("nought")
            if text == "destroy":
                step.destroy()

        @action
        def add(self, c, text):
            c.state["seen"].append(text)

        @action
        def end(self, c):
            c.destroy()

        @action
        def later(self, c):
            c.schedule.after(60, "add", "later")

        @action(read_only=True)
        def get(self, c):
            return c.state["seen"]

    for name, function in body.items():
        setattr(Keeper, name, function)
    return Keeper


@pytest.fixture
def keeper(rivet: Any) -> Any:
    return rivet.client.get_or_create(declare(), "k")


# -- clients


def test_a_client_01_get_never_creates_create_fails_where_one_is_and_an_id_is_never_a_successor(rivet):
    cls = declare()
    with pytest.raises(ActorNotFound):
        rivet.client.get(cls, "k")
    first = rivet.client.create(cls, "k", input=1)
    with pytest.raises(ActorExists):
        rivet.client.create(cls, "k")
    assert rivet.client.get_or_create(cls, "k", input=2) == rivet.client.get(cls, "k") == first
    first.destroy()
    second = rivet.client.create(cls, "k")
    for look in (lambda: rivet.client.get_for_id(first.actor_id), first.get, first.status):
        with pytest.raises(ActorNotFound):
            look()
    assert rivet.client.get_for_id(second.actor_id) == second


def test_a_client_02_what_a_handle_offers(rivet, keeper):
    keeper.add("a")
    keeper.call("add", "b")
    keeper.call("add", text="c")
    assert keeper.get() == ["a", "b", "c"]
    assert keeper.send("work", "d").status == "queued"
    assert (keeper.name, keeper.key, keeper.created) == ("keeper", "k", True)


def test_a_client_09_inside_actions_and_steps_the_same_client_and_calls_to_oneself_do_not_wait(rivet):
    class Selfish(Actor):
        state = {"n": 0}

        async def run(self, ctx):
            return await ctx.step("ask", self.ask)

        def ask(self, step):
            return step.client().get_for_id(self.actor_id).add()

        @action
        def add(self, c):
            c.state["n"] += 1
            return c.state["n"]

        @action
        def ask_itself(self, c):
            return c.client().get_for_id(self.actor_id).get()

        @action(read_only=True)
        def get(self, c):
            return c.state["n"]

    selfish = rivet.client.create(Selfish)
    assert selfish.result(timeout=60) == 1
    assert selfish.ask_itself() == 1


def test_a_client_10_the_input_has_a_limit(rivet, settings):
    settings.RIVET_WORKFLOWS = {"MAX_INPUT_SIZE": 1024}
    with pytest.raises(PayloadTooLarge, match="input has"):
        rivet.client.create(declare(), "k", input="x" * 1024)


# -- life


def test_a_life_03_the_input_is_used_at_creation_only_and_kept_for_the_workflow(rivet):
    class Given(Actor):
        def create_state(self, c, input) -> dict:
            return {"created with": input}

        def on_create(self, c, input):
            c.state["told"] = input

        async def run(self, ctx):
            return [ctx.input, await ctx.step("see", self.see)]

        def see(self, step):
            return step.input

        @action(read_only=True)
        def get(self, c):
            return c.state

    one = rivet.client.get_or_create(Given, 1, input="first")
    assert rivet.client.get_or_create(Given, 1, input="second") == one
    assert one.get() == {"created with": "first", "told": "first"}
    assert one.result() == ["first", "first"]
    assert rivet.client.create(Given, 2).get() == {"created with": None, "told": None}


def test_a_life_06_on_state_change_comes_once_after_changes_and_may_not_change_it(rivet):
    told: list[Any] = []

    class Watched(Actor):
        state = {"n": 0}

        @action
        def set(self, c, *numbers):
            for n in numbers:
                c.state["n"] = n
            return c.state["n"]

        def on_state_change(self, c, state):
            told.append(state["n"])
            if state["n"] == 13:
                state["n"] = 14

    watched = rivet.client.create(Watched)
    watched.set()
    watched.set(1, 2, 3)
    assert told == [3]
    with pytest.raises(RivetError, match="on_state_change changed the state"):
        watched.set(13)
    assert watched.set() == 3


def test_a_life_07_the_statuses_seen_from_outside(rivet, keeper):
    assert keeper.status().state is ActorState.PENDING
    rivet.run_until_idle()
    assert keeper.status().state is ActorState.SLEEPING
    keeper.pause()
    assert keeper.status().state is ActorState.PAUSED
    keeper.resume()
    keeper.send("work", "end")
    rivet.run_until_idle()
    assert keeper.status().state is ActorState.COMPLETED
    assert {state.value for state in ActorState} == {
        *("idle", "pending", "running", "sleeping", "completed", "failed", "cancelled"),
        *("rolling_back", "paused", "set_aside"),
    }


def test_a_life_08_actions_do_not_wait_for_a_running_step(rivet):
    class Stepping(Actor):
        state = {"n": 0}

        async def run(self, ctx):
            await ctx.step("long", self.long)

        def long(self, step):
            step.log.info("while it runs, an action comes and goes")
            rivet.client.get_for_id(self.actor_id).add()
            return rivet.client.get_for_id(self.actor_id).get()

        @action
        def add(self, c):
            c.state["n"] += 1

        @action(read_only=True)
        def get(self, c):
            return c.state["n"]

    stepping = rivet.client.create(Stepping)
    rivet.run_until_idle()
    assert str(stepping.status()) == "completed"
    assert stepping.get() == 1


# -- sleep


def held() -> bool:
    return Run.objects.filter(owner_id__isnull=False).exists()


def test_a_sleep_01_one_that_waits_may_leave_the_memory(rivet, keeper):
    rivet.run_until_idle()
    assert held()
    rivet.evict()
    assert not held()
    assert keeper.status().state is ActorState.SLEEPING


def test_a_sleep_02_on_sleep_comes_before_it_is_given_back(rivet):
    def on_sleep(self, c):
        assert held()
        c.state["seen"].append("slept")

    cls = declare()
    kind = type("Sleeper", (cls,), {"on_sleep": on_sleep}, name="sleeper")
    sleeper = rivet.client.create(kind)
    rivet.run_until_idle()
    rivet.evict()
    assert sleeper.get() == ["slept"]
    assert not held()


def test_a_sleep_03_actions_are_served_in_every_phase(rivet, keeper):
    keeper.add("pending")
    rivet.run_until_idle()
    keeper.add("held")
    rivet.evict()
    keeper.add("asleep")
    keeper.cancel()
    keeper.add("cancelled")
    assert keeper.get() == ["pending", "held", "asleep", "cancelled"]


def test_a_sleep_04_a_message_and_a_due_schedule_wake_it(rivet, keeper):
    rivet.run_until_idle()
    rivet.evict()
    keeper.send("work", "message")
    rivet.run_until_idle()
    rivet.evict()
    keeper.later()
    rivet.advance(60)
    assert keeper.get() == ["message", "later"]


def test_a_sleep_05_a_timer_is_a_row_and_fires_once_across_evictions(rivet):
    ran: list[int] = []

    class Timed(Actor):
        async def run(self, ctx):
            await ctx.step("before", self.note, 1)
            await ctx.sleep("nap", 100)
            await ctx.step("after", self.note, 2)

        def note(self, step, n):
            ran.append(n)

    timed = rivet.client.create(Timed)
    rivet.run_until_idle()
    rivet.evict()
    assert Timer.objects.filter(actor_id=timed.actor_id).count() == 1
    rivet.advance(99)
    assert ran == [1]
    rivet.evict()
    rivet.advance(1)
    assert ran == [1, 2]


# -- the end


@pytest.mark.parametrize("way", ["client", "action", "step", "hook", "rest"])
def test_a_destroy_01_on_destroy_runs_with_everything_there_and_then_all_of_it_goes(rivet, way):
    told: list[Any] = []

    def on_destroy(self, c):
        told.append((list(c.state["seen"]), c.key))
        c.client().get("other").send("goodbye", self.key)

    def on_state_change(self, c, state):
        if "hook" in state["seen"]:
            c.destroy()

    cls = type(
        "Mortal", (declare(),), {"on_destroy": on_destroy, "on_state_change": on_state_change}, name="mortal"
    )

    class Other(Actor): ...

    other = rivet.client.create(Other)
    mortal = rivet.client.create(cls, "k")
    mortal.add("a")
    mortal.later()
    mortal.send("work", "pending", delay=3600)
    if way == "client":
        assert mortal.destroy()
        assert not mortal.destroy()
    elif way == "action":
        mortal.end()
    elif way == "hook":
        mortal.add("hook")
    elif way == "step":
        mortal.send("work", "destroy")
    else:
        rivet.run_until_idle()
        rivet.evict()
        mortal.destroy()
    rivet.run_until_idle()
    assert [key for _, key in told] == ["k"]
    assert told[0][0][0] == "a"
    assert [m.body for m in rivet.messages(other)] == ["k"]
    rivet.advance(hours=2)
    with pytest.raises(ActorNotFound):
        mortal.get()
    from rivet_workflows.store import get_store

    while get_store().prune():
        pass
    for model in (Message, Schedule, Timer):
        assert not model.objects.filter(actor_id=mortal.actor_id).exists()


def test_a_destroy_02_afterwards_its_id_is_unknown_and_its_key_begins_afresh(rivet, keeper):
    keeper.send("work", "a")
    rivet.run_until_idle()
    keeper.destroy()
    again = rivet.client.create("keeper", "k")
    assert again.actor_id != keeper.actor_id
    for call in (keeper.get, lambda: keeper.send("work", "b"), keeper.status, keeper.history):
        with pytest.raises(ActorNotFound):
            call()
    rivet.run_until_idle()
    assert again.get() == []
    assert len(again.history()) == 2


def test_a_destroy_02_what_the_old_one_still_writes_is_refused(rivet):
    done: list[Any] = []

    class Slow(Actor):
        state = {"n": 0}

        async def run(self, ctx):
            await ctx.step("late", self.late)

        def late(self, step):
            step.state["n"] = 1
            step.broadcast("late", 1)
            if not done:
                done.append(self.actor_id)
                rivet.client.get_for_id(self.actor_id).destroy()
                done.append(rivet.client.create("slow", self.key).actor_id)
                step.state["n"] = 5

        @action(read_only=True)
        def get(self, c):
            return c.state["n"]

    first = rivet.client.create(Slow, "k")
    rivet.run_until_idle()
    again = rivet.client.get(Slow, "k")
    assert done == [first.actor_id, again.actor_id]
    assert again.get() == 1
    assert str(again.status()) == "completed"
    assert len(rivet.events(again)) == 1


def test_a_destroy_03_before_it_ever_ran(rivet, keeper):
    assert keeper.destroy()
    rivet.run_until_idle()
    assert rivet.client.list() == []


# -- rollback


BOOKED: list[str] = []


def unbook(step: Any, output: Any) -> None:
    BOOKED.append("unbook")


def declare_booking() -> Any:
    class Booking(Actor):
        state = {"rooms": 0}

        async def run(self, ctx):
            await ctx.rollback_checkpoint("cp")
            await ctx.step("book", self.book, rollback=unbook)
            await ctx.queue.next("pay")
            raise ValueError("not paid")

        def book(self, step):
            BOOKED.append("book")
            step.state["rooms"] += 1

        @action(read_only=True)
        def rooms(self, c):
            return c.state["rooms"]

    return Booking


@pytest.mark.parametrize("how", ["cancel", "destroy"])
def test_r_rb_05_who_cancels_or_destroys_rolls_nothing_back(rivet, how):
    BOOKED.clear()
    booking = rivet.client.create(declare_booking(), "k")
    rivet.run_until_idle()
    getattr(booking, how)()
    rivet.run_until_idle()
    assert BOOKED == ["book"]


def test_r_rb_18_a_rollback_restores_no_state(rivet):
    BOOKED.clear()
    booking = rivet.client.create(declare_booking(), "k")
    booking.send("pay")
    rivet.run_until_idle()
    assert str(booking.status()) == "failed"
    assert BOOKED == ["book", "unbook"]
    assert booking.rooms() == 1


# -- state


def test_a_state_01_reading_gives_the_state_and_a_change_is_stored_with_its_transaction(rivet, keeper):
    keeper.get().append("of a copy")
    assert keeper.get() == []
    keeper.add("a")
    assert keeper.get() == ["a"]


@pytest.mark.parametrize(("point", "times"), [("before", 1), ("after_run", 1), ("after_commit", 1)])
def test_a_state_03_a_state_04_a_steps_change_and_its_record_are_both_there_or_none(
    rivet, keeper, point, times
):
    keeper.send("work", "a")
    rivet.crash_at("do", point, times=times)
    rivet.run_until_idle()
    assert keeper.get() == ["a"]
    assert [e.status for e in keeper.history() if e.kind == "step"] == ["completed"]


def test_a_state_05_vars_are_never_stored_and_made_anew(rivet):
    class Remembering(Actor):
        vars = dict

        @action(on_worker=True)
        def put(self, c, name):
            c.vars[name] = object()
            return sorted(c.vars)

    remembering = rivet.client.create(Remembering)
    remembering.put("a")
    assert remembering.put("b") == ["a", "b"]
    rivet.crash()
    assert remembering.put("c") == ["c"]
