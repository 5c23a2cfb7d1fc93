"""Putting messages into an actor's queues."""

from __future__ import annotations

import math
from datetime import timedelta

import pytest
from django.db import transaction

from rivet_workflows import (
    Actor,
    ActorNotFound,
    PayloadTooLarge,
    Queue,
    QueueFull,
    QueueNotFound,
    SerializationError,
    ValidationFailed,
    client,
)
from rivet_workflows.client import Sent, looking, waiting
from rivet_workflows.models import Message
from tests.client import worker_side
from tests.client.helpers import rolled_back
from tests.client.shop import Order, OrderPlaced

pytestmark = pytest.mark.django_db


@pytest.fixture
def order():
    return client.create(Order, "o-1")


def bodies(handle):
    return [(message.queue, message.body) for message in looking.messages(handle)]


def test_a_send_is_queued_and_says_which_message_it_is(order):
    sent = order.send("orders", {"order_id": 7})
    assert sent == Sent(id=sent.id, status="queued", response=None, duplicate=False)
    assert bodies(order) == [("orders", {"order_id": 7, "total": 0.0})]


def test_a_queue_is_named_by_text_or_by_the_attribute_of_the_class(order):
    order.send(Order.orders, OrderPlaced(1))
    order.send(Order.control, "stop")
    assert [queue for queue, _ in bodies(order)] == ["control-commands", "orders"]


def test_the_body_is_checked_where_it_is_sent(order):
    with pytest.raises(ValidationFailed) as caught:
        order.send("orders", {"order_id": "seven"})
    assert caught.value.metadata["issues"][0]["path"] == ["order_id"]
    assert bodies(order) == []


def test_a_queue_that_is_not_declared_is_refused_by_name(order):
    with pytest.raises(QueueNotFound, match="order has no queue 'order'; did you mean 'orders'"):
        order.send("order", 1)


@pytest.mark.parametrize("name", ["", "a/b", "a\0b", "x" * 129, "\ud800"])
def test_an_actor_without_queues_takes_any_name_that_can_be_one(name):
    class Free(Actor): ...

    handle = client.create(Free, 1)
    assert handle.send("anything goes", 1).status == "queued"
    with pytest.raises(QueueNotFound, match="128 characters"):
        handle.send(name, 1)


def test_what_cannot_be_stored_is_refused_with_the_path_to_it(order):
    with pytest.raises(SerializationError, match=r"control-commands.*\['lock'\]"):
        order.send("control-commands", {"lock": object()})


def test_a_body_may_be_as_large_as_the_setting_says(order, settings):
    settings.RIVET_WORKFLOWS = {"MAX_MESSAGE_SIZE": 1024}
    order.send("control-commands", "x" * 1022)
    with pytest.raises(PayloadTooLarge, match="MAX_MESSAGE_SIZE allows 1,024"):
        order.send("control-commands", "x" * 1023)


def test_a_full_queue_refuses():
    class Small(Actor, max_queue_size=2):
        work = Queue(int)

    small = client.create(Small, 1)
    small.send("work", 1)
    small.send("work", 2)
    with pytest.raises(QueueFull):
        small.send("work", 3)


def test_a_send_rolls_back_with_its_transaction(order):
    with rolled_back():
        order.send("control-commands", 1)
    assert bodies(order) == []


def test_a_send_to_a_destroyed_actor_says_so(order):
    order.destroy()
    with pytest.raises(ActorNotFound):
        order.send("control-commands", 1)


def test_a_delayed_message_becomes_visible_later(order):
    sent = order.send("control-commands", 1, delay=timedelta(minutes=2))
    row = Message.objects.get(pk=sent.id)
    assert 119_000_000 < row.visible_at - row.sent_at <= 120_100_000


@pytest.mark.parametrize("delay", [-1, math.nan, math.inf, timedelta(seconds=-1)])
def test_a_delay_that_is_no_duration_is_refused_at_the_call(order, delay):
    with pytest.raises(ValueError, match="delay"):
        order.send("control-commands", 1, delay=delay)


class TestDedupe:
    def test_the_same_key_sends_once_and_gives_the_first_message(self, order):
        first = order.send("control-commands", 1, dedupe_key="evt_42")
        second = order.send("control-commands", 2, dedupe_key="evt_42")
        assert (first.duplicate, second.duplicate) == (False, True)
        assert second.id == first.id
        assert bodies(order) == [("control-commands", 1)]

    def test_keys_are_per_queue_and_per_actor(self, order):
        other = client.create(Order, "o-2")
        assert not order.send("control-commands", 1, dedupe_key="k").duplicate
        assert not order.send("orders", {"order_id": 1}, dedupe_key="k").duplicate
        assert not other.send("control-commands", 1, dedupe_key="k").duplicate

    def test_a_rolled_back_send_leaves_its_key_free(self, order):
        with rolled_back():
            order.send("control-commands", 1, dedupe_key="k")
        assert not order.send("control-commands", 1, dedupe_key="k").duplicate

    @pytest.mark.parametrize("key", ["", "x" * 1025])
    def test_keys_have_1_to_1024_characters(self, order, key):
        with pytest.raises(ValueError, match="1 to 1024"):
            order.send("control-commands", 1, dedupe_key=key)


class TestWaiting:
    """A driver stands for the worker: it is called in the place of waiting."""

    @pytest.fixture
    def answering(self, order):
        def use(act):
            def drive(look, timeout):
                act(timeout)
                return look()

            waiting.set_driver(drive)

        yield use
        waiting.set_driver(None)

    def test_a_completed_message_gives_its_response(self, order, answering):
        answering(lambda timeout: worker_side.complete(order, {"ok": (1, 2)}))
        sent = order.send("control-commands", "go", wait=True, timeout=1)
        assert (sent.status, sent.response) == ("completed", {"ok": (1, 2)})

    def test_a_message_that_nobody_completes_times_out_and_stays_queued(self, order, answering):
        answering(lambda timeout: None)
        sent = order.send("control-commands", "go", wait=True, timeout=1)
        assert (sent.status, sent.response) == ("timed_out", None)
        assert bodies(order) == [("control-commands", "go")]

    def test_a_message_that_was_taken_without_completing_it_has_failed(self, order, answering):
        answering(lambda timeout: worker_side.complete(order, ok=False))
        assert order.send("control-commands", "go", wait=True, timeout=1).status == "failed"

    def test_the_timeout_is_passed_on_in_seconds(self, order, answering):
        seen: list[float | None] = []
        answering(seen.append)
        order.send("control-commands", 1, wait=True, timeout=timedelta(minutes=1))
        order.send("control-commands", 1, wait=True)
        assert seen == [60.0, None]

    def test_d_24_waiting_inside_a_transaction_is_refused_at_once(self, order):
        with transaction.atomic(), pytest.raises(RuntimeError, match="would wait for ever"):
            order.send("control-commands", 1, wait=True)
        assert bodies(order) == []

    def test_without_a_worker_it_really_waits_and_times_out(self, order):
        assert order.send("control-commands", 1, wait=True, timeout=0.05).status == "timed_out"
        assert order.send("control-commands", 1, wait=True, timeout=0).status == "timed_out"

    @pytest.mark.parametrize("timeout", [-1, math.nan, "1"])
    def test_a_timeout_that_is_no_duration_is_refused_before_anything_is_sent(self, order, timeout):
        with pytest.raises((ValueError, TypeError), match="timeout"):
            order.send("control-commands", 1, wait=True, timeout=timeout)
        assert bodies(order) == []

    def test_a_timeout_without_wait_is_a_mistake(self, order):
        with pytest.raises(TypeError, match="wait=True"):
            order.send("control-commands", 1, timeout=1)
