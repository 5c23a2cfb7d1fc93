"""How actors are declared, and what actions and hooks are given: A-CFG, A-CTX, A-KEY, A-LIM."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest

from rivet_workflows import (
    Actor,
    ActorExists,
    Event,
    PayloadTooLarge,
    Queue,
    QueueFull,
    QueueNotFound,
    RivetError,
    ValidationFailed,
    action,
)
from rivet_workflows.declaration import HOOKS
from rivet_workflows.registry import DeclarationError, registry


def test_a_cfg_01_an_unknown_option_is_refused():
    with pytest.raises(DeclarationError, match=r"retain.*E1\d\d"):
        type("Wrong", (Actor,), {}, retian=5)


def test_a_cfg_02_everything_that_an_actor_may_have():
    body: dict[str, Any] = {name: eval(f"lambda {', '.join(args)}: None") for name, args in HOOKS.items()}
    for name in ("create_state", "create_vars"):
        del body[name]

    class Whole(Actor):
        state = dict
        vars = dict
        orders = Queue(int, reply=str)
        told = Event(str)

        async def run(self, ctx): ...

        @action
        def act(self, c): ...

    kind = registry.get(type("Wholer", (Whole,), body))
    assert set(kind.hooks) == set(body)
    assert (set(kind.queues), set(kind.events), set(kind.actions)) == ({"orders"}, {"told"}, {"act"})
    assert kind.run is not None


@pytest.mark.parametrize("pair", ["state", "vars"])
def test_a_cfg_03_both_of_a_pair_are_refused(pair):
    makers = {"state": lambda self, c, input: {}, "vars": lambda self, c: {}}
    body = {pair: dict, f"create_{pair}": makers[pair]}
    with pytest.raises(DeclarationError, match=f"both {pair} and create_{pair}"):
        type("Both", (Actor,), body)


def test_a_cfg_04_what_is_declared_is_copied_for_each_actor(rivet):
    class Shared(Actor):
        state = {"items": []}
        vars = {"items": []}

        @action(on_worker=True)
        def add(self, c, item):
            c.vars["items"].append(item)
            c.state["items"].append(item)
            return c.vars["items"], c.state["items"]

    one, two = rivet.client.create(Shared, 1), rivet.client.create(Shared, 2)
    assert one.add("a") == (["a"], ["a"])
    assert two.add("b") == (["b"], ["b"])


def test_a_cfg_06_types_of_queues_and_events_are_checked_where_there_are_some(rivet):
    class Typed(Actor):
        typed = Queue(int)
        free = Queue()
        told = Event(int)

        @action
        def tell(self, c, payload):
            c.broadcast(Typed.told, payload)

    typed = rivet.client.create(Typed)
    typed.send("free", {"any": ["thing"]})
    for call in (lambda: typed.send("typed", "x"), lambda: typed.tell("x")):
        with pytest.raises(ValidationFailed):
            call()


def test_a_cfg_07_a_cfg_08_run_is_the_workflow_and_may_be_left_out(rivet):
    told: list[str] = []

    class Working(Actor):
        async def run(self, ctx):
            await ctx.step("fail", self.fail, max_retries=0)

        def fail(self, step):
            raise ZeroDivisionError("nought")

        def on_error(self, c, event):
            told.append(event.source)

    class Plain(Actor): ...

    working, plain = rivet.client.create(Working), rivet.client.create(Plain)
    rivet.run_until_idle()
    assert (str(working.status()), str(plain.status())) == ("failed", "idle")
    assert told == ["step"]
    with pytest.raises(DeclarationError, match="run is not async"):
        type("Wrong", (Actor,), {"run": lambda self, ctx: None})


def test_a_cfg_09_the_class_may_set_its_own_queue_limit(rivet, settings):
    settings.RIVET_WORKFLOWS = {"MAX_QUEUE_SIZE": 3}

    class Small(Actor, max_queue_size=2): ...

    class Usual(Actor): ...

    for cls, limit in ((Small, 2), (Usual, 3)):
        handle = rivet.client.create(cls)
        for n in range(limit):
            handle.send("any", n)
        with pytest.raises(QueueFull, match=f"{limit} messages"):
            handle.send("other", "one too many")
        assert len(rivet.messages(handle)) == limit


def test_a_ctx_01_what_c_offers(rivet):
    seen: dict[str, Any] = {}

    class Looking(Actor):
        state = dict

        @action
        def look(self, c):
            for name in ("state", "queue", "schedule", "cron", "log", "key", "name", "actor_id"):
                seen[name] = getattr(c, name)
            seen.update(client=c.client(), now=c.now(), user=c.user, connection=c.connection)
            c.broadcast("seen", 1)

        @action
        def end(self, c):
            c.destroy()

    looking = rivet.client.create(Looking, ("a", 1))
    looking.look()
    assert (seen["key"], seen["name"], seen["actor_id"]) == (("a", "1"), "looking", looking.actor_id)
    assert seen["client"].get("looking", ("a", 1)) == looking
    assert (seen["user"], seen["connection"]) == (None, None)
    looking.end()
    assert rivet.client.list(Looking) == []


def test_a_ctx_02_a_state_that_is_not_declared_says_what_to_declare(rivet):
    class Bare(Actor):
        @action
        def look(self, c):
            return c.state

        @action(on_worker=True)
        def vars_too(self, c):
            return c.vars

    bare = rivet.client.create(Bare)
    with pytest.raises(RivetError, match="declares no state: give the class a state = …"):
        bare.look()
    with pytest.raises(RivetError, match="has no vars: add `vars = …` to the class"):
        bare.vars_too()


# -- keys


class Keyed(Actor, abstract=True): ...


@pytest.fixture
def keyed() -> Any:
    return type("Keyed", (Keyed,), {}, name="keyed")


def test_a_key_01_a_text_is_a_key_of_one_part_and_no_key_is_the_empty_one(rivet, keyed):
    assert rivet.client.create(keyed, "a") == rivet.client.get(keyed, ("a",))
    assert rivet.client.create(keyed) == rivet.client.get(keyed, ()) != rivet.client.get(keyed, "a")
    number = UUID(int=5)
    assert rivet.client.create(keyed, number) == rivet.client.get(keyed, str(number))
    assert rivet.client.create(keyed, 7).key == "7"


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (("a", "b"), "a/b"),
        (("a", "b"), ("b", "a")),
        (("a", "b"), ("a/b",)),
        ("A", "a"),
        ("", ("", "")),
        ("a ", "a"),
    ],
)
def test_a_key_02_keys_are_equal_exactly_and_in_order(rivet, keyed, one, other):
    assert rivet.client.create(keyed, one) != rivet.client.create(keyed, other)
    for key in (one, other):
        with pytest.raises(ActorExists):
            rivet.client.create(keyed, key)


def test_a_key_03_unique_per_name(rivet, keyed):
    class Other(Actor): ...

    assert rivet.client.create(keyed, "a") != rivet.client.create(Other, "a")


def test_a_key_05_limits_hold_to_the_byte(rivet, keyed):
    for key in ("x" * 128, "ü" * 64, ("x" * 128,) * 8, "x" * 128):
        assert rivet.client.get_or_create(keyed, key)
    for key in ("x" * 129, "ü" * 65, ("x" * 128,) * 9):  # type: ignore[assignment]
        with pytest.raises(ValidationFailed, match="bytes"):
            rivet.client.get_or_create(keyed, key)
    assert type("Long", (Actor,), {}, name="n" * 64)
    with pytest.raises(DeclarationError, match="name"):
        type("Longer", (Actor,), {}, name="n" * 65)


# -- the limits of the settings table, each at its edge: n passes, n + 1 fails with its own error and writes nothing


def declare() -> Any:
    class Limited(Actor):
        state = dict

        @action
        def put(self, c, text):
            c.state["text"] = text

        @action
        def tell(self, c, payload):
            c.broadcast("told", payload)

        @action
        def plan(self, c, count):
            for n in range(count):
                c.schedule.after(60, "put", str(n))

        @action
        def post(self, c, count):
            for n in range(count):
                c.queue.send("box", n)

        @action(on_worker=True)
        def give(self, c, text, size):
            c.state["text"] = "given"
            return "x" * size

        @action(read_only=True)
        def get(self, c):
            return c.state

    return Limited


@pytest.fixture
def limited(rivet: Any) -> Any:
    return rivet.client.create(declare())


def edge(limit: int, overhead: int) -> tuple[str, str]:
    """A text that is just small enough with so many bytes around it, and one that is not."""
    return "x" * (limit - overhead), "x" * (limit - overhead + 1)


def test_a_lim_max_input_size(rivet, settings):
    settings.RIVET_WORKFLOWS = {"MAX_INPUT_SIZE": 1024}
    fits, too_large = edge(1024, 2)
    cls = declare()
    rivet.client.create(cls, 1, input=fits)
    with pytest.raises(PayloadTooLarge, match="MAX_INPUT_SIZE allows 1,024"):
        rivet.client.create(cls, 2, input=too_large)
    assert len(rivet.client.list(cls)) == 1


def test_a_lim_max_state(rivet, limited, settings):
    settings.RIVET_WORKFLOWS = {"MAX_STATE": 1024}
    fits, too_large = edge(1024, len('{"text":""}'))
    limited.put(fits)
    with pytest.raises(PayloadTooLarge, match="MAX_STATE allows 1,024"):
        limited.put(too_large)
    assert limited.get() == {"text": fits}


def test_a_lim_max_payload_of_an_event(rivet, limited, settings):
    settings.RIVET_WORKFLOWS = {"MAX_PAYLOAD": 1024}
    fits, too_large = edge(1024, 2)
    limited.tell(fits)
    with pytest.raises(PayloadTooLarge, match="MAX_PAYLOAD allows 1,024"):
        limited.tell(too_large)
    assert [event.payload for event in rivet.events(limited)] == [fits]


def test_a_lim_max_payload_of_a_steps_result(rivet, settings):
    settings.RIVET_WORKFLOWS = {"MAX_PAYLOAD": 1024}
    fits, too_large = edge(1024, 2)

    class Returning(Actor):
        async def run(self, ctx):
            return await ctx.step("give", self.give, max_retries=0)

        def give(self, step):
            return step.input

    assert rivet.client.create(Returning, 1, input=fits).result() == fits
    beyond = rivet.client.create(Returning, 2, input=too_large)
    rivet.run_until_idle()
    assert "MAX_PAYLOAD allows 1,024" in str(beyond.status().error)


def test_a_lim_max_payload_of_a_call(rivet, limited, settings):
    settings.RIVET_WORKFLOWS = {"MAX_PAYLOAD": 1024}
    around = len('{"args":["",0],"kwargs":{},"plain":false}')
    fits, too_large = edge(1024, around)
    limited.give(fits, 0)
    with pytest.raises(PayloadTooLarge, match="arguments of action"):
        limited.give(too_large, 0)
    limited.put("before")
    assert len(limited.give("", 1022)) == 1022
    limited.put("before")
    with pytest.raises(PayloadTooLarge, match="result of action"):
        limited.give("", 1023)
    assert limited.get() == {"text": "before"}


def test_a_lim_max_message_size(rivet, limited, settings):
    settings.RIVET_WORKFLOWS = {"MAX_MESSAGE_SIZE": 1024}
    fits, too_large = edge(1024, 2)
    limited.send("box", fits)
    with pytest.raises(PayloadTooLarge, match="MAX_MESSAGE_SIZE allows 1,024"):
        limited.send("box", too_large)
    assert [message.body for message in rivet.messages(limited)] == [fits]


def test_a_lim_max_queue_size(rivet, limited, settings):
    settings.RIVET_WORKFLOWS = {"MAX_QUEUE_SIZE": 5}
    limited.post(5)
    for more in (1, 2):
        with pytest.raises(QueueFull, match="5 messages"):
            limited.post(more)
    assert len(rivet.messages(limited)) == 5


def test_a_lim_max_schedules(rivet, limited, settings):
    settings.RIVET_WORKFLOWS = {"MAX_SCHEDULES": 3}
    limited.plan(3)
    with pytest.raises(RivetError, match="3") as failed:
        limited.plan(1)
    assert failed.value.code == "schedule_max_schedules_exceeded"
    assert len(rivet.timers(limited)) == 3


@pytest.fixture
def small_scopes(settings: Any) -> None:
    settings.RIVET_WORKFLOWS = {"MAX_SCOPE_ENTRIES": 10}


def test_a_lim_max_scope_entries(small_scopes, rivet):

    class Many(Actor):
        async def run(self, ctx):
            for n in range(ctx.input):
                await ctx.step("one", self.one, n)

        def one(self, step, n):
            return n

    assert rivet.client.create(Many, 10, input=10).result() is None
    beyond = rivet.client.create(Many, 11, input=11)
    rivet.run_until_idle()
    assert "MAX_SCOPE_ENTRIES" in str(beyond.status().error)
    assert len(beyond.history()) == 10


def test_a_lim_names_of_queues_have_128_characters_at_most(rivet, limited):
    limited.send("q" * 128, 1)
    with pytest.raises(QueueNotFound, match="1 to 128 characters"):
        limited.send("q" * 129, 1)
    assert len(rivet.messages(limited)) == 1
