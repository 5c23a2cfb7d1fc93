"""Calls and sends over a WebSocket, and frames that are none."""

from __future__ import annotations

import json
from functools import partial
from typing import Any

import pytest
from asgiref.sync import async_to_sync

from rivet_workflows import Actor, Queue, action, client
from rivet_workflows.client import looking, waiting
from tests.client import worker_side
from tests.client.shop import Cart, Order
from tests.realtime.browser import connected

pytestmark = pytest.mark.django_db


@pytest.fixture
def cart():
    return client.create(Cart, "c-1")


@pytest.fixture
def talk(user):
    """Send frames to an actor's socket and give what comes back, one frame for each."""

    def talk(handle, *frames):
        async def scenario():
            async with connected(f"/ws/rivet/{handle.name}/{handle.key}/", user) as browser:
                answers = []
                for frame in frames:
                    await (browser.send_text(frame) if isinstance(frame, str) else browser.send(**frame))
                    answers.append(await browser.receive())
                return answers

        return async_to_sync(scenario)()

    return talk


def test_a_call_gives_a_result_with_its_id(talk, cart):
    assert talk(
        cart,
        {"type": "call", "id": 1, "action": "add", "args": [{"sku": "a"}]},
        {"type": "call", "id": "two", "action": "add", "kwargs": {"line": {"sku": "b"}}},
        {"type": "call", "id": 3, "action": "get_lines"},
    ) == [
        {"type": "result", "id": 1, "output": 1},
        {"type": "result", "id": "two", "output": 2},
        {"type": "result", "id": 3, "output": [{"sku": "a", "count": 1}, {"sku": "b", "count": 1}]},
    ]


def test_errors_have_the_calls_id_and_a_code(talk, cart, caplog):
    answers = talk(
        cart,
        {"type": "call", "id": 1, "action": "add_and_fail", "args": [{"sku": "a"}]},
        {"type": "call", "id": 2, "action": "nothing"},
        {"type": "call", "id": 3, "action": "add"},
        {"type": "call", "id": 4, "action": "peek_and_poke"},
    )
    assert [(a["type"], a["id"], a["code"]) for a in answers] == [
        ("error", 1, "closed"),
        ("error", 2, "action_not_found"),
        ("error", 3, "validation_failed"),
        ("error", 4, "internal_error"),
    ]
    assert answers[0]["detail"] == "no more today"
    assert answers[0]["metadata"] == {"until": "tomorrow"}
    assert answers[3]["detail"] == "an internal error occurred"
    assert "read_only=True" in caplog.text


def test_a_send_says_what_became_of_the_message(talk):
    order = client.create(Order, "o-1")
    (queued,) = talk(order, {"type": "send", "id": 1, "queue": "orders", "body": {"order_id": 5}})
    message_id = queued.pop("message_id")
    assert queued == {"type": "result", "id": 1, "status": "queued", "response": None, "duplicate": False}
    assert [(m.id, m.body["order_id"]) for m in looking.messages(order)] == [(message_id, 5)]


def test_a_waiting_send_brings_the_response(talk):
    order = client.create(Order, "o-1")

    def answer(look, timeout):
        if timeout == 7:
            worker_side.complete(order, {"paid": True})
        return look()

    waiting.set_driver(answer)
    try:
        frames = [
            {"type": "send", "id": n, "queue": "control-commands", "wait": True, "timeout": timeout}
            for n, timeout in enumerate((7, 1))
        ]
        done, late = talk(order, *frames)
    finally:
        waiting.set_driver(None)
    assert (done["status"], done["response"]) == ("completed", {"paid": True})
    assert (late["status"], late["response"]) == ("timed_out", None)


def test_a_dedupe_key_sends_once(talk):
    order = client.create(Order, "o-1")
    frame = {"type": "send", "id": 1, "queue": "control-commands", "dedupe_key": "k"}
    first, second = talk(order, frame, frame)
    assert (first["duplicate"], second["duplicate"]) == (False, True)


def test_sends_that_are_refused(talk):
    order = client.create(Order, "o-1")
    answers = talk(
        order,
        {"type": "send", "id": 1, "queue": "nothing"},
        {"type": "send", "id": 2, "queue": "orders", "body": "x"},
        {"type": "send", "id": 3, "queue": "control-commands", "body": "x" * 66_000},
        {"type": "send", "id": 4, "queue": "control-commands", "delay": 1e300},
        {"type": "send", "id": 5, "queue": "control-commands", "delay": 10**400},
        '{"type": "send", "id": 6, "queue": "control-commands", "delay": 1e999}',
    )
    assert [(a["id"], a["code"]) for a in answers] == [
        (1, "queue_not_found"),
        (2, "validation_failed"),
        (3, "payload_too_large"),
        (4, "validation_failed"),
        (5, "validation_failed"),
        (6, "validation_failed"),
    ]
    assert answers[3]["metadata"]["issues"][0]["path"] == ["delay"]
    assert looking.messages(order) == []


def test_messages_of_one_connection_keep_their_order(user):
    order = client.create(Order, "o-1")

    async def scenario():
        async with connected("/ws/rivet/order/o-1/", user) as browser:
            for n in range(20):
                await browser.send(type="send", id=n, queue="control-commands", body=n)
            return sorted([(await browser.receive())["id"] for _ in range(20)])

    assert async_to_sync(scenario)() == list(range(20))
    assert [m.body for m in looking.messages(order)] == list(range(20))


def test_every_frame_asks_for_permission(talk):
    asked = []

    class Guarded(Actor):
        work = Queue(int)

        @action
        def act(self, c): ...

        def has_permission(self, request, operation, name):
            asked.append((operation, name, request.user.username))
            return operation == "connect"

    guarded = client.create(Guarded, 1)
    answers = talk(
        guarded,
        {"type": "call", "id": 1, "action": "act"},
        {"type": "send", "id": 2, "queue": "work", "body": 1},
        {"type": "subscribe", "events": ["moved"]},
    )
    assert [(a["type"], a["id"], a["code"]) for a in answers] == [
        ("error", 1, "permission_denied"),
        ("error", 2, "permission_denied"),
        ("error", None, "permission_denied"),
    ]
    assert asked == [
        ("connect", None, "ann"),
        ("call", "act", "ann"),
        ("send", "work", "ann"),
        ("subscribe", "moved", "ann"),
    ]


@pytest.mark.parametrize(
    ("frame", "about"),
    [
        (" ", "not JSON"),
        ("{", "not JSON"),
        ('{"type": "call", "id": 1, "action": "who", "args": [NaN]}', "NaN is not JSON"),
        ("[" * 50_000, "nested too deeply"),
        ("[1]", "a JSON object"),
        ("{}", "type is one of"),
        ('{"type": ["call"]}', "type is one of"),
        ('{"type": "explode"}', "type is one of"),
        ('{"type": "call", "action": "who"}', "a call has an id"),
        ('{"type": "call", "id": true, "action": "who"}', "a call has an id"),
        ('{"type": "call", "id": 1}', "action is a name"),
        ('{"type": "call", "id": 1, "action": "who", "args": {}}', "args is a list"),
        ('{"type": "call", "id": 1, "action": "who", "kwargs": []}', "kwargs is an object"),
        ('{"type": "call", "id": 1, "acton": "who"}', "has no 'acton'"),
        ('{"type": "send", "queue": 5}', "queue is a name"),
        ('{"type": "send", "queue": "x", "wait": 1}', "true or false"),
        ('{"type": "send", "queue": "x", "timeout": 61}', "at most 60 seconds"),
        ('{"type": "send", "queue": "x", "timeout": -1}', "number of seconds"),
        ('{"type": "subscribe", "events": "all"}', "list of names"),
        ('{"type": "subscribe", "events": [1]}', "list of names"),
        ('{"type": "subscribe", "events": [], "after": -1}', "whole number"),
        ('{"type": "subscribe", "events": [], "after": true}', "whole number"),
    ],
)
def test_a_frame_that_is_none_is_answered_and_the_connection_lives_on(talk, cart, frame, about):
    answer, alive = talk(cart, frame, {"type": "call", "id": 9, "action": "get_lines"})
    assert (answer["type"], answer["code"]) == ("error", "invalid_frame")
    assert about in answer["detail"]
    assert alive == {"type": "result", "id": 9, "output": []}


def test_an_invalid_frame_with_an_id_is_answered_with_it(talk, cart):
    (answer,) = talk(cart, {"type": "call", "id": 7, "args": []})
    assert answer["id"] == 7


def test_binary_frames_are_none(user, cart):
    async def scenario():
        async with connected("/ws/rivet/cart/c-1/", user) as browser:
            await browser.send_bytes(b"\x00\x01")
            return await browser.receive()

    assert async_to_sync(scenario)()["code"] == "invalid_frame"


def test_a_conn_04_too_large_a_frame_closes_the_connection(user, cart):
    async def scenario():
        from tests.realtime.browser import Browser

        browser = await Browser("/ws/rivet/cart/c-1/", user).open()
        await browser.send_text(
            json.dumps({"type": "call", "id": 1, "action": "add", "args": ["x" * 70_000]})
        )
        return await browser.closed()

    assert async_to_sync(scenario)() == 1009


@pytest.mark.parametrize("behind", ["nothing", "the session middleware"])
@pytest.mark.parametrize(("code", "told"), [(1009, 4413), (1011, 4500), (4403, 4403)])
def test_under_daphne_a_connection_is_closed_with_a_code_that_daphne_takes(code, told, behind):
    """An application may close with 1000 and 3000 to 4999 alone there; anything else is an error of daphne's."""
    from channels.sessions import InstanceSessionWrapper
    from daphne.server import Server

    from rivet_workflows.realtime.consumer import ActorConsumer

    sent = []

    async def reply(message):
        sent.append(message)

    reply.__module__ = Server.handle_reply.__module__
    consumer = ActorConsumer()
    consumer.base_send = partial(reply)
    if behind == "the session middleware":
        scope: Any = {"type": "websocket", "session": {}}
        behind_it: Any = InstanceSessionWrapper(scope, consumer.base_send)
        consumer.base_send = behind_it.send
    async_to_sync(consumer.close)(code=code)
    assert sent[0]["code"] == told
