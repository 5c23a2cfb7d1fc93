"""``ctx.child`` in the whole worker: another actor's workflow, to its result, without holding anything up."""

from __future__ import annotations

from typing import Any

from django.db import IntegrityError

from rivet_workflows import Actor, ChildFailed, Queue, client
from tests import sidedb
from tests.sidedb import SideDatabase
from tests.waiting import until
from tests.worker.fleet import Workers

pytestmark = sidedb.each


def double(step: Any, n: int) -> int:
    if n < 0:
        raise ValueError(f"{n} is negative")
    return 2 * n


class Doubling(Actor, name="doubling"):
    async def run(self, ctx: Any) -> int:
        return await ctx.step("double", double, ctx.input, max_retries=0)  # type: ignore[no-any-return]


class Gate(Actor, name="gate"):
    go = Queue()

    async def run(self, ctx: Any) -> Any:
        return (await ctx.queue.next("wait")).body


def declare() -> None:
    """The fixtures forget actors after each test; these stand at the top of the module."""
    from rivet_workflows.registry import registry

    for name, actor_type in _types.items():
        if registry.find(name) is None:
            registry.add(actor_type)


def _remember() -> dict[str, Any]:
    from rivet_workflows.registry import registry

    return {name: registry.get(name) for name in ("doubling", "gate")}


_types = _remember()


def test_a_parent_gets_the_results_of_its_children_and_their_failures_as_data(
    side: SideDatabase, workers: Workers
):
    declare()

    class Parent(Actor):
        async def run(self, ctx: Any) -> Any:
            async def one(b: Any, n: int) -> Any:
                try:
                    return await b.child("child", Doubling, f"child-{n}", input=n)
                except ChildFailed as exc:
                    return exc.error.message if exc.error else None

            return await ctx.map("children", one, [1, -1, 2, -2])

    handle = client.create(Parent, "1")
    workers.run_dry()
    assert handle.result() == [2, "-1 is negative", 4, "-2 is negative"]
    assert [e.kind for e in handle.history()].count("child") == 4


def test_a_child_that_exists_is_joined_and_woken_by_its_end(side: SideDatabase, workers: Workers):
    declare()

    class Joiner(Actor):
        async def run(self, ctx: Any) -> Any:
            return await ctx.child("gate", "gate", "shared")

    gate = client.create(Gate, "shared")
    parents = [client.create(Joiner, str(n)) for n in range(3)]
    workers.start()
    until(lambda: all(p.history() for p in parents))
    assert [str(p.status()) for p in parents] == ["sleeping"] * 3
    gate.send("go", "open")
    assert [p.result(timeout=30) for p in parents] == ["open"] * 3


def test_cancelling_the_child_fails_the_parent_and_cancelling_the_parent_leaves_the_child(
    side: SideDatabase, workers: Workers
):
    declare()

    class Watcher(Actor):
        async def run(self, ctx: Any) -> Any:
            return await ctx.child("gate", Gate, ctx.key)

    watcher, other = client.create(Watcher, "a"), client.create(Watcher, "b")
    workers.start()
    until(lambda: side.store.find("gate", '["a"]') and side.store.find("gate", '["b"]'))
    client.get(Gate, "a").cancel()
    until(lambda: str(watcher.status()) == "failed")
    other.cancel()
    gate = client.get(Gate, "b")
    assert str(gate.status()) != "cancelled"
    gate.send("go", 1)
    assert gate.result(timeout=30) == 1


def test_a_child_that_the_database_refuses_fails_its_parent_instead_of_leaving_it_waiting(
    side: SideDatabase, workers: Workers
):
    class Taken(Actor, name="taken"):
        def on_create(self, c: Any, input: Any) -> None:
            raise IntegrityError("this slot is taken")

        async def run(self, ctx: Any) -> None: ...

    class Parent(Actor):
        async def run(self, ctx: Any) -> str:
            try:
                await ctx.child("child", Taken, "1")
            except ChildFailed as exc:
                return exc.error.message if exc.error else ""
            return "it began"

    handle = client.create(Parent, "1")
    workers.run_dry()
    assert handle.result() == "this slot is taken"
