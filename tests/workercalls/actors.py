"""Actors with actions that run where a worker holds them. Declared by a function: each test's are its own."""

from __future__ import annotations

import types
from typing import Any

from rivet_workflows import Actor, Event, Queue, UserError, action


def declare(name: str = "feed", *, workflow: bool = True, **hooks: Any) -> Any:
    """An actor with vars, a state, and a workflow that adds up what it is sent."""

    class Feed(Actor, abstract=True):
        state = {"seen": [], "sum": 0}
        vars = dict
        numbers = Queue(int)
        flushed = Event(int)

        @action(on_worker=True)
        def put(self, c, key: str, value: int = 1) -> list[str]:
            c.vars[key] = value
            return sorted(c.vars)

        @action(on_worker=True, read_only=True)
        def look(self, c) -> dict[str, int]:
            return dict(c.vars)

        @action(on_worker=True)
        async def flush(self, c, fail: str = "") -> int:
            """Writes down what is in memory, tells it, and sends it to itself."""
            count = len(c.vars)
            c.state["seen"].append(sorted(c.vars))
            c.vars["flushes"] = c.vars.get("flushes", 0) + 1
            c.broadcast(Feed.flushed, count)
            c.queue.send(Feed.numbers, count)
            if fail == "user":
                raise UserError("not now", code="busy", metadata={"until": 5})
            if fail == "own":
                raise LookupError("nothing to see")
            return count

        @action(on_worker=True)
        def close(self, c) -> None:
            c.destroy()

        @action(on_worker=True)
        def who(self, c):
            return c.user, c.connection, self.key, c.actor_id

        @action(on_worker=True)
        def give(self, c, what: Any):
            c.state["sum"] = -1
            return object() if what == "object" else "x" * 2_000_000

        @action
        def add(self, c, number: int) -> int:
            c.state["sum"] += number
            return int(c.state["sum"])

        @action(read_only=True)
        def get(self, c):
            return c.state

    async def run(self, ctx):
        async for turn in ctx.loop("numbers"):
            message = await turn.queue.next("next", names=[Feed.numbers])
            if message.body < 0:
                break
            await turn.step("note", note, message.body)

    body = ({"run": run} if workflow else {}) | hooks
    return types.new_class("Feed", (Feed,), {"name": name}, lambda namespace: namespace.update(body))


def note(step, number: int) -> int:
    step.vars[f"n{number}"] = number
    step.update(lambda state: state.update(sum=state["sum"] + number))
    return number
