"""The client that steps are given: its sends join the step, its waiting sends are not repeated."""

from __future__ import annotations

import pytest

from rivet_workflows import client
from rivet_workflows.client import looking, waiting
from rivet_workflows.client.stepping import for_step
from tests.client import worker_side
from tests.client.shop import Order

pytestmark = pytest.mark.django_db


class Step:
    """As a worker's step context offers it."""

    def __init__(self):
        self.sent = []
        self.calls = 0

    def add(self, message):
        self.sent.append(message)

    def call_key(self):
        self.calls += 1
        return f"step-key:{self.calls}"


def test_a_send_waits_for_the_steps_commit():
    order = client.create(Order, 1)
    step = Step()
    sent = for_step(step).get(Order, 1).send(Order.control, "go")
    assert (sent.id, sent.status) == (None, "queued")
    assert [(message.queue, message.body) for message in step.sent] == [("control-commands", '"go"')]
    assert looking.messages(order) == []


def test_a_waiting_send_of_a_repeated_attempt_finds_the_first_ones_answer():
    order = client.create(Order, 1)

    def answer(look, timeout):
        if looking.messages(order):
            worker_side.complete(order, "done")
        return look()

    waiting.set_driver(answer)
    try:
        first, again = (
            for_step(Step()).get(Order, 1).send("control-commands", "go", wait=True, timeout=5)
            for _ in range(2)
        )
    finally:
        waiting.set_driver(None)
    assert (first.status, first.response, first.duplicate) == ("completed", "done", False)
    assert (again.status, again.response, again.duplicate) == ("completed", "done", True)
    assert again.id == first.id


def test_two_waiting_sends_of_one_attempt_are_two_messages():
    client.create(Order, 1)
    handle = for_step(Step()).get(Order, 1)
    ids = {handle.send("control-commands", "go", wait=True, timeout=0).id for _ in range(2)}
    assert len(ids) == 2
