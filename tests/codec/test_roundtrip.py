"""Every value comes back equal and of the same type, on any nesting."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from collections import OrderedDict, deque
from dataclasses import fields, is_dataclass
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from enum import Enum
from fractions import Fraction
from ipaddress import IPv4Address, IPv6Network
from pathlib import Path, PurePosixPath
from typing import Any
from uuid import UUID
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel

from rivet_workflows.codec import dumps, fingerprint, loads, roundtrip, roundtrip_call
from tests.codec import shop

BERLIN = ZoneInfo("Europe/Berlin")
HIGH, LOW = chr(0xD83D), chr(0xDE00)  # Lone halves; side by side in JSON they are read as one emoji.


def same(a: Any, b: Any) -> bool:
    """Equal, of the same types in every part, and in the same order where there is one."""
    if type(a) is not type(b):
        return False
    if isinstance(a, float):
        return (math.isnan(a) and math.isnan(b)) or (a == b and math.copysign(1, a) == math.copysign(1, b))
    if isinstance(a, Decimal):
        return str(a) == str(b)
    if isinstance(a, datetime | time):
        zones = type(a.tzinfo) is type(b.tzinfo) and str(a.tzinfo) == str(b.tzinfo)
        return zones and a.fold == b.fold and a.replace(tzinfo=None) == b.replace(tzinfo=None)
    if isinstance(a, dict):
        return len(a) == len(b) and all(
            same(k, m) and same(v, w) for (k, v), (m, w) in zip(a.items(), b.items(), strict=True)
        )
    if isinstance(a, Enum):
        return a is b
    if isinstance(a, list | tuple | deque):
        return len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, set | frozenset):
        return sorted(map(dumps, a)) == sorted(map(dumps, b))
    if is_dataclass(a):
        return all(same(getattr(a, field.name), getattr(b, field.name)) for field in fields(a))
    if isinstance(a, BaseModel):
        return same(a.__getstate__(), b.__getstate__())
    return bool(a == b)


zones = st.one_of(
    st.none(),
    st.just(UTC),
    st.sampled_from(["Europe/Berlin", "America/New_York", "Asia/Kolkata", "UTC"]).map(ZoneInfo),
    st.builds(lambda s: timezone(timedelta(seconds=s)), st.integers(min_value=-86_399, max_value=86_399)),
    st.just(timezone(timedelta(hours=2), "summer")),
)
folds = st.integers(min_value=0, max_value=1)
texts = st.text(st.characters(), max_size=12)  # Lone surrogates, NUL, everything.
hashables = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.builds(pow, st.just(2), st.just(20_000)),
    st.floats(allow_nan=False),
    texts,
    st.just("\ud83d\ude00"),
    st.binary(max_size=12),
    st.decimals(allow_nan=False),
    st.uuids(),
    st.dates(),
    st.timedeltas(),
    st.builds(lambda d, z, f: d.replace(tzinfo=z, fold=f), st.datetimes(), zones, folds),
    st.builds(lambda t, z, f: t.replace(tzinfo=z, fold=f), st.times(), zones, folds),
    st.sampled_from([*shop.Status, *shop.Level, *shop.Color, shop.Rights.READ | shop.Rights.WRITE]),
    st.sampled_from([shop.Mode.A | shop.Mode.B, shop.Line.Inner.ONE, UTC, BERLIN]),
    st.builds(shop.Money, st.integers()),
    st.builds(shop.Point, st.integers(), st.integers()),
    st.sampled_from([IPv4Address("10.0.0.1"), IPv6Network("fd00::/8"), Path("/a"), PurePosixPath("b")]),
    st.fractions(),
)
scalars = st.one_of(hashables, st.floats(), st.decimals(), st.complex_numbers(allow_nan=False))
keys = st.one_of(texts, st.sampled_from(["$", "self", "args", "kwargs", "ctx", "name", "key"]), hashables)
values = st.recursive(
    scalars,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.dictionaries(texts, inner, max_size=4),
        st.dictionaries(keys, inner, max_size=4),
        st.dictionaries(keys, inner, max_size=3).map(OrderedDict),
        st.lists(inner, max_size=3).map(tuple),
        st.frozensets(hashables, max_size=3),
        st.sets(st.one_of(hashables, st.tuples(hashables, hashables)), max_size=4),
        st.lists(inner, max_size=3).map(deque),
        st.builds(shop.Money, inner),
        st.builds(shop.Pair, inner, inner),
        st.builds(
            shop.Order, st.integers(), st.lists(st.builds(shop.Line, texts, st.integers()), max_size=2)
        ),
        st.builds(shop.Customer.model_construct, name=texts, age=st.integers()),
        st.builds(lambda i, x: shop.Open.model_construct(id=i, **{"$": x}), st.integers(), inner),
    ),
    max_leaves=12,
)


@settings(max_examples=600, deadline=None)
@given(values)
def test_any_nested_value_comes_back_equal_and_of_the_same_types(value: Any) -> None:
    text = dumps(value)
    assert text.isascii()
    again = loads(text)
    assert same(value, again), (value, again)
    assert dumps(again) == text
    assert fingerprint(dumps(again)) == fingerprint(text)


json_values = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), texts),
    lambda inner: st.lists(inner) | st.dictionaries(texts | st.just("$"), inner),
    max_leaves=20,
)


@settings(max_examples=300, deadline=None)
@given(json_values)
def test_plain_json_by_the_fast_way_equals_the_exact_way(value: Any) -> None:
    from rivet_workflows import jsontext
    from rivet_workflows.codec.encode import tree

    assert dumps(value) == jsontext.encode(tree(value))
    assert same(value, loads(dumps(value)))


@settings(max_examples=100, deadline=None)
@given(values)
def test_roundtrip_gives_what_replay_will_give(value: Any) -> None:
    first, text = roundtrip(value)
    assert same(first, loads(text))
    if isinstance(value, list | dict | set | OrderedDict):
        assert first is not value


def test_br061_int_keys_tuples_dataclass_and_microseconds_are_the_same_on_first_run_and_replay() -> None:
    value = {
        1: (1, 2),
        "line": shop.Line("a", 2, ["x"]),
        "at": datetime(2026, 7, 1, 12, 30, 15, 123456, tzinfo=BERLIN),
    }
    first, text = roundtrip(value)
    assert same(first, value)
    assert same(loads(text), value)
    assert isinstance(first, dict)
    assert first["line"] is not value["line"]


@pytest.mark.parametrize(
    "value",
    [
        float("nan"),
        [float("inf"), -float("inf"), -0.0, 5e-324],
        2**80,
        10**4999,
        -(2**20_000),
        {True: "one", 2: "two", None: 3, 1.5: 4, (1, 2): 5},
        {"$": "tuple", "v": [1]},
        {"$": None},
        {"a": {"$": "obj", "c": "os:system", "f": {}}},
        '{"$":"tuple","v":[1]}',
        ['"$":', "$"],
        Decimal("1.10"),
        Decimal("sNaN123"),
        Decimal("-0E+10"),
        Decimal("-Infinity"),
        b"\x00\xff",
        bytearray(b"a"),
        frozenset({frozenset({1}), frozenset()}),
        {1, "1", (1,), b"1"},
        complex(1, -0.0),
        range(3, 9, 2),
        Fraction(1, 3),
        OrderedDict([(2, 1), (1, 2)]),
        deque([1, (2,)], maxlen=5),
        UUID(int=7),
        date(1, 1, 1),
        time(23, 59, 59, 999999, tzinfo=BERLIN),
        timedelta(days=-1, microseconds=1),
        datetime(9999, 12, 31),
        [],
        {},
        (),
        set(),
        "",
    ],
    ids=lambda value: type(value).__name__,
)
def test_traps_come_back(value: Any) -> None:
    again = loads(dumps(value))
    assert same(again, value)
    if isinstance(value, deque):
        assert again.maxlen == value.maxlen  # type: ignore[attr-defined]


@given(st.lists(scalars | values), st.dictionaries(st.text(), values, max_size=2))
def test_the_arguments_of_a_call_have_the_text_of_a_list_and_a_dict_and_come_back_as_these(
    args: list[Any], kwargs: dict[str, Any]
) -> None:
    for named in ({}, kwargs):
        expected, text = roundtrip([args, named])
        found, found_named, found_text = roundtrip_call(tuple(args), named, what="arguments")
        assert found_text == text
        assert dumps([list(found), found_named]) == dumps(expected)


@pytest.mark.parametrize(
    "value", [0, -1, 10**18 - 1, 10**18, -(10**18), pytest.param(10**400, id="large"), True]
)
def test_integers_of_any_size_have_one_text(value: int) -> None:
    assert loads(dumps(value)) == value
    assert dumps(value) == dumps([value])[1:-1]


@pytest.mark.parametrize(
    "text",
    ["\x00", HIGH, LOW + HIGH, HIGH + LOW, "😀", "\u2028", "a\\ud83d\\ude00", f"é{HIGH}{LOW}😀"],
)
def test_br100_nul_surrogates_and_emoji_in_values_and_keys_come_back(text: str) -> None:
    for value in (text, [text], {text: text}, (text,), {text}, shop.Line(text), b"\xff\xfe"):
        stored = dumps(value)
        assert stored.isascii()
        assert "\x00" not in stored
        assert same(loads(stored), value)


def test_br100_two_lone_surrogates_are_not_joined_to_one_character() -> None:
    assert len(loads(dumps([HIGH + LOW]))[0]) == 2  # type: ignore[index]


def test_br101_the_python_values_of_common_django_fields_come_back() -> None:
    value = {
        "uuid": UUID(int=1),
        "at": datetime(2026, 1, 1, tzinfo=UTC),
        "day": date(2026, 1, 1),
        "clock": time(9, 30),
        "price": Decimal("10.00"),
        "duration": timedelta(hours=2),
        "binary": b"\x00",
        "status": shop.Status.PAID,
        "json": {"a": [1, None]},
    }
    assert same(loads(dumps(value)), value)


def test_br103_an_aware_datetime_comes_back_as_an_aware_datetime() -> None:
    at = datetime(2026, 3, 29, 1, 30, tzinfo=BERLIN)
    again = loads(dumps([at]))
    assert same(again, [at])


def test_the_second_pass_of_an_hour_keeps_its_fold_and_thus_its_instant() -> None:
    second = datetime(2026, 10, 25, 2, 30, tzinfo=BERLIN, fold=1)
    again = loads(dumps(second))
    assert isinstance(again, datetime)
    assert again.fold == 1
    assert again.astimezone(UTC) == second.astimezone(UTC)


def test_the_text_of_a_zoned_datetime_does_not_depend_on_zone_data() -> None:
    assert "+02:00" not in dumps(datetime(2026, 7, 1, tzinfo=BERLIN))


def test_br105_names_that_python_calls_use_are_ordinary_keys() -> None:
    names = ["self", "ctx", "args", "kwargs", "name", "key", "status", "cls", "task", "v", "c"]
    value = dict.fromkeys(names, (1,))
    assert loads(dumps(value)) == value


def test_enums_and_named_tuples_keep_their_types_where_json_writes_the_base() -> None:
    value = [shop.Status.PAID, shop.Level.HIGH, shop.Point(1, 2), shop.Mode.A, True, 1, shop.Delivery.POST]
    again = loads(dumps(value))
    assert [type(part) for part in again] == [type(part) for part in value]  # type: ignore[attr-defined]


def test_key_order_is_kept() -> None:
    assert list(loads(dumps({"b": 1, "a": (2,)}))) == ["b", "a"]  # type: ignore[call-overload]


def test_sets_have_one_text_in_every_process() -> None:
    code = (
        "from rivet_workflows.codec import dumps; import tests.codec.shop as s;"
        "print(dumps({'a': {'x', 'y', 'zz', 1, (2, 'q'), None, s.Status.PAID}, 'b': frozenset('hello')}))"
    )
    texts = {
        subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            check=True,
            text=True,
        ).stdout
        for seed in ("0", "1", "2", "42")
    }
    assert len(texts) == 1


def test_the_codec_can_be_imported_without_django() -> None:
    code = (
        "import sys; sys.modules['django'] = None; sys.modules['pydantic'] = None;"
        "from rivet_workflows.codec import dumps, loads; print(loads(dumps((1, 2))))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout == "(1, 2)\n", done.stderr


def test_a_value_of_many_parts_and_of_allowed_depth_passes() -> None:
    deep: Any = 1
    for _ in range(95):
        deep = [deep]
    assert loads(dumps(deep)) == deep
    tuples: Any = 1
    for _ in range(95):
        tuples = (tuples,)
    assert loads(dumps(tuples)) == tuples
    shared = ["x"] * 1000
    assert loads(dumps([shared] * 100)) == [shared] * 100
