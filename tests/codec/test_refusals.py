"""What cannot come back fails at the call, with the path to it and what to pass instead."""

from __future__ import annotations

import asyncio
import io
import threading
from collections import Counter, defaultdict
from dataclasses import dataclass
from datetime import datetime
from typing import Any, NamedTuple

import pytest
from django.contrib.auth import get_user_model
from django.core.files.base import ContentFile
from django.http import HttpRequest, QueryDict
from django.utils.functional import SimpleLazyObject
from django.utils.safestring import SafeString, mark_safe
from django.utils.translation import gettext_lazy

from rivet_workflows.codec import dumps, loads, roundtrip, to_plain
from rivet_workflows.exceptions import SerializationError
from tests.codec import shop


def refusal(value: object, what: str = "result") -> str:
    with pytest.raises(SerializationError) as caught:
        dumps(value, what=what)
    return str(caught.value)


def test_the_message_has_the_path_and_the_mend() -> None:
    User = get_user_model()
    value = {"items": [1, 2, 3, shop.Money({"owner": User(pk=1)})]}
    message = refusal(value)
    assert message.startswith("result['items'][3].amount['owner'] cannot be stored: it is a model instance")
    assert message.endswith("Pass user.pk and load the row where it is used.")


class Text(str):
    __slots__ = ()


class Number(int):
    pass


class Items(list[int]):
    pass


async def coroutine() -> None: ...


def generator() -> Any:
    yield 1


@pytest.mark.parametrize(
    ("value", "mend"),
    [
        (lambda: get_user_model()(), "user.pk"),
        (lambda: get_user_model().objects.all(), "values_list"),
        (lambda: get_user_model().objects, "keys of the rows"),
        (lambda: SimpleLazyObject(lambda: 1 / 0), "request.user.pk"),
        (lambda: gettext_lazy("yes"), "str(value)"),
        (lambda: QueryDict("a=1"), "value.dict()"),
        (HttpRequest, "values you need"),
        (lambda: ContentFile(b"x"), "its name"),
        (lambda: defaultdict(list), "dict(value)"),
        (lambda: Counter("a"), "dict(value)"),
        (lambda: Text("a"), "str(value)"),
        (lambda: Number(1), "int(value)"),
        (lambda: Items(), "list(value)"),
        (generator, "list(value)"),
        (lambda: iter([1]), "list(value)"),
        (lambda: map(str, [1]), "list(value)"),
        (lambda: {}.keys(), "list(value)"),
        (threading.Lock, "inside the step"),
        (io.StringIO, "inside the step"),
        (lambda: memoryview(b"a"), "bytes(value)"),
        (lambda: len, "its name"),
        (lambda: test_the_message_has_the_path_and_the_mend, "its name"),
        (lambda: shop.Money, "its name"),
        (lambda: ValueError("x"), "str(error)"),
        (lambda: asyncio, "its name"),
        (lambda: shop.Login(user="a", password="geheim"), "where it is used"),  # type: ignore[arg-type]
        (object, "codec.register"),
        (lambda: threading.Event.__new__(threading.Event), "codec.register"),
        (lambda: shop.Box[type](content=int), "name of its own"),
        (shop.make_local, "top level"),
    ],
)
def test_each_kind_of_value_is_refused_with_what_to_pass(value: Any, mend: str) -> None:
    made = value()
    for wrapped in (made, [made], {"a": made}, (1, made)):
        assert mend in refusal(wrapped)
        with pytest.raises(SerializationError):
            to_plain(wrapped)
        with pytest.raises(SerializationError):
            roundtrip(wrapped)


def test_br099_a_coroutine_is_refused_without_a_warning_of_ours() -> None:
    made = coroutine()
    assert "Await it first" in refusal([made])
    made.close()


def test_a_secret_is_named_by_its_path_but_never_shown() -> None:
    message = refusal([shop.Login(user="a", password="geheim")])  # type: ignore[arg-type]
    assert message.startswith("result[0].password cannot be stored: it is a secret")
    assert "geheim" not in message


def test_values_are_never_asked_for_their_repr() -> None:
    class Broken:
        def __repr__(self) -> str:
            raise RuntimeError

        __str__ = __repr__

    assert "Broken" in refusal({"a": {1, Broken()}})
    assert ".keys()[0]" in refusal({Broken(): 1})


@pytest.mark.parametrize(
    ("value", "path"),
    [
        ({1: object()}, "result[1]"),
        ({(1, 2): object()}, "result[<tuple>]"),
        ((1, [object()]), "result[1][0]"),
        (shop.Point(1, object()), "result.y"),  # type: ignore[arg-type]
        (shop.Open.model_construct(id=1, more=object()), "result.more"),
        ({"a" * 100: object()}, "result['" + "a" * 59 + "…]"),
    ],
)
def test_paths(value: object, path: str) -> None:
    assert refusal(value).startswith(path + " cannot be stored")


def test_a_cycle_is_named_and_does_not_recurse() -> None:
    ring: list[Any] = [1]
    ring.append({"self": ring})
    assert (
        refusal(ring)
        == "result[1]['self'] cannot be stored: it contains itself. Pass a key or id in place of it."
    )
    twice: list[Any] = []
    twice += [twice, twice]
    assert "contains itself" in refusal({"a": twice})
    line = shop.Line("a")
    line.tags.append(line)  # type: ignore[arg-type]
    assert refusal(line).startswith("result.tags[0] cannot be stored: it contains itself")


@pytest.mark.parametrize(
    "wrap", [lambda v: [v], lambda v: (v,), lambda v: {"a": v}, lambda v: {1: v}, shop.Money]
)
def test_excessive_depth_is_refused_and_not_a_recursion_error(wrap: Any) -> None:
    value: Any = 1
    for _ in range(5000):
        value = wrap(value)
    assert "nested deeper than 100 levels" in refusal(value)


def test_depth_at_the_end_of_the_callers_stack_is_still_our_error() -> None:
    value: Any = (1,)
    for _ in range(90):
        value = (value,)

    def dive() -> None:
        try:
            dive()
        except RecursionError:
            dumps(value)

    with pytest.raises((SerializationError, RecursionError)):
        dive()


def test_safe_string_becomes_str_by_rule_since_a_row_must_not_be_believed() -> None:
    for value in (mark_safe("<b>"), [mark_safe("<b>")], {mark_safe("<b>"): mark_safe("<b>")}):
        again, _ = roundtrip(value)
        assert again == value
        assert SafeString not in {type(again), *(map(type, again) if not isinstance(again, str) else ())}


def test_the_result_of_a_drf_serializer_becomes_dict_and_list() -> None:
    from rest_framework import serializers

    class Form(serializers.Serializer[Any]):
        a = serializers.IntegerField()

    assert type(loads(dumps(Form({"a": 1}).data))) is dict
    again = loads(dumps({"x": Form([{"a": 1}], many=True).data}))
    assert again == {"x": [{"a": 1}]}
    assert type(again["x"]) is list


def test_a_class_of_the_running_script_is_refused() -> None:
    cls: Any = dataclass(type("Script", (), {"__annotations__": {}, "__module__": "__main__"}))
    assert "a worker does not have" in refusal(cls())


def test_a_field_that_is_not_set_is_refused() -> None:
    line = object.__new__(shop.Line)
    assert refusal(line).startswith("result.sku cannot be stored: this field is not set")
    assert "not set" in refusal(shop.Customer.model_construct(age=1))


def test_a_named_tuple_made_in_a_function_is_refused() -> None:
    class Local(NamedTuple):
        a: int

    assert "made in a function" in refusal(Local(1))


def test_a_registered_encode_that_fails_names_itself() -> None:
    from rivet_workflows.codec import register

    class Sick:
        pass

    register(Sick, name="tests.sick", encode=lambda value: 1 / 0, decode=lambda part: Sick())
    assert "the encode registered for 'tests.sick' raised ZeroDivisionError" in refusal([Sick()])


def test_an_attribute_that_is_no_field_is_refused_but_a_cached_property_is_not() -> None:
    assert "Declare it: _lock: <type> = field(init=False)" in refusal([shop.Hidden(1)])
    cached = shop.Cached(2)
    assert cached.double == 4
    again: Any = loads(dumps(cached))
    assert again == cached
    assert "double" not in vars(again)
    assert again.double == 4


def test_a_dataclass_on_top_of_a_built_in_type_is_refused() -> None:
    assert "on top of a built-in type" in refusal([shop.Failure(1)])


def test_fake_dates_of_freezegun_become_real_ones() -> None:
    fake = type("FakeDatetime", (datetime,), {"__module__": "freezegun.api", "__qualname__": "FakeDatetime"})
    again = loads(dumps([fake(2026, 1, 2, 3)]))
    assert again == [datetime(2026, 1, 2, 3)]
    assert type(again[0]) is datetime
