"""What an object holds against what its class declares."""

from __future__ import annotations

import typing
from dataclasses import dataclass, field
from datetime import date
from decimal import Decimal
from typing import Annotated, Any

import pytest
from pydantic import BaseModel, Field

from rivet_workflows.exceptions import ValidationFailed
from rivet_workflows.validation import validate, validate_kept


@dataclass
class Line:
    sku: str
    count: int = 1
    price: float = 0
    until: date | None = None


@dataclass
class Cart:
    lines: list[Line] = field(default_factory=list)
    by_name: dict[str, Line] = field(default_factory=dict)
    best: Line | None = None
    notes: Any = None
    total: Decimal = Decimal(0)
    parent: Cart | None = None


@dataclass(frozen=True)
class Frozen:
    n: int


class Model(BaseModel):
    count: int = Field(default=0, ge=0)
    lines: list[Line] = []


class Typed(typing.TypedDict):
    n: int
    lines: list[Line]


def issues(hint: Any, value: Any, check: Any = validate_kept) -> list[Any]:
    with pytest.raises(ValidationFailed) as failed:
        check(hint, value, "state")
    return [issue["path"] for issue in failed.value.metadata["issues"]]


@pytest.mark.parametrize("check", [validate, validate_kept])
def test_a_wrong_value_is_found_wherever_it_lies(check: Any) -> None:
    assert issues(Line, Line("a", "many"), check) == [["count"]]  # type: ignore[arg-type]
    wrong = Line(5, until="soon")  # type: ignore[arg-type]
    assert issues(Cart, Cart([Line("a"), wrong]), check) == [["lines", 1, "sku"], ["lines", 1, "until"]]
    assert issues(Cart, Cart(by_name={"x": wrong}), check)[0] == ["by_name", "x", "sku"]
    assert issues(Cart, Cart(best=wrong), check)[0] == ["best", "sku"]
    assert issues(Cart, Cart(parent=Cart(parent=Cart(total="much"))), check) == [  # type: ignore[arg-type]
        ["parent", "parent", "total"]
    ]
    assert issues(Typed, {"n": 1, "lines": [wrong]}, check)[0] == ["lines", 0, "sku"]
    assert issues(list[Line], [wrong], check)[0] == [0, "sku"]
    assert issues(Frozen, Frozen("x"), check) == [["n"]]  # type: ignore[arg-type]


def test_fields_of_models_are_checked_with_their_bounds() -> None:
    model = Model()
    model.count = -1
    assert issues(Model, model) == [["count"]]
    model.count, model.lines = 1, [Line("a", count=None)]  # type: ignore[arg-type]
    assert issues(Model, model) == [["lines", 0, "count"]]


def test_bounds_of_annotations_count() -> None:
    @dataclass
    class Bounded:
        n: Annotated[int, Field(gt=0)] = 1

    assert issues(Bounded, Bounded(0)) == [["n"]]


def test_an_attribute_that_was_deleted_is_missing() -> None:
    line = Line("a")
    del line.sku
    assert issues(Line, line) == [["sku"]]


def test_what_fits_stays_the_very_object() -> None:
    cart = Cart([Line("a")], {"a": Line("b")}, Line("c"), notes={"x": object}, total=Decimal(1))
    assert validate_kept(Cart, cart, "state") is cart
    model = Model(lines=[Line("a")])
    assert validate_kept(Model, model, "state") is model
    plain = {"n": 1, "lines": []}
    assert validate_kept(Typed, plain, "state") is plain
    # An int where a float is declared is none's mistake, and no reason to touch what is stored.
    assert validate_kept(dict[str, float], whole := {"a": 0}, "state") is whole


def test_what_can_become_its_type_becomes_it_in_a_copy() -> None:
    line = Line("a", "5", until="2026-01-02")  # type: ignore[arg-type]
    cart = Cart([line])
    fitted = validate_kept(Cart, cart, "state")
    assert fitted.lines == [Line("a", 5, until=date(2026, 1, 2))]
    assert cart.lines == [line]
    assert line.count == "5"  # type: ignore[comparison-overlap]
    assert validate_kept(Frozen, Frozen("7"), "state") == Frozen(7)  # type: ignore[arg-type]
    assert validate_kept(Cart, {"lines": [{"sku": "a"}]}, "state") == Cart([Line("a")])


def test_names_that_only_type_checkers_know_take_anything() -> None:
    @dataclass
    class Local:
        n: int
        other: Unknown  # type: ignore[name-defined]  # noqa: F821

    assert validate_kept(Local, value := Local(1, object()), "state") is value
    assert issues(Local, Local("x", 1)) == [["n"]]  # type: ignore[arg-type]
