"""Values against declared types: what passes, what it becomes, and what the error says."""

from __future__ import annotations

import dataclasses
import typing
from datetime import date
from typing import TYPE_CHECKING, Any

import pytest
from pydantic import BaseModel

from rivet_workflows.exceptions import ValidationFailed
from rivet_workflows.validation import validate, validate_arguments

if TYPE_CHECKING:
    from somewhere import Unknown  # type: ignore[import-not-found]


@dataclasses.dataclass
class Order:
    id: int
    placed: date


class Model(BaseModel):
    amount: int


class Typed(typing.TypedDict):
    name: str
    note: typing.NotRequired[str]


class Opaque:
    pass


class Holder:
    def rename(self, c: Any, title: str, *tags: str, count: int = 1, **more: int) -> None: ...

    def place(self, c: Any, order: Order, when: Unknown | None = None) -> None: ...


def test_no_type_means_no_check() -> None:
    thing = object()
    assert validate(None, thing) is thing


@pytest.mark.parametrize(
    ("hint", "value", "expected"),
    [
        (Order, {"id": "7", "placed": "2026-01-02"}, Order(7, date(2026, 1, 2))),
        (Model, {"amount": 5}, Model(amount=5)),
        (Typed, {"name": "x"}, {"name": "x"}),
        (list[Typed], [{"name": "x", "note": "y"}], [{"name": "x", "note": "y"}]),
        (Typed | None, None, None),
        (str, "x", "x"),
        (dict[str, int], {"a": 1}, {"a": 1}),
    ],
)
def test_a_value_becomes_an_instance_of_its_type(hint: Any, value: Any, expected: Any) -> None:
    result = validate(hint, value)
    assert result == expected
    assert type(result) is type(expected)


def test_an_instance_stays_the_one_it_is() -> None:
    order = Order(1, date(2026, 1, 1))
    assert validate(Order, order) is order


def test_a_class_that_cannot_be_looked_into_is_checked_by_isinstance() -> None:
    thing = Opaque()
    assert validate(Opaque, thing) is thing
    with pytest.raises(ValidationFailed):
        validate(Opaque, "x")


@pytest.mark.parametrize("hint", [Order, Typed, Model])
def test_a_failure_lists_where_and_why(hint: Any) -> None:
    with pytest.raises(ValidationFailed) as caught:
        validate(hint, {}, what='body of queue "orders"')
    issues = caught.value.metadata["issues"]
    assert issues[0]["path"]
    assert issues[0]["message"] == "Field required"
    assert str(caught.value).startswith('body of queue "orders": ')


def test_a_type_that_cannot_be_used_is_refused_with_the_mend() -> None:
    with pytest.raises(TypeError, match="at the top of a module"):
        validate("Nowhere", 1)


def test_arguments_become_what_the_function_annotates() -> None:
    args, kwargs = validate_arguments(Holder.place, [{"id": 1, "placed": "2026-01-02"}], {})
    assert args == (Order(1, date(2026, 1, 2)),)
    assert kwargs == {}


def test_variadic_arguments_are_checked_one_by_one() -> None:
    args, kwargs = validate_arguments(Holder.rename, ["t", "a", "b"], {"count": "2", "extra": "3"})
    assert args == ("t", "a", "b")
    assert kwargs == {"count": 2, "extra": 3}
    with pytest.raises(ValidationFailed) as caught:
        validate_arguments(Holder.rename, ["t", "a", 5], {"extra": "x"})
    assert [issue["path"] for issue in caught.value.metadata["issues"]] == [["tags", 1], ["extra"]]


def test_an_annotation_that_does_not_resolve_at_run_time_takes_anything() -> None:
    order = Order(1, date(2026, 1, 2))
    assert validate_arguments(Holder.place, [order, object()], {})[0][0] is order


@pytest.mark.parametrize(("args", "kwargs"), [([], {}), ([], {"titel": "x"})])
def test_arguments_that_do_not_bind_are_refused_with_the_signature(
    args: list[Any], kwargs: dict[str, Any]
) -> None:
    with pytest.raises(ValidationFailed, match=r"rename\(title, \*tags, count=1, \*\*more\)"):
        validate_arguments(Holder.rename, args, kwargs)
