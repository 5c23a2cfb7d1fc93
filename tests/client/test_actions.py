"""Calling actions: transactions in the caller's process."""

from __future__ import annotations

import logging

import pytest
from django.contrib.auth.models import Group
from django.db import transaction

from rivet_workflows import (
    ActionNotFound,
    Actor,
    Event,
    NoWorker,
    RivetError,
    UserError,
    ValidationFailed,
    action,
    client,
)
from rivet_workflows.client import looking
from tests.client.helpers import rolled_back
from tests.client.shop import DESTROYED, Cart, Line

pytestmark = pytest.mark.django_db


@pytest.fixture
def cart():
    return client.create(Cart, "c-1")


def events(handle):
    return [(event.seq, event.name, event.payload) for event in looking.events(handle).events]


def test_an_action_is_called_by_name_as_a_method_or_by_reference(cart):
    assert cart.call("add", Line("a")) == 1
    assert cart.add(line=Line("b")) == 2
    assert cart.call(Cart.add, Line("c")) == 3
    assert [line.sku for line in cart.get_lines()] == ["a", "b", "c"]


def test_arguments_become_instances_of_their_annotated_types(cart):
    cart.add({"sku": "a", "count": "3"})
    assert cart.get_lines() == [Line("a", 3)]


def test_arguments_that_do_not_fit_are_refused_and_nothing_is_changed(cart):
    for args in ([{"sku": "a", "count": "many"}], [], [1, 2, 3]):
        with pytest.raises(ValidationFailed):
            cart.call("add", *args)
    assert cart.get_lines() == []


def test_an_action_that_raises_leaves_no_trace_and_its_error_passes(cart):
    with pytest.raises(UserError) as caught:
        cart.add_and_fail(Line("a"))
    assert (caught.value.code, caught.value.metadata) == ("closed", {"until": "tomorrow"})
    assert cart.get_lines() == []
    assert events(cart) == []
    assert looking.messages(cart) == []


def test_state_and_events_commit_together(cart):
    cart.add(Line("a"))
    cart.add(Line("b"))
    assert events(cart) == [(1, "changed", 1), (2, "changed", 2)]


def test_an_action_joins_the_callers_transaction(cart):
    with rolled_back():
        cart.add(Line("a"))
        assert len(cart.get_lines()) == 1
    assert cart.get_lines() == []


def test_a_failed_action_inside_a_transaction_does_not_spoil_it(cart):
    with transaction.atomic():
        cart.add(Line("a"))
        with pytest.raises(UserError):
            cart.add_and_fail(Line("b"))
        cart.add(Line("c"))
    assert [line.sku for line in cart.get_lines()] == ["a", "c"]


def test_messages_to_itself_go_out_with_the_action(cart):
    cart.note("hello")
    assert [(m.queue, m.body) for m in looking.messages(cart)] == [("notes", "hello")]
    with pytest.raises(ValidationFailed):
        cart.call("note", 5)


def test_an_action_knows_whose_it_is(cart):
    assert cart.who() == ("c-1", cart.actor_id, "cart", "c-1")


def test_an_async_action_works_like_any_other_and_its_orm_is_in_the_transaction():
    class Keeper(Actor):
        state = dict

        @action
        async def keep(self, c, name: str, fail: bool = False):
            c.state[name] = (await Group.objects.acreate(name=name)).pk
            if fail:
                raise UserError("no")
            return sorted(c.state)

    keeper = client.create(Keeper, 1)
    assert keeper.keep("a") == ["a"]
    with pytest.raises(UserError):
        keeper.keep("b", fail=True)
    assert list(Group.objects.values_list("name", flat=True)) == ["a"]
    assert keeper.keep("c") == ["a", "c"]


def test_an_async_action_may_use_everything_a_sync_one_may():
    class Busy(Actor):
        state = dict

        @action
        async def go(self, c):
            c.state["at"] = c.now()
            c.broadcast("gone", 1)
            c.queue.send("later", 1, delay=60, dedupe_key="k")
            other = await c.client().aget_or_create(Cart, "other")
            await other.asend("notes", "from an action")
            return c.state["at"].tzinfo is not None

    busy = client.create(Busy, 1)
    assert busy.go() is True
    assert events(busy) == [(1, "gone", 1)]
    assert [m.queue for m in looking.messages(busy)] == ["later"]
    assert [m.body for m in looking.messages(client.get(Cart, "other"))] == ["from an action"]


def test_destroy_in_an_action_happens_at_its_end(cart):
    cart.close()
    assert DESTROYED == ["c-1"]
    assert client.list(Cart) == []


def test_an_unknown_action_says_what_there_is(cart):
    with pytest.raises(ActionNotFound, match=r"no action 'ad'.*add"):
        cart.call("ad", 1)
    with pytest.raises(AttributeError, match="did you mean"):
        cart.get_line()


def test_only_actions_can_be_called(cart):
    with pytest.raises(ActionNotFound):
        cart.call("on_destroy")
    with pytest.raises(TypeError, match="method itself"):
        cart.call(Cart.on_destroy)


def test_an_action_for_the_worker_says_that_there_is_none(cart, settings):
    settings.RIVET_WORKFLOWS = {"WORKER_ACTION_TIMEOUT": 0.05}
    with pytest.raises(NoWorker):
        cart.flush()


class TestReadOnly:
    def test_it_may_not_change_state_silently(self, cart):
        with pytest.raises(RivetError, match="read_only=True"):
            cart.peek_and_poke()

    @pytest.mark.parametrize("what", ["broadcast", "queue", "destroy", "assign"])
    def test_it_may_not_have_effects(self, what):
        class Reader(Actor):
            state = dict

            @action(read_only=True)
            def read(self, c, what):
                if what == "broadcast":
                    c.broadcast("x")
                elif what == "queue":
                    c.queue.send("x", 1)
                elif what == "destroy":
                    c.destroy()
                else:
                    c.state = {}

        with pytest.raises(RivetError, match="leave read_only out"):
            client.create(Reader, 1).read(what)

    def test_it_opens_no_transaction(self, django_assert_num_queries, cart):
        with django_assert_num_queries(2) as queries:  # is it there, and its state
            cart.get_lines()
        assert not any("SAVEPOINT" in query["sql"] for query in queries)


class TestContext:
    def test_vars_are_the_workers(self, cart):
        class Vars(Actor):
            vars = dict

            @action
            def look(self, c):
                return c.vars

        with pytest.raises(RivetError, match="on_worker=True"):
            client.create(Vars, 1).look()

    def test_state_of_an_actor_that_declares_none(self):
        class Bare(Actor):
            @action
            def look(self, c):
                return c.state

        with pytest.raises(RivetError, match="declares no state"):
            client.create(Bare, 1).look()

    def test_a_context_is_dead_after_its_action(self):
        kept = []

        class Leaky(Actor):
            state = dict

            @action
            def leak(self, c):
                kept.append(c)

        client.create(Leaky, 1).leak()
        for use in (lambda c: c.state, lambda c: c.broadcast("x"), lambda c: c.queue.send("q")):
            with pytest.raises(RivetError, match="after its action was over"):
                use(kept[0])

    def test_events_are_checked_against_their_declared_type(self):
        class Teller(Actor):
            told = Event(int)

            @action
            def tell(self, c, payload):
                c.broadcast("told", payload)
                c.broadcast("undeclared", payload)

        teller = client.create(Teller, 1)
        with pytest.raises(ValidationFailed):
            teller.tell("x")
        teller.tell(5)
        assert events(teller) == [(1, "told", 5), (2, "undeclared", 5)]

    def test_on_state_change_is_told_before_the_commit_and_may_refuse(self):
        class Watched(Actor):
            state = dict

            @action
            def put(self, c, value):
                c.state["value"] = value

            @action
            def touch(self, c):
                return c.state

            def on_state_change(self, c, state):
                c.broadcast("saw", state["value"])
                if state["value"] == "bad":
                    raise UserError("refused")

        watched = client.create(Watched, 1)
        watched.put("good")
        watched.touch()
        with pytest.raises(UserError):
            watched.put("bad")
        assert events(watched) == [(1, "saw", "good")]
        assert watched.touch() == {"value": "good"}

    def test_what_on_state_change_changes_itself_is_an_error(self):
        class Restless(Actor):
            state = dict

            @action
            def put(self, c):
                c.state["n"] = 1

            def on_state_change(self, c, state):
                state["n"] += 1

        with pytest.raises(RivetError, match="on_state_change changed the state"):
            client.create(Restless, 1).put()

    def test_migrate_state_sees_what_was_stored(self):
        class Old(Actor, name="grown"):
            state = {"n": 1}

        handle = client.create(Old, 1)

        class New(Actor, name="grown2"):
            state = dict

            def migrate_state(self, c, stored):
                return {"n": stored["n"], "version": 2}

            @action(read_only=True)
            def read(self, c):
                return c.state

            @action
            def touch(self, c):
                return c.state

        from rivet_workflows.registry import registry

        registry.replace("grown", New)
        assert handle.touch() == {"n": 1, "version": 2}
        assert looking.plain_state(handle) == {"n": 1, "version": 2}
        assert handle.read() == {"n": 1, "version": 2}

    def test_the_log_says_which_actor_it_is_about(self, caplog):
        class Logger(Actor):
            @action
            def write(self, c):
                c.log.warning("hello")

        handle = client.create(Logger, 1)
        with caplog.at_level(logging.WARNING, "rivet_workflows"):
            handle.write()
        assert caplog.records[-1].rivet_actor_id == str(handle.actor_id)

    def test_now_is_aware(self):
        class Clock(Actor):
            @action
            def now(self, c):
                return c.now()

        assert client.create(Clock, 1).now().utcoffset().total_seconds() == 0
