"""Actor classes that cannot work are refused as they are defined, with the class, the line and the mend."""

from __future__ import annotations

import dataclasses
import importlib.util
import re
import sys
from datetime import timedelta

import pytest

from rivet_workflows.actors import Actor, Event, Queue, action, step
from rivet_workflows.declaration import HANDLE_ATTRIBUTES
from rivet_workflows.registry import DeclarationError, registry


def refused(make, id: str, *texts: str) -> None:
    before = registry.snapshot()
    with pytest.raises(DeclarationError) as caught:
        make()
    assert caught.value.id == f"rivet_workflows.{id}"
    assert re.search(r"\.py:\d+\]", str(caught.value))
    for text in texts:
        assert text in str(caught.value)
    assert registry.snapshot() == before


def body(**attributes):
    return lambda: type("Job", (Actor,), attributes)


def options(**given):
    return lambda: type("Job", (Actor,), {}, **given)


# -- names


def test_a_name_declared_twice_is_refused() -> None:
    class Job(Actor): ...

    def again():
        class Another(Actor, name="job"): ...

    refused(again, "E101", "'job' is taken by", "Job", 'name="…"')


def test_two_classes_of_one_name_in_one_place_are_refused() -> None:
    def both():
        class Job(Actor): ...

        class Job(Actor): ...  # type: ignore[no-redef]  # noqa: F811

    with pytest.raises(DeclarationError, match="is taken by"):
        both()


def test_the_same_class_met_again_is_not_a_second_one() -> None:
    def once():
        class Job(Actor): ...

        return Job

    once()
    latest = once()
    assert registry.get("job").cls is latest


def test_a_module_that_is_imported_again_is_fine_also_as_main(tmp_path) -> None:
    path = tmp_path / "shop_actors.py"
    path.write_text("from rivet_workflows.actors import Actor\n\nclass Reloaded(Actor):\n    pass\n")
    for name in ("shop_actors", "__shop_main__", "shop_actors"):
        spec = importlib.util.spec_from_file_location(name, path)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        assert registry.get("reloaded").cls is module.Reloaded
        sys.modules.pop(name, None)


@pytest.mark.parametrize("name", ["", "a b", "a/b", "x" * 65, "straße", 5, None, "-x"])
def test_an_actors_name_must_fit_a_url(name) -> None:
    refused(options(name=name), "E103", "cannot be an actor's name")


def test_an_unknown_class_option_is_refused_with_the_nearest() -> None:
    refused(options(strict_arg=True), "E102", "did you mean 'strict_args'?")
    refused(options(zzz=True), "E102", "unique_names")


@pytest.mark.parametrize(
    "given",
    [
        {"unique_names": 1},
        {"abstract": "yes"},
        {"retain": 30},
        {"retain": timedelta(0)},
        {"max_queue_size": 0},
        {"max_queue_size": True},
        {"step_defaults": {"timeout": -1}},
        {"step_defaults": {"time_out": 1}},
        {"step_defaults": 5},
        {"removed": {"a": "stop"}},
        {"removed": ["a"]},
    ],
)
def test_a_class_option_of_a_wrong_value_is_refused(given) -> None:
    refused(options(**given), "E104", next(iter(given)))


# -- the shape of methods


def test_run_must_be_an_async_def_that_takes_ctx() -> None:
    def plain(self, ctx): ...

    async def nothing(self): ...

    async def more(self, ctx, more): ...

    async def generator(self, ctx):
        yield 1

    refused(body(run=plain), "E110", "async def run(self, ctx)")
    refused(body(run=nothing), "E110", "write async def run(self, ctx)")
    refused(body(run=more), "E110", "more")
    refused(body(run=generator), "E110", "yield")
    refused(body(run=5), "E110")
    refused(body(run=Queue()), "E108")


def test_run_may_take_optional_parameters_of_its_own() -> None:
    async def run(self, ctx, verbose=False): ...

    body(run=run)()


@pytest.mark.parametrize(
    "name", ["create_state", "on_create", "migrate_state", "on_state_change", "on_error"]
)
def test_a_hook_that_lacks_a_parameter_is_refused_with_its_right_form(name: str) -> None:
    def hook(self, c): ...

    refused(body(**{name: hook}), "E111", f"write def {name}(self, c, ")


def test_hooks_may_be_async_but_not_generators_static_or_actions() -> None:
    async def fine(self, c): ...

    def generator(self, c):
        yield

    body(on_wake=fine)()
    refused(body(on_wake=generator), "E111", "yield")
    refused(body(on_wake=staticmethod(lambda c: None)), "E111", "staticmethod")
    refused(body(on_wake=action(lambda self, c: None)), "E111", "@action")


def test_an_action_takes_self_and_c() -> None:
    refused(body(get=action(lambda: None)), "E112", "def get(self, c, …)")
    refused(body(get=action(lambda c: None)), "E112", "def get(self, c, …)")
    refused(body(get=action(lambda *args: None)), "E112", "name self and c")


def test_a_generator_is_no_action() -> None:
    @action
    def pages(self, c):
        yield 1

    refused(body(pages=pages), "E112", "return a list")


def test_a_method_that_hides_an_inherited_action_is_refused() -> None:
    class Base(Actor):
        @action
        def rename(self, c): ...

    def sub():
        class Sub(Base):
            def rename(self, c): ...

    refused(sub, "E112", "add @action")


@pytest.mark.parametrize("name", sorted(HANDLE_ATTRIBUTES))
def test_an_action_is_not_named_like_a_handles_own_attribute(name: str) -> None:
    refused(body(**{name: action(lambda self, c: None)}), "E113", name)


@pytest.mark.parametrize("name", ["state", "vars", "_private", "ctor_id"])
def test_other_names_that_a_handle_could_not_reach_are_refused(name: str) -> None:
    refused(body(**{name: action(lambda self, c: None)}), "E113")


def test_an_action_is_not_named_like_another_with_an_a_in_front() -> None:
    act = action(lambda self, c: None)
    refused(body(get=act, aget=act), "E113", "get and aget")
    body(ago=act)()


@pytest.mark.parametrize("name", ["__init__", "__new__", "__setattr__"])
def test_self_holds_nothing_so_it_has_no_constructor(name: str) -> None:
    refused(body(**{name: lambda self: None}), "E105", "c.state")


# -- state, queues, events


@dataclasses.dataclass
class Needs:
    value: int


def test_state_must_be_makeable_without_arguments() -> None:
    async def later(): ...

    refused(body(state=Needs), "E107", "create_state")
    refused(body(vars=lambda x: x), "E107", "create_vars")
    refused(body(state=later), "E107", "async")


def test_state_and_create_state_in_one_class_are_refused() -> None:
    """A-CFG-03"""

    def both():
        class Job(Actor):
            state = dict

            def create_state(self, c, input): ...

    refused(both, "E106", "both state and create_state")


def test_queues_and_events_that_cannot_work_are_refused() -> None:
    shared = Queue()
    refused(body(a=Queue(name="x"), b=Queue(name="x")), "E108", "two queues are called 'x'")
    refused(body(a=Event(name="x"), b=Event(name="x")), "E108", "two events")
    refused(body(a=shared, b=shared), "E108", "another attribute")
    refused(body(a=Queue), "E108", "call it: Queue()")
    refused(body(key=Queue()), "E108", "cannot be called key")
    refused(body(on_wake=Queue()), "E111")
    refused(body(a=Queue(name="a/b")), "E103")
    refused(body(a=Queue(name="")), "E103")
    refused(body(a=Queue(name=5)), "E103")  # type: ignore[call-overload]


def test_a_queue_and_an_event_may_have_one_name() -> None:
    body(a=Queue(name="x"), b=Event(name="x"))()


# -- the decorators


@pytest.mark.parametrize("thing", [5, int, staticmethod(lambda self, c: 1), print])
def test_action_goes_on_methods_alone(thing) -> None:
    with pytest.raises(TypeError, match="@action goes on a method"):
        action(thing)


def test_action_checks_its_options() -> None:
    with pytest.raises(TypeError, match="read_only must be True or False"):
        action(read_only=1)  # type: ignore[call-overload]


def test_step_keeps_the_options_given_and_the_function_as_it_is() -> None:
    @step(timeout=5, max_retries=3)
    def charge(step, amount):
        return amount

    @step
    def plain(step): ...

    @step(context=False)
    def bare(amount):
        return amount

    assert charge.__rivet_step__ == {"timeout": 5, "max_retries": 3}  # type: ignore[attr-defined]
    assert plain.__rivet_step__ == {}  # type: ignore[attr-defined]
    assert bare.__rivet_step__ == {"context": False}  # type: ignore[attr-defined]
    assert charge(None, 7) == 7
    assert bare(7) == 7


def test_step_refuses_unknown_options_and_wrong_values_where_it_stands() -> None:
    with pytest.raises(TypeError, match="unknown step option 'time_out'"):
        step(time_out=5)  # type: ignore[call-overload]
    with pytest.raises(ValueError, match="timeout must be greater than 0"):
        step(timeout=0)


def test_step_refuses_what_cannot_be_a_step() -> None:
    async def later(step): ...

    def generator(step):
        yield

    with pytest.raises(TypeError, match="atomic=True needs a def"):
        step(atomic=True)(later)
    with pytest.raises(TypeError, match="yield"):
        step(generator)
    with pytest.raises(TypeError, match="on a function"):
        step(int)
