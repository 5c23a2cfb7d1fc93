"""Who may open a WebSocket to which actor."""

from __future__ import annotations

import pytest
from asgiref.sync import async_to_sync

from rivet_workflows import Actor, UserError, action, client
from rivet_workflows.client import looking
from tests.client.shop import Cart
from tests.realtime.browser import connected, refused

pytestmark = pytest.mark.django_db


def close_code(path, user=None):
    return async_to_sync(refused)(path, user)


def test_without_an_account_it_is_closed_with_4401(user):
    client.create(Cart, "c-1")
    assert close_code("/ws/rivet/cart/c-1/") == 4401
    assert close_code("/ws/rivet/cart/none/") == 4401


def test_an_actor_that_refuses_is_4403(user):
    class Closed(Actor):
        def has_permission(self, request, operation, name):
            return operation != "connect"

    client.create(Closed, "x")
    assert close_code("/ws/rivet/closed/x/", user) == 4403


def test_an_actor_that_is_not_there_is_4404_and_is_not_made(user):
    assert close_code("/ws/rivet/cart/none/", user) == 4404
    assert close_code("/ws/rivet/nobody/x/", user) == 4404
    assert client.list(Cart) == []


def test_a_class_may_say_that_connecting_creates(user):
    class Room(Actor, create_on_connect=True):
        state = dict

    async def scenario():
        async with connected("/ws/rivet/room/lobby/", user):
            return await client.aget(Room, "lobby")

    assert async_to_sync(scenario)().key == "lobby"
    assert close_code("/ws/rivet/room/other/") == 4401
    assert len(client.list(Room)) == 1


@pytest.mark.parametrize(
    ("path", "key"),
    [
        ("c-1/", "c-1"),
        ("a/b/", "a/b"),
        ("?key=eu&key=7", ("eu", "7")),
        ("?key=", ""),
        ("", ()),
        ("?key=..", ".."),
    ],
)
def test_every_key_has_an_address(user, path, key):
    class Who(Actor):
        @action(read_only=True)
        def who(self, c):
            return self.key

    client.create(Who, key)

    async def scenario():
        async with connected(f"/ws/rivet/who/{path}", user) as browser:
            await browser.send(type="call", id=1, action="who")
            return await browser.receive()

    assert async_to_sync(scenario)()["output"] == (list(key) if isinstance(key, tuple) else key)


class TestHooks:
    def test_a_conn_01_a_conn_02_on_connect_and_on_disconnect_know_the_connection(self, user):
        class Hall(Actor):
            state = list

            def on_connect(self, c, connection):
                c.state.append(["in", connection.user.username, connection.id == c.connection.id])

            def on_disconnect(self, c, connection):
                c.state.append(["out", connection.user.username, connection.id == c.connection.id])

        hall = client.create(Hall, 1)

        async def scenario():
            async with connected("/ws/rivet/hall/1/", user):
                pass

        async_to_sync(scenario)()
        assert looking.plain_state(hall) == [["in", "ann", True], ["out", "ann", True]]

    def test_a_conn_01_an_error_in_on_connect_refuses_and_leaves_no_trace(self, user):
        class Full(Actor):
            state = list

            def on_connect(self, c, connection):
                c.state.append("in")
                raise UserError("full house")

            def on_disconnect(self, c, connection):
                c.state.append("out")

        full = client.create(Full, 1)
        assert close_code("/ws/rivet/full/1/", user) == 1011
        assert looking.plain_state(full) == []


def test_a_connection_ends_when_its_actor_is_destroyed(user):
    cart = client.create(Cart, "c-1")

    async def scenario():
        from rivet_workflows.realtime.hub import current_hub

        browser = await connected("/ws/rivet/cart/c-1/", user).__aenter__()
        await cart.adestroy()
        await current_hub().look()
        return await browser.closed()

    assert async_to_sync(scenario)() == 4404
