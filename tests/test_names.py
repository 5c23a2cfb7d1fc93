"""Names that no column holds are refused where they are given, by whoever gives them, and nothing is lost."""

from __future__ import annotations

from typing import Any

import pytest

from rivet_workflows import Actor, action

pytestmark = pytest.mark.django_db
BAD = ["x" * 129, "a/b", "nul\0", "", "\ud800"]
LONGEST = "x" * 128


@pytest.fixture
def names(rivet: Any) -> type[Actor]:
    class Names(Actor):
        async def run(self, ctx: Any) -> list[str]:
            send, told = ctx.input
            if send is not None:
                await ctx.queue.send(send, 1)
            outcome = await ctx.try_step("tell", self.tell, told, max_retries=0)
            return [] if outcome.ok else [outcome.failure.error.type, outcome.failure.error.message]

        def tell(self, step: Any, name: str) -> None:
            step.broadcast(name)

        @action
        def announce(self, c: Any, name: str) -> None:
            c.broadcast(name)

    return Names


@pytest.mark.parametrize("name", BAD)
def test_an_event_is_refused_at_the_broadcast_of_a_step(rivet: Any, names: Any, name: str) -> None:
    handle = rivet.client.create(names, input=[None, name])
    rivet.run_until_idle()
    kind, message = handle.result(timeout=0)
    assert kind.endswith("ValueError")
    assert "an event's name has 1 to 128 characters" in message


@pytest.mark.parametrize("name", BAD)
def test_an_event_is_refused_at_the_broadcast_of_an_action(rivet: Any, names: Any, name: str) -> None:
    handle = rivet.client.create(names, input=[None, "told"])
    with pytest.raises(ValueError, match="an event's name has 1 to 128 characters"):
        handle.call("announce", name)


@pytest.mark.parametrize("name", [bad for bad in BAD if bad])
def test_a_queue_is_refused_at_the_send_of_a_workflow(rivet: Any, names: Any, name: str) -> None:
    handle = rivet.client.create(names, input=[name, "told"])
    rivet.run_until_idle()
    assert str(handle.status()) == "failed"
    assert "a queue's name has 1 to 128 characters" in str(handle.status().error)


def test_the_longest_names_are_stored(rivet: Any, names: Any) -> None:
    handle = rivet.client.create(names, input=[LONGEST, LONGEST])
    rivet.run_until_idle()
    assert handle.result(timeout=0) == []
    handle.call("announce", LONGEST)
