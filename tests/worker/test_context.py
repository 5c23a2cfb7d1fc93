"""What a step does through its context, and what is gathered of it."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any
from uuid import UUID, uuid4

import pytest

from rivet_workflows import Actor, Event, Queue, codec
from rivet_workflows.exceptions import RivetError
from rivet_workflows.records import Outgoing, StateWrite
from rivet_workflows.worker.context import StepContext, StepIsOver
from tests.worker.support import States, environment, run, start


@dataclass
class CartState:
    status: str = "new"
    count: int = 0
    lines: list[str] = field(default_factory=list)


@pytest.fixture
def cart() -> type[Actor]:
    class Cart(Actor):
        state = CartState
        vars = dict
        orders = Queue(int, reply=str)
        changed = Event(str)

    return Cart


@pytest.fixture
def states() -> States:
    return States()


@pytest.fixture
def actor_id(states: States) -> UUID:
    number = uuid4()
    states.put(number, CartState(), version=7)
    return number


@pytest.fixture
def step(cart: type[Actor], states: States, actor_id: UUID) -> StepContext:
    return StepContext(start(lambda step: None, actor="cart", actor_id=actor_id), environment(states))


def new_state(effects: Any) -> Any:
    return codec.loads(effects.state.prepared.body)


# -- identifiers -----------------------------------------------------------------------------------------


def test_the_identifiers_stay_when_the_step_is_over(step: Any, actor_id: UUID):
    step.end("has ended")
    assert (step.actor_id, step.name, step.key, step.attempt) == (actor_id, "cart", "k", 1)
    assert step.idempotency_key == "key-1"
    assert step.step_name == "<lambda>"
    assert not step.is_cancelled()
    step.log.info("still there")


@pytest.mark.parametrize(
    "use",
    [
        lambda step: step.state,
        lambda step: setattr(step, "state", 1),
        lambda step: step.update(len),
        lambda step: step.vars,
        lambda step: step.input,
        lambda step: step.now(),
        lambda step: step.queue,
        lambda step: step.broadcast("changed", "x"),
        lambda step: step.complete(SimpleNamespace(id=1, name="orders"), "ok"),
        lambda step: step.destroy(),
        lambda step: step.client(),
        lambda step: step.schedule,
        lambda step: step.cron,
    ],
)
def test_everything_else_raises_then_and_names_the_step(step: Any, use):
    step.end("has timed out")
    with pytest.raises(StepIsOver, match='step "<lambda>" has timed out'):
        use(step)


def test_parts_kept_from_the_step_raise_too(step: Any):
    queue, client = step.queue, step.client()
    step.end("has ended")
    with pytest.raises(StepIsOver):
        queue.send("orders", 1)
    with pytest.raises(StepIsOver):
        client.deliver(Outgoing(uuid4(), "q", "1"))


# -- state -----------------------------------------------------------------------------------------------


def test_a_step_that_does_not_touch_the_state_costs_no_query(step: Any, states: States):
    assert step.effects(ok=True) is None
    assert states.loads == 0


def test_the_state_is_loaded_once_and_reading_changes_nothing(step: Any, states: States):
    assert step.state.status == "new"
    assert step.state is step.state
    assert states.loads == 1
    assert step.effects(ok=True) is None


def test_a_change_carries_what_it_was_based_on(step: Any):
    step.state.lines.append("a")
    change = step.effects(ok=True).state
    assert change.base_version == 7
    assert codec.loads(change.base) == CartState()
    assert codec.loads(change.changed) == CartState(lines=["a"])
    assert change.prepared == StateWrite(7, change.changed)


def test_the_state_can_be_replaced(step: Any):
    step.state = CartState(status="paid")
    assert new_state(step.effects(ok=True)).status == "paid"


def test_a_state_of_another_type_is_refused(step: Any):
    step.state.count = "many"
    step.state = {"status": 3}
    with pytest.raises(RivetError, match="state of cart"):
        step.effects(ok=True)


def test_updates_run_on_the_newest_state(step: Any, states: States, actor_id: UUID):
    def count(state: CartState) -> None:
        state.count += 1

    step.update(count)
    assert states.loads == 0
    states.put(actor_id, CartState(count=41), version=9)
    effects = step.effects(ok=True)
    assert effects.state.base_version is None
    assert effects.state.prepared.version == 9
    assert new_state(effects).count == 42


def test_updates_come_on_top_of_changes(step: Any):
    step.update(lambda state: state.lines.append("update"))
    step.state.lines.append("change")
    assert new_state(step.effects(ok=True)).lines == ["change", "update"]


def test_an_actor_without_state_says_so(states: States):
    class Plain(Actor):
        pass

    step = StepContext(start(lambda step: None, actor="plain"), environment(states))
    with pytest.raises(RivetError, match="plain declares no state"):
        step.state


async def test_the_state_can_be_touched_under_a_running_loop(step: Any):
    assert step.state.status == "new"


def test_a_hook_is_told_of_a_change_and_may_not_change_it(states: States):
    seen = []

    class Told(Actor):
        state = CartState

        def on_state_change(self, c, state):
            seen.append(state.count)
            c.broadcast("changed", state.count)
            if state.count == 13:
                state.count = 14

    def step_with(count: int) -> Any:
        number = uuid4()
        states.put(number, CartState())
        step = StepContext(start(lambda step: None, actor="told", actor_id=number), environment(states))
        step.state.count = count
        return step

    assert step_with(1).effects(ok=True).events == [("changed", "1")]
    with pytest.raises(RivetError, match="on_state_change changed"):
        step_with(13).effects(ok=True)
    assert step_with(0).effects(ok=True) is None
    assert seen == [1, 13]


def test_an_old_state_is_migrated_as_it_is_read(states: States):
    class Migrated(Actor):
        state = CartState

        def migrate_state(self, c, stored):
            return CartState(status=stored["status"]) if isinstance(stored, dict) else stored

    number = uuid4()
    states.put(number, {"status": "old"})
    step = StepContext(start(lambda step: None, actor="migrated", actor_id=number), environment(states))
    assert step.state == CartState(status="old")
    assert new_state(step.effects(ok=True)) == CartState(status="old")


def test_an_actor_older_than_its_state_begins_with_the_initial_one(cart: Any, states: States):
    number = uuid4()
    states.rows[number] = (1, None)
    step = StepContext(start(lambda step: None, actor="cart", actor_id=number), environment(states))
    assert step.state == CartState()
    assert step.effects(ok=True) is None


# -- vars, input, time -----------------------------------------------------------------------------------


def test_vars_are_kept_by_holding(cart: Any, states: States, actor_id: UUID):
    env: Any = environment(states)
    one = StepContext(start(lambda step: None, actor="cart", actor_id=actor_id), env)
    two = StepContext(start(lambda step: None, actor="cart", actor_id=actor_id, attempt=2), env)
    one.vars["n"] = 1
    assert two.vars == {"n": 1}
    env.vars.forget(actor_id)
    assert two.vars == {}


def test_input_is_a_fresh_copy(step: Any):
    step._start.input = codec.dumps({"n": []})
    step.input["n"].append(1)
    assert step.input == {"n": []}


def test_now_is_aware(step: Any):
    assert step.now().isoformat() == "2023-11-14T22:13:20+00:00"


# -- messages, events, replies ---------------------------------------------------------------------------


@pytest.mark.django_db
def test_a_message_to_itself_is_checked_and_gathered(step: Any, cart: Any, actor_id: UUID):
    step.queue.send("orders", "5")
    step.queue.send(cart.orders, 6, delay=2)
    one, two = step.effects(ok=True).sends
    assert (one.actor_id, one.queue, one.body, one.visible_at) == (actor_id, "orders", "5", None)
    assert two.visible_at > 1_700_000_000_000_000
    with pytest.raises(RivetError, match="body of queue"):
        step.queue.send("orders", "many")
    with pytest.raises(RivetError, match="no queue 'other'"):
        step.queue.send("other", 1)
    with pytest.raises(ValueError, match="negative"):
        step.queue.send("orders", 1, delay=-1)


def test_an_event_is_checked_and_gathered(step: Any, cart: Any):
    step.broadcast("changed", "a")
    step.broadcast(cart.changed, "b")
    step.broadcast("undeclared", {"any": 1})
    assert step.effects(ok=True).events == [
        ("changed", '"a"'),
        ("changed", '"b"'),
        ("undeclared", '{"any":1}'),
    ]
    with pytest.raises(RivetError, match="payload of event"):
        step.broadcast("changed", 3)


def test_completing_is_checked_and_the_first_response_counts(step: Any):
    message = SimpleNamespace(id=5, name="orders")
    step.complete(message, "yes")
    step.complete(message, "no")
    assert step.effects(ok=True).completes == [(5, '"yes"')]
    with pytest.raises(RivetError, match="reply on queue"):
        step.complete(message, 3)


def test_what_is_too_large_is_refused_with_the_setting(step: Any, settings):
    settings.RIVET_WORKFLOWS = {"MAX_PAYLOAD": 1024}
    with pytest.raises(RivetError, match="MAX_PAYLOAD allows 1,024"):
        step.broadcast("changed", "x" * 2000)


def test_a_failed_attempt_keeps_state_and_events_only(step: Any):
    step.state.count = 3
    step.broadcast("changed", "x")
    step.queue.send("orders", 1)
    step.complete(SimpleNamespace(id=5, name="orders"), "x")
    step.destroy()
    good, failed = step.effects(ok=True), step.effects(ok=False)
    assert good.destroy
    assert len(good.sends) == len(good.completes) == 1
    assert not failed.destroy
    assert failed.sends == failed.completes == []
    assert failed.events == [("changed", '"x"')]
    assert new_state(failed).count == 3


def test_a_client_of_a_step_sends_with_it(step: Any):
    client = step.client()
    assert step.client() is client
    message = Outgoing(uuid4(), "q", "1")
    assert client.deliver(message).id is None
    assert step.effects(ok=True).sends == [message]


@pytest.mark.django_db  # the clock asks the database anew from time to time
def test_an_immediate_send_of_a_step_has_the_same_key_in_every_attempt(cart: Any):
    def key(attempt: int) -> Any:
        step = StepContext(start(lambda step: None, actor="cart", attempt=attempt), environment())
        first = step.client()._once(Outgoing(uuid4(), "q", "1", wants_reply=True))
        second = step.client()._once(Outgoing(uuid4(), "q", "1", wants_reply=True))
        assert first.dedupe_hash != second.dedupe_hash
        return first.dedupe_hash

    assert key(1) == key(2)


# -- through a runner ------------------------------------------------------------------------------------


def test_a_failed_step_that_left_an_unstorable_state_reports_its_own_error(cart, states, actor_id):
    def spoil(step):
        step.broadcast("changed", "x")
        step.state = object()
        raise ValueError("mine")

    report = run(spoil, env=environment(states), actor="cart", actor_id=actor_id)
    assert report.error.is_a("ValueError")
    assert report.effects.state is None
    assert report.effects.events == [("changed", '"x"')]


def test_an_update_that_fails_fails_the_step(cart, states, actor_id):
    report = run(
        lambda step: step.update(lambda s: 1), env=environment(states), actor="cart", actor_id=actor_id
    )
    assert report.error.is_a("TypeError")
    assert "step.update" in report.error.message
