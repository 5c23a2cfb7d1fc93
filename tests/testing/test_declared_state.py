"""The declared type of a state holds at each write, wherever it is written, and its limit too: a wrong value fails
there, and nothing is lost."""

from __future__ import annotations

import typing
from dataclasses import dataclass, field
from typing import Any

import pytest
from pydantic import BaseModel

from rivet_workflows import Actor, PayloadTooLarge, UserError, ValidationFailed, action
from rivet_workflows.models import State as StateRow


@dataclass
class Line:
    sku: str
    count: int = 1


@dataclass
class Cart:
    owner: str = "ada"
    total: float = 0
    lines: list[Line] = field(default_factory=list)


class CartModel(BaseModel):
    owner: str = "ada"
    total: float = 0
    lines: list[Line] = []


class CartDict(typing.TypedDict):
    owner: str
    total: float
    lines: list[Line]


def plain() -> CartDict:
    return {"owner": "ada", "total": 0, "lines": []}


KINDS = [
    pytest.param(Cart, id="dataclass"),
    pytest.param(CartModel, id="pydantic"),
    pytest.param(plain, id="TypedDict"),
]


def put(state: Any, name: str, value: Any) -> None:
    if isinstance(state, dict):
        state[name] = value
    else:
        setattr(state, name, value)


def declare(kind: Any, **body: Any) -> Any:
    class Keeper(Actor):
        state = kind

        async def run(self, ctx):
            while True:
                message = await ctx.queue.next("next")
                call = self.queue_update if message.name == "update" else self.write
                await ctx.try_step("write", call, *message.body, max_retries=0)

        def write(self, step, name, value):
            put(step.state, name, value)

        def queue_update(self, step, name, value):
            step.update(lambda state: put(state, name, value))

        @action
        def put(self, c, name, value):
            put(c.state, name, value)
            c.broadcast("put", name)

        @action(on_worker=True)
        def put_there(self, c, name, value):
            put(c.state, name, value)

        @action
        def replace(self, c, value):
            c.state = value

        @action(read_only=True)
        def get(self, c):
            return c.state

    return Keeper


def wrong(way: str, rivet: Any, keeper: Any, name: str, value: Any) -> str:
    """Write it, which fails; what was said."""
    if way in ("step", "update"):
        keeper.send(way, [name, value])
        rivet.run_until_idle()
        (entry,) = [e for e in keeper.history() if e.kind == "step"]
        assert entry.status == "failed"
        return str(entry.error)
    with pytest.raises((ValidationFailed, PayloadTooLarge)) as failed:
        (keeper.put if way == "action" else keeper.put_there)(name, value)
    return str(failed.value)


WAYS = ["step", "update", "action", "on_worker"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("way", WAYS)
def test_a_value_of_another_type_fails_where_it_is_written(rivet, kind, way):
    keeper = rivet.client.create(declare(kind))
    keeper.put("owner", "bob")
    before = StateRow.objects.get().body
    assert "state of keeper: total: Input should be a valid number" in wrong(
        way, rivet, keeper, "total", "much"
    )
    assert StateRow.objects.get().body == before
    assert len(rivet.events(keeper)) == 1


@pytest.mark.parametrize("way", WAYS)
def test_so_does_one_inside_an_object_inside_a_list(rivet, way):
    keeper = rivet.client.create(declare(Cart))
    said = wrong(way, rivet, keeper, "lines", [Line("a"), Line("b", count="many")])  # type: ignore[arg-type]
    assert "state of keeper: lines.1.count: Input should be a valid integer" in said
    assert keeper.get() == Cart()


@pytest.mark.parametrize("way", WAYS)
def test_a_state_at_its_limit_is_kept_and_one_beyond_it_refused(rivet, settings, way):
    keeper = rivet.client.create(declare(Cart))
    keeper.put("owner", "")
    room = 2048 - len(StateRow.objects.get().body or "")
    settings.RIVET_WORKFLOWS = {"MAX_STATE": 2048}
    assert "MAX_STATE allows 2,048" in wrong(way, rivet, keeper, "owner", "x" * (room + 1))
    assert keeper.get().owner == ""
    if way in ("step", "update"):
        keeper.send(way, ["owner", "x" * room])
        rivet.run_until_idle()
    else:
        (keeper.put if way == "action" else keeper.put_there)("owner", "x" * room)
    assert len(StateRow.objects.get().body or "") == 2048


def test_what_can_become_its_type_becomes_it(rivet):
    keeper = rivet.client.create(declare(Cart))
    keeper.put("lines", [{"sku": "a", "count": "5"}])
    assert keeper.get().lines == [Line("a", 5)]
    keeper.replace({"owner": "bob", "total": 1})
    assert keeper.get() == Cart("bob", 1.0)


def test_a_plain_dict_stays_a_dict_and_takes_anything(rivet):
    keeper = rivet.client.create(declare({"owner": "ada"}))
    keeper.put("total", "much")
    with pytest.raises(ValidationFailed, match="Input should be a valid dictionary"):
        keeper.replace([1])
    assert keeper.get() == {"owner": "ada", "total": "much"}


def test_hooks_are_held_to_it_as_well(rivet, caplog):
    told: list[str] = []

    class Woken(Actor):
        def create_state(self, c, given) -> Cart:
            return Cart(total=given)

        def on_wake(self, c):
            c.state.total = "much"

        def on_error(self, c, event):
            told.append(f"{event.source}: {event.error.message}")

        async def run(self, ctx):
            await ctx.queue.next("wait")

        @action(read_only=True)
        def get(self, c):
            return c.state

    with pytest.raises(ValidationFailed, match=r"state of woken: total"):
        rivet.client.create(Woken, "bad", input="much")
    assert rivet.client.list(Woken) == []
    woken = rivet.client.create(Woken, "good", input=5)
    rivet.run_until_idle()
    assert told == [
        "on_wake: state of woken: total: Input should be a valid number, unable to parse string as a number"
    ]
    assert woken.get().total == 5


def test_a_stored_state_that_does_not_fit_any_more_says_what_to_write(rivet):
    class Old(Actor, name="aging"):
        state = {"owner": "ada"}

    class New(Actor):
        state = plain

        @action(read_only=True)
        def get(self, c):
            return c.state

    class Mended(New):
        def migrate_state(self, c, stored):
            return {"total": 0, "lines": [], **stored}

        @action
        def touch(self, c):
            return c.state

    aging = rivet.client.create(Old)
    rivet.deploy(Old, New)
    with pytest.raises(
        ValidationFailed, match=r"state of aging: total: Field required .*write migrate_state"
    ):
        aging.get()
    rivet.deploy(Old, Mended)
    assert aging.get() == {"owner": "ada", "total": 0, "lines": []}
    assert "total" not in (StateRow.objects.get().body or "")  # a reader writes nothing
    aging.touch()
    assert "total" in (StateRow.objects.get().body or "")


def test_on_state_change_is_told_of_updates_too_and_sees_what_is_stored(rivet):
    class Watched(Actor):
        state = Cart

        async def run(self, ctx):
            await ctx.step("raise", self.up)

        def up(self, step):
            step.state.owner = "bob"
            step.update(lambda state: put(state, "total", state.total + 1))

        def on_state_change(self, c, state):
            c.broadcast("seen", [state.owner, state.total])
            if state.total > 5:
                raise UserError("too much")

    watched = rivet.client.create(Watched)
    rivet.run_until_idle()
    assert [e.payload for e in rivet.events(watched)] == [["bob", 1]]
