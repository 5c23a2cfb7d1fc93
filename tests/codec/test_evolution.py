"""Classes change under stored values: renames, moves, new and removed fields, and rows that lie."""

from __future__ import annotations

import dataclasses
import enum
import json
import logging
import sys
import types
from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest
from pydantic import BaseModel

from rivet_workflows.codec import configure, current_name, dumps, loads, register, stable_name
from rivet_workflows.exceptions import SerializationError
from tests.codec import shop


@pytest.fixture(autouse=True)
def _no_renames() -> Iterator[None]:
    yield
    configure(None)


def obj(cls: str, **fields: object) -> str:
    return json.dumps({"$": "obj", "c": cls, "f": fields}, separators=(",", ":"))


def swap(monkeypatch: pytest.MonkeyPatch, name: str, cls: Any) -> None:
    """Put another class in the place of one of `shop`, as a deploy does."""
    cls.__module__, cls.__qualname__, cls.__name__ = shop.__name__, name, name
    monkeypatch.setattr(shop, name, cls)
    configure(None)  # Forgets what was resolved before, as a new process does.


def test_decoding_runs_no_init_no_post_init_and_no_validator() -> None:
    hashed = shop.Hashed("secret")
    customer = shop.Customer(name="ann", nick="a")
    customer._seen = 5
    before = shop.Hashed.made, shop.Customer.validated
    text = dumps([hashed, customer])
    again: Any = loads(text)
    assert (shop.Hashed.made, shop.Customer.validated) == before
    assert again == [hashed, customer]
    assert again[1].name == "ANN!"
    assert again[1]._seen == 5
    assert again[1].model_fields_set == {"name", "nickname"}


def test_pydantic_extras_private_attributes_urls_and_generics_are_kept() -> None:
    opened = shop.Open(id=1, **{"$": "x", "size": (1, 2)})
    boxes: list[BaseModel] = [
        shop.Box[int](content=1),
        shop.Box[list[shop.Point]](content=[shop.Point(1)]),
        shop.Box[shop.Box[str | None]](content=shop.Box[str | None](content=None)),
        shop.Box[dict[str, Any]](content={"a": 1}),
        shop.Box(content=2),
        shop.Link(url="https://example.com/x?y=1"),  # type: ignore[arg-type]
    ]
    again: Any = loads(dumps([opened, boxes]))
    assert again == [opened, boxes]
    assert again[0].model_extra == {"$": "x", "size": (1, 2)}
    assert [type(box) for box in again[1]] == [type(box) for box in boxes]
    assert again[1][-1].model_dump_json() == boxes[-1].model_dump_json()


def test_a_decoded_model_is_a_whole_one() -> None:
    again: Any = loads(dumps(shop.Open(id=1)))
    assert again.model_copy(update={"id": 2}).model_dump() == {"id": 2}
    assert hash(again) == hash(shop.Open(id=1))


def test_a_missing_field_takes_its_default(caplog: pytest.LogCaptureFixture) -> None:
    name = shop.__name__
    assert loads(obj(f"{name}:Line", sku="a")) == shop.Line("a", 1, [])
    assert loads(obj(f"{name}:Point", x=3)) == shop.Point(3, 0)
    model: Any = loads(obj(f"{name}:Defaults", first=2))
    assert (model.second, model.third) == ([1, 2], 4)
    customer: Any = loads(obj(f"{name}:Customer", name="x"))
    assert (customer.age, customer._seen, customer.model_fields_set) == (18, 0, {"name"})
    assert loads(obj(f"{name}:Checked", a=1)) == shop.Checked(1)


@pytest.mark.parametrize("cls", ["Line", "Point", "Customer", "Checked"])
def test_a_missing_field_without_a_default_says_what_to_do(cls: str) -> None:
    with pytest.raises(SerializationError, match="Give the field a default"):
        loads(obj(f"{shop.__name__}:{cls}"))


def test_unknown_stored_fields_are_dropped_with_one_log_line(caplog: pytest.LogCaptureFixture) -> None:
    text = obj(f"{shop.__name__}:Line", sku="a", colour="red", weight=1)
    with caplog.at_level(logging.WARNING, "rivet_workflows.codec"):
        assert [loads(text) for _ in range(3)] == [shop.Line("a")] * 3
    assert len(caplog.records) == 1
    assert caplog.messages[0].endswith("tests.codec.shop.Line: colour, weight")


def test_a_dataclass_may_become_a_pydantic_model_under_its_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    text = dumps(shop.Plain(1))

    class Model(BaseModel):
        a: int
        b: int = 2

    swap(monkeypatch, "Plain", Model)
    again: Any = loads(text)
    assert isinstance(again, Model)
    assert (again.a, again.b, again.model_fields_set) == (1, 2, {"a"})


def test_a_class_that_became_something_else_is_not_made(monkeypatch: pytest.MonkeyPatch) -> None:
    text = dumps(shop.Plain(1))
    swap(monkeypatch, "Plain", type("Plain", (), {}))
    with pytest.raises(SerializationError, match="no longer"):
        loads(text)


def test_a_vanished_class_says_how_to_mend_it_and_renamed_mends_it() -> None:
    text = obj("old_shop.models:Line", sku="a")
    with pytest.raises(SerializationError, match=r"RENAMED'\] = \{'old_shop\.models\.Line'"):
        loads(text)
    configure({"old_shop.models.Line": "tests.codec.shop.Line"})
    assert loads(text) == shop.Line("a")
    configure({"old_shop.models:Line": "tests.codec.shop:Line"})
    assert loads(text) == shop.Line("a")


def test_renamed_moves_a_whole_module_and_follows_chains_but_no_circle() -> None:
    configure({"old_shop": "mid_shop", "mid_shop.models": "tests.codec.shop", "a": "b", "b": "a"})
    inner = json.dumps({"$": "enum", "c": "old_shop.models:Line.Inner", "n": "ONE"}, separators=(",", ":"))
    assert loads(inner) is shop.Line.Inner.ONE
    assert current_name("old_shop.models.charge") == "tests.codec.shop.charge"
    assert current_name("old_shopping.models") == "old_shopping.models"
    assert current_name("a.x") in ("a.x", "b.x")


def test_renamed_maps_a_class_that_still_exists() -> None:
    text = dumps(shop.Pair(1, 2))
    configure({"tests.codec.shop.Pair": "tests.codec.shop.Money"})
    with pytest.raises(SerializationError, match="Money has no field 'amount'"):
        loads(text)


def test_a_stable_name_is_independent_of_module_and_class(monkeypatch: pytest.MonkeyPatch) -> None:
    text = dumps(shop.Order(1))
    assert '"shop.order.v1"' in text
    assert "tests.codec" not in text
    assert loads(text) == shop.Order(1)
    assert loads(obj(f"{shop.__name__}:Order", number=1)) == shop.Order(1)
    configure({"shop.order.v0": "shop.order.v1"})
    assert loads(obj("shop.order.v0", number=1)) == shop.Order(1)


def test_a_stable_name_below_a_slots_dataclass_still_counts() -> None:
    text = dumps(shop.Slotted(1))
    assert '"shop.slotted.v1"' in text
    assert type(loads(text)) is shop.Slotted


def test_a_stable_name_is_not_inherited_and_cannot_be_taken_twice() -> None:
    with pytest.raises(ValueError, match=r"belongs to tests\.codec\.shop\.Order"):
        stable_name("shop.order.v1")(shop.Line)
    for bad in ("", "a:b"):
        with pytest.raises(ValueError, match="stable name"):
            stable_name(bad)


def test_a_stable_name_makes_a_local_class_storable() -> None:
    @stable_name("tests.local.v1")
    class Local(NamedTuple):
        a: int

    assert type(loads(dumps(Local(1)))) is Local


def test_an_enum_member_is_found_by_name_then_by_value() -> None:
    def stored(**tag: object) -> str:
        return json.dumps({"$": "enum", "c": f"{shop.__name__}:Status", **tag}, separators=(",", ":"))

    assert loads(stored(n="PAID", v="was-paid")) is shop.Status.PAID
    assert loads(stored(n="SETTLED", v="paid")) is shop.Status.PAID
    with pytest.raises(SerializationError, match="Keep the member"):
        loads(stored(n="SETTLED", v="settled"))


def test_br101_a_registered_type_comes_back(monkeypatch: pytest.MonkeyPatch) -> None:
    register(shop.Geo, name="shop.geo", encode=lambda g: (g.lon, g.lat), decode=lambda p: shop.Geo(*p))
    value = {"at": [shop.Geo(1.5, 2)], shop.Geo(0, 0): {shop.Geo(1, 1)}}
    assert loads(dumps(value)) == value
    configure({"shop.oldgeo": "shop.geo"})
    assert loads('{"$":"custom","c":"shop.oldgeo","v":[1,2]}') == shop.Geo(1, 2)
    with pytest.raises(SerializationError, match="is not registered here"):
        loads('{"$":"custom","c":"shop.nowhere","v":[1,2]}')
    with pytest.raises(SerializationError, match="every form that was ever stored"):
        loads('{"$":"custom","c":"shop.geo","v":[1]}')


def test_register_refuses_what_it_could_not_keep() -> None:
    with pytest.raises(ValueError, match="JSON type"):
        register(str, encode=str, decode=str)
    with pytest.raises(TypeError, match="together"):
        register(shop.Geo, encode=str)
    with pytest.raises(TypeError, match="or a name"):
        register(shop.Geo)
    with pytest.raises(ValueError, match="another"):
        register(shop.Money, name="fractions:Fraction", encode=str, decode=str)


# ------------------------------------------------------------------ rows that lie


@pytest.mark.parametrize(
    "cls",
    ["os:system", "subprocess:Popen", "builtins:eval", "builtins:int", "pathlib:Path", "logging:Logger"],
)
def test_no_class_of_another_kind_is_made_on_the_word_of_a_row(cls: str) -> None:
    for kind in ("obj", "enum", "url"):
        text = json.dumps({"$": kind, "c": cls, "f": {}, "v": "x", "n": "x"}, separators=(",", ":"))
        with pytest.raises(SerializationError):
            loads(text)
    with pytest.raises(SerializationError):
        loads(json.dumps({"$": "obj", "c": [f"{shop.__name__}:Box", [cls]], "f": {}}, separators=(",", ":")))


def test_no_module_is_imported_on_the_word_of_a_row() -> None:
    module = "this"
    assert module not in sys.modules
    with pytest.raises(SerializationError):
        loads(obj(f"{module}:Zen"))
    assert module not in sys.modules


def test_a_modules_own_getattr_is_not_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    lazy = types.ModuleType("lazy_shop")
    lazy.__getattr__ = lambda name: pytest.fail("ran code of a module")  # type: ignore[method-assign]
    monkeypatch.setitem(sys.modules, "lazy_shop", lazy)
    with pytest.raises(SerializationError):
        loads(obj("lazy_shop:Line"))


def test_data_of_users_that_looks_like_a_mark_stays_data() -> None:
    attack = {"$": "obj", "c": f"{shop.__name__}:Line", "f": {"sku": "x"}}
    for value in (attack, [attack], {"body": attack}, {"$": attack}, json.dumps(attack), (attack,)):
        assert loads(dumps(value)) == value


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "nope",
        '{"$":"datetime"}',
        '{"$":"datetime","v":"tomorrow"}',
        '{"$":"datetime","v":"2026-01-01T00:00:00","z":"Mars/Base"}',
        '{"$":"datetime","v":"2026-01-01T00:00:00","z":"../../etc/passwd"}',
        '{"$":"future","v":1}',
        '{"$":["x"],"v":1}',
        '{"$":"set","v":[[1]]}',
        '{"$":"decimal","v":"x"}',
        '{"$":"obj","c":5,"f":{}}',
        '{"$":"obj","c":"","f":{}}',
        '{"$":"obj","c":"tests.codec.shop:Line","f":[1]}',
        '{"$":"enum","c":"tests.codec.shop:Status"}',
        '{"$":"dict","v":[1]}',
        "[" * 100_000,
        '{"$":"tuple","v":' * 50_000,
    ],
)
def test_br105_a_damaged_row_is_our_error_and_nothing_else(text: str) -> None:
    with pytest.raises(SerializationError):
        loads(text)


def test_a_frozen_slotted_and_a_classvar_dataclass_come_back() -> None:
    value = [shop.Money(1), shop.Money([1], "USD"), shop.Checked(1)]
    assert loads(dumps(value)) == value
    assert dataclasses.fields(loads(dumps(shop.Money(1))))  # type: ignore[arg-type]


def test_flags_and_members_with_values_that_cannot_be_stored_come_back() -> None:
    value: list[enum.Enum] = [
        shop.Rights.READ | shop.Rights.WRITE,
        shop.Rights(0),
        shop.Mode(7),
        shop.Color.BLUE,
    ]
    again: Any = loads(dumps(value))
    assert again == value
    assert [type(part) for part in again] == [type(part) for part in value]
