"""An actor class: what it is registered as, what is known of it, what ``self`` is."""

from __future__ import annotations

import dataclasses
import typing
from datetime import timedelta
from uuid import UUID, uuid4

import pytest
from pydantic import BaseModel

from rivet_workflows.actors import Actor, Event, Queue, action
from rivet_workflows.exceptions import ActorNotFound, QueueNotFound, ValidationFailed
from rivet_workflows.registry import registry

ID = UUID(int=1)


@dataclasses.dataclass
class State:
    status: str = "pending"
    charges: list[str] = dataclasses.field(default_factory=list)


class Model(BaseModel):
    count: int = 0


class Typed(typing.TypedDict, total=False):
    count: int


def declare_checkout() -> type[Actor]:
    class Checkout(Actor):
        """Sells one order."""

        state = State
        orders = Queue(State)
        cron = Queue(name="cron-tick")
        changed = Event(str)

        async def run(self, ctx): ...

        @action(read_only=True)
        def get_state(self, c):
            return c.state

        @action
        async def rename(self, c, title: str, *, loud: bool = False): ...

        @action(on_worker=True)
        def flush(self, c): ...

        def on_wake(self, c): ...

    return Checkout


@pytest.mark.parametrize(
    ("cls_name", "name"),
    [
        ("Checkout", "checkout"),
        ("HTTPCheck", "http_check"),
        ("OrderV2", "order_v2"),
        ("AB", "ab"),
        ("aB", "a_b"),
    ],
)
def test_it_is_registered_under_its_name_in_snake_case(cls_name: str, name: str) -> None:
    cls = type(cls_name, (Actor,), {})
    assert registry.get(name).cls is cls
    assert registry.get(cls).name == name


def test_a_name_option_overrides() -> None:
    class Checkout(Actor, name="shop.checkout-2"): ...

    assert registry.get(Checkout).name == "shop.checkout-2"


def test_everything_declared_is_found_under_its_name() -> None:
    found = registry.get(declare_checkout())
    assert found.doc == "Sells one order."
    assert set(found.queues) == {"orders", "cron-tick"}
    assert set(found.events) == {"changed"}
    assert set(found.hooks) == {"on_wake"}
    assert found.run is not None
    actions = found.actions
    assert {n: (a.read_only, a.on_worker, a.is_async) for n, a in actions.items()} == {
        "get_state": (True, False, False),
        "rename": (False, False, True),
        "flush": (False, True, False),
    }
    assert list(actions["rename"].signature.parameters) == ["title", "loud"]
    assert __file__ in found.location


def test_queues_and_events_are_themselves_on_the_class_and_know_their_names() -> None:
    checkout: typing.Any = declare_checkout()
    assert isinstance(checkout.orders, Queue)
    assert checkout.orders.name == "orders"
    assert checkout.cron.name == "cron-tick"
    assert checkout.changed.name == "changed"


def test_a_plain_actor_needs_nothing() -> None:
    class Plain(Actor): ...

    found = registry.get(Plain)
    assert found.run is None
    assert found.code == ""
    assert not found.state_enabled
    assert found.initial_state() is None
    assert found.doc == ""


def test_queues_events_actions_hooks_and_run_are_inherited() -> None:
    base = declare_checkout()

    class Sub(base, name="sub"):  # type: ignore
        extra = Queue()

        @action
        def flush(self, c): ...

    found = registry.get(Sub)
    assert set(found.queues) == {"orders", "cron-tick", "extra"}
    assert set(found.actions) == {"get_state", "rename", "flush"}
    assert not found.actions["flush"].on_worker
    assert found.run is registry.get("checkout").run
    assert found.state_type is State
    assert set(registry.get("checkout").queues) == {"orders", "cron-tick"}


def test_a_mixin_that_is_no_actor_contributes_too() -> None:
    class Pausable:
        control = Queue()

        @action
        def hold(self, c): ...

    class Job(Pausable, Actor): ...

    assert set(registry.get(Job).queues) == {"control"}
    assert set(registry.get(Job).actions) == {"hold"}


def test_an_attribute_set_to_none_takes_an_inherited_queue_away() -> None:
    base = declare_checkout()

    class Sub(base):  # type: ignore[misc, valid-type]
        orders = None

    assert set(registry.get(Sub).queues) == {"cron-tick"}


def test_an_abstract_class_is_not_registered_and_its_subclasses_are() -> None:
    class Base(Actor, abstract=True, strict_args=True, max_queue_size=5): ...

    class Job(Base, max_queue_size=7): ...

    assert registry.find("base") is None
    with pytest.raises(TypeError, match="abstract"):
        registry.get(Base)
    assert registry.get(Job).options.strict_args is True
    assert registry.get(Job).options.max_queue_size == 7


def test_the_class_options_are_kept() -> None:
    class Job(
        Actor,
        unique_names=True,
        retain=timedelta(days=30),
        create_on_connect=True,
        step_defaults={"timeout": 5, "max_retries": 1},
        removed={"validate-v1": "step"},
    ): ...

    found = registry.get(Job)
    assert found.options.unique_names
    assert found.options.retain == timedelta(days=30)
    assert found.options.create_on_connect
    assert found.options.removed == {"validate-v1": "step"}
    assert (found.step_options.timeout, found.step_options.max_retries) == (5, 1)


# -- state


@pytest.mark.parametrize("declared", [State, Model, dict, lambda: State()])
def test_state_is_made_afresh_for_each_actor(declared) -> None:
    job = type("Job", (Actor,), {"state": declared})
    found = registry.get(job)
    first, second = found.initial_state(), found.initial_state()
    assert first == second
    assert first is not second
    assert found.state_enabled


def test_a_dict_is_copied_to_the_bottom() -> None:
    class Job(Actor):
        state: typing.ClassVar = {"items": []}
        vars: typing.ClassVar = {"cache": {}}

    found = registry.get(Job)
    found.initial_state()["items"].append(1)
    found.initial_vars()["cache"]["x"] = 1
    assert found.initial_state() == {"items": []}
    assert found.initial_vars() == {"cache": {}}


def test_create_state_alone_enables_state_and_its_annotation_is_the_type() -> None:
    class Job(Actor):
        def create_state(self, c, input) -> State:
            return State(input)

    found = registry.get(Job)
    assert found.state_enabled
    assert found.state_type is State
    assert found.initial_state() is None


def test_the_nearer_of_state_and_create_state_wins_over_an_inherited_one() -> None:
    class Base(Actor, abstract=True):
        state = State

    class Job(Base):
        def create_state(self, c, input): ...

    class Again(Job):
        state = Model  # type: ignore

    assert registry.get(Job).state_type is None
    assert registry.get(Again).state_type is Model


@pytest.mark.parametrize("declared", [State, Model, Typed])
def test_a_state_is_checked_against_its_type(declared) -> None:
    found = registry.get(type("Job", (Actor,), {"state": declared}))
    assert found.validate_state(found.initial_state()) is not None
    with pytest.raises(ValidationFailed, match="state of job"):
        found.validate_state({"status": [], "count": "many"})


# -- self


def test_self_has_the_key_and_the_id_and_the_methods() -> None:
    class Job(Actor):
        factor = 3

        def double(self, value):
            return 2 * value

        async def run(self, ctx): ...

    job = registry.get(Job).bind(ID, ("a", "b"))
    assert isinstance(job, Job)
    assert job.key == ("a", "b")
    assert job.actor_id == ID
    assert job.double(4) == 8
    assert job.factor == 3


def test_setting_anything_on_self_is_refused_and_says_where_to_keep_it() -> None:
    job = registry.get(type("Job", (Actor,), {})).bind(ID, "k")
    with pytest.raises(AttributeError, match=r"c\.state.*c\.vars"):
        job.total = 1  # type: ignore[attr-defined]
    with pytest.raises(AttributeError, match=r"c\.state"):
        del job.key
    assert not hasattr(job, "total")


def test_state_and_vars_on_self_say_to_use_c() -> None:
    class Job(Actor):
        state = State
        vars = State

    assert Job.state is State
    job = registry.get(Job).bind(ID, "k")
    with pytest.raises(AttributeError, match=r"use c\.state"):
        _ = job.state
    with pytest.raises(AttributeError, match=r"use c\.vars"):
        _ = job.vars


def test_an_actor_class_is_not_instantiated() -> None:
    with pytest.raises(TypeError, match=r"client\.get_or_create\(Checkout, key\)"):
        declare_checkout()()


# -- queues (D-17)


def test_declared_queues_refuse_other_names_and_name_the_nearest() -> None:
    found = registry.get(declare_checkout())
    assert found.queue("orders") is found.cls.orders  # type: ignore[attr-defined]
    assert found.queue(found.cls.cron) is found.cls.cron  # type: ignore[attr-defined]
    assert found.has_queue("orders")
    assert not found.has_queue("order")
    with pytest.raises(QueueNotFound, match="did you mean 'orders'"):
        found.queue("order")


def test_an_actor_without_declared_queues_takes_any_name() -> None:
    found = registry.get(type("Job", (Actor,), {}))
    assert found.queue("anything") is None
    assert found.has_queue("anything")


def test_bodies_replies_and_payloads_are_checked_against_their_types() -> None:
    class Job(Actor):
        work = Queue(State, reply=int)
        done = Event(int)

    assert Job.work.validate_body({"status": "x"}) == State("x")
    assert Job.work.validate_reply("5") == 5
    assert Job.done.validate_payload(1) == 1
    with pytest.raises(ValidationFailed, match='body of queue "work": status'):
        Job.work.validate_body({"status": 5})
    with pytest.raises(ValidationFailed, match='reply on queue "work"'):
        Job.work.validate_reply("many")
    with pytest.raises(ValidationFailed, match='payload of event "done"'):
        Job.done.validate_payload("x")


# -- the registry


def test_an_unknown_name_is_a_lookup_error_that_names_the_nearest_and_where_to_look() -> None:
    declare_checkout()
    with pytest.raises(
        LookupError, match=r"(?s)'checkuot'.*did you mean 'checkout'.*INSTALLED_APPS"
    ) as caught:
        registry.get("checkuot")
    assert isinstance(caught.value, ActorNotFound)


@pytest.mark.parametrize("thing", [5, int, None, Actor])
def test_what_is_no_actor_is_refused(thing) -> None:
    with pytest.raises(TypeError):
        registry.get(thing)


def test_all_lists_by_name_and_unregister_forgets() -> None:
    registry.restore({})
    type("Zebra", (Actor,), {})
    type("Ape", (Actor,), {})
    assert [t.name for t in registry.all()] == ["ape", "zebra"]
    registry.unregister("ape")
    registry.unregister("ape")
    assert [t.name for t in registry.all()] == ["zebra"]


def test_a_deploy_puts_new_code_under_the_old_name() -> None:
    old = declare_checkout()
    before = registry.get(old).code

    class CheckoutV2(Actor):
        async def run(self, ctx):
            await ctx.sleep("new", 1)

    registry.replace(old, CheckoutV2)
    now = registry.get(old)
    assert (now.name, now.cls) == ("checkout", CheckoutV2)
    assert now.code != before

    async def run(self, ctx):
        return 5

    registry.replace("checkout", run=run)
    assert registry.get("checkout").run is run
    assert registry.get("checkout").cls is CheckoutV2
    with pytest.raises(TypeError, match="async def"):
        registry.replace("checkout", run=lambda self, ctx: None)


def test_the_code_hash_follows_what_run_does_and_nothing_else() -> None:
    def make(seconds):
        class Job(Actor):
            async def run(self, ctx):
                await ctx.sleep("a", 1)

        class Other(Actor):
            async def run(self, ctx):
                await ctx.sleep("a", 2)

        return registry.get(Job).code, registry.get(Other).code

    first, other = make(1)
    again, _ = make(1)
    assert len(first) == 16
    assert int(first, 16) >= 0
    assert first == again
    assert first != other


def test_two_instances_of_one_type_do_not_share_anything() -> None:
    found = registry.get(declare_checkout())
    one, two = found.bind(uuid4(), "1"), found.bind(uuid4(), "2")
    assert (one.key, two.key) == ("1", "2")
    assert one.actor_id != two.actor_id
