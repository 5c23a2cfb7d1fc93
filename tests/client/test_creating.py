"""Making and finding actors."""

from __future__ import annotations

import uuid

import pytest

from rivet_workflows import (
    Actor,
    ActorExists,
    ActorNotFound,
    PayloadTooLarge,
    ValidationFailed,
    action,
    client,
)
from tests.client.helpers import rolled_back
from tests.client.shop import Cart, CartState, Order

pytestmark = pytest.mark.django_db


def test_get_or_create_makes_an_actor_once_and_says_so():
    first = client.get_or_create(Cart, "c-1")
    second = client.get_or_create("cart", "c-1")
    assert (first.created, second.created) == (True, False)
    assert first == second
    assert (first.name, first.key) == ("cart", "c-1")


def test_create_refuses_a_key_that_is_taken():
    client.create(Cart, "c-1")
    with pytest.raises(ActorExists) as caught:
        client.create(Cart, ("c-1",))
    assert caught.value.code == "actor_exists"


def test_an_int_key_and_its_text_are_one_actor_and_read_back_as_text():
    made = client.create(Cart, 1)
    assert client.get(Cart, "1") == made
    assert made.key == "1"
    assert client.create(Cart, ("eu", 7)).key == ("eu", "7")


def test_the_same_key_of_another_name_is_another_actor():
    assert client.create(Cart, "x") != client.create(Order, "x")


def test_get_never_creates():
    with pytest.raises(ActorNotFound):
        client.get(Cart, "none")
    assert client.list(Cart) == []


def test_an_unknown_name_says_what_there_is():
    with pytest.raises(LookupError, match="did you mean 'cart'"):
        client.get_or_create("carts", 1)


def test_get_for_id_finds_by_uuid_or_its_text_and_never_a_successor():
    first = client.create(Cart, 1)
    assert client.get_for_id(str(first.actor_id)) == first == client.get_for_id(first.actor_id)
    first.destroy()
    client.create(Cart, 1)
    with pytest.raises(ActorNotFound):
        client.get_for_id(first.actor_id)


@pytest.mark.parametrize("nonsense", ["", "x", None, 7, uuid.uuid4()])
def test_get_for_id_of_what_is_no_actor(nonsense):
    with pytest.raises(ActorNotFound):
        client.get_for_id(nonsense)


def test_an_actor_made_in_a_transaction_that_rolls_back_was_never_there():
    with rolled_back():
        client.create(Cart, 1)
    assert client.list(Cart) == []


def test_list_by_name_status_and_key_in_order_of_birth_and_by_pages():
    carts = [client.create(Cart, n) for n in range(5)]
    client.create(Order, 1)
    assert client.list(Cart) == carts
    assert client.list(Cart, status="live", limit=2) == carts[:2]
    assert client.list(Cart, limit=2, after=carts[1].actor_id) == carts[2:4]
    assert client.list(Cart, status="failed") == []
    assert client.list(Cart, key=3) == [carts[3]]
    assert len(client.list()) == 6
    assert {handle.name for handle in client.list(key="1")} == {"cart", "order"}


def test_list_refuses_a_status_that_is_none():
    with pytest.raises(ValidationFailed, match="live, completed"):
        client.list(Cart, status="sleeping")


def test_too_large_an_input_is_refused_with_its_size(settings):
    settings.RIVET_WORKFLOWS = {"MAX_INPUT_SIZE": 2000}
    with pytest.raises(PayloadTooLarge, match=r"input has 2,\d\d\d bytes.*MAX_INPUT_SIZE allows 2,000"):
        client.create(Cart, 1, input="x" * 2100)


class TestHooks:
    def test_create_state_and_on_create_run_once_with_the_input_in_the_creators_transaction(self):
        class Greeter(Actor):
            def create_state(self, c, input):
                return {"greeting": f"hello {input['name']}", "key": self.key}

            def on_create(self, c, input):
                c.state["calls"] = c.state.get("calls", 0) + 1
                c.broadcast("born", input)

            @action(read_only=True)
            def read(self, c):
                return c.state

        expected = {"greeting": "hello ann", "key": "g", "calls": 1}
        assert client.get_or_create(Greeter, "g", input={"name": "ann"}).read() == expected
        assert client.get_or_create(Greeter, "g", input={"name": "bob"}).read() == expected

    def test_hooks_may_be_async(self):
        class Sleepy(Actor):
            async def create_state(self, c, input):
                return [input]

            async def on_create(self, c, input):
                c.state.append("created")

            @action(read_only=True)
            async def read(self, c):
                return c.state

        assert client.create(Sleepy, 1, input=5).read() == [5, "created"]

    def test_an_actor_whose_on_create_raises_is_not_made(self):
        class Picky(Actor):
            state = dict

            def on_create(self, c, input):
                raise ValueError("not today")

        with pytest.raises(ValueError, match="not today"):
            client.create(Picky, 1)
        assert client.list(Picky) == []

    def test_create_state_has_no_state_yet(self):
        class Eager(Actor):
            def create_state(self, c, input):
                return c.state

        with pytest.raises(Exception, match="create_state returns the state"):
            client.create(Eager, 1)

    def test_the_default_state_is_not_shared_between_actors(self):
        class Shared(Actor):
            state = {"items": []}

            @action
            def add(self, c, item):
                c.state["items"].append(item)
                return c.state["items"]

        assert client.create(Shared, 1).add("a") == ["a"]
        assert client.create(Shared, 2).add("b") == ["b"]


def test_destroy_runs_on_destroy_and_frees_the_key():
    cart = client.create(Cart, "c-1")
    assert cart.destroy() is True
    assert cart.destroy() is False
    with pytest.raises(ActorNotFound):
        cart.get_lines()
    again = client.create(Cart, "c-1")
    assert again.actor_id != cart.actor_id
    assert again.call("get_lines") == CartState().lines
