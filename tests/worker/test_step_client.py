"""What a step does through ``step.client()`` is not repeated by a repeated attempt."""

from __future__ import annotations

from typing import Any

import pytest

from rivet_workflows import Actor, Queue, action, client

pytestmark = pytest.mark.django_db
CALLS: list[str] = []


class Counted(Actor, name="step_client_counted"):
    state = {"n": 0}
    box = Queue()

    @action
    def bump(self, c: Any, by: int) -> int:
        CALLS.append("bump")
        c.state["n"] += by
        return int(c.state["n"])

    @action(read_only=True)
    def get(self, c: Any) -> int:
        return int(c.state["n"])


def everything(step: Any) -> list[int]:
    counted = step.client().create(Counted, "made")
    values = [counted.call("bump", 1), counted.bump(10), counted.call("get")]
    counted.send("box", "hello")
    if step.attempt < 3:
        raise ValueError("once more")
    return values


class Caller(Actor, name="step_client_caller"):
    async def run(self, ctx: Any) -> Any:
        return await ctx.step("everything", everything, retry_backoff_base=0)


def test_creates_calls_and_sends_of_a_step_happen_once_over_its_attempts(rivet):
    CALLS.clear()
    caller = client.create(Caller, "1")
    rivet.run_until_idle()
    assert caller.result(timeout=0) == [1, 11, 11]
    assert CALLS == ["bump", "bump"]
    counted = client.get(Counted, "made")
    assert counted.call("get") == 11
    assert [m.body for m in rivet.messages(counted)] == ["hello"]


def test_an_actor_that_somebody_else_created_is_still_in_the_way(rivet):
    client.create(Counted, "made")
    caller = client.create(Caller, "2")
    rivet.run_until_idle()
    rivet.advance(minutes=5)
    assert str(caller.status()) == "failed"
    error = caller.status().error
    assert error is not None
    assert "there is a step_client_counted" in error.message
