"""What people and REST clients see: JSON that any reader can take, and never an error on a page."""

from __future__ import annotations

import json
from collections import deque
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any
from uuid import UUID
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rivet_workflows.codec import dumps, plain_text, to_plain
from tests.codec import shop
from tests.codec.test_roundtrip import values


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (datetime(2026, 7, 1, 12, tzinfo=UTC), "2026-07-01T12:00:00+00:00"),
        (datetime(2026, 7, 1, 12, tzinfo=ZoneInfo("Europe/Berlin")), "2026-07-01T12:00:00+02:00"),
        (
            datetime(2026, 10, 25, 2, 30, fold=1, tzinfo=ZoneInfo("Europe/Berlin")),
            "2026-10-25T02:30:00+01:00",
        ),
        (datetime(2026, 7, 1), "2026-07-01T00:00:00"),
        (date(2026, 7, 1), "2026-07-01"),
        (timedelta(days=1, seconds=1, microseconds=500), "86401.0005"),
        (timedelta(microseconds=-1), "-0.000001"),
        (timedelta(minutes=10), "600"),
        (timezone(-timedelta(hours=3, minutes=30)), "-03:30"),
        (ZoneInfo("Asia/Tokyo"), "Asia/Tokyo"),
        (Decimal("1.10"), "1.10"),
        (UUID(int=1), "00000000-0000-0000-0000-000000000001"),
        (b"\xff\x00", "/wA="),
        ((1, (2,)), [1, [2]]),
        ({3, 1, 2}, [1, 2, 3]),
        (deque([1], 3), [[1], 3]),
        (shop.Status.PAID, "paid"),
        (shop.Level.HIGH, 2),
        (shop.Color.BLUE, "BLUE"),
        (shop.Rights.READ, 1),
        (shop.Line("a"), {"sku": "a", "quantity": 1, "tags": []}),
        (shop.Point(1), {"x": 1, "y": 0}),
        (shop.Open.model_construct(id=1, more=(1,)), {"id": 1, "more": [1]}),
        (float("nan"), "NaN"),
        ([float("inf"), -float("inf")], ["Infinity", "-Infinity"]),
        (2**53, 2**53),
        (2**53 + 1, "9007199254740993"),
        (-(2**80), str(-(2**80))),
        ({1: "a", None: "b", 1.5: "c"}, {"1": "a", "null": "b", "1.5": "c"}),
        ({1: "a", "1": "b"}, [[1, "a"], ["1", "b"]]),
        ({(1, 2): "a"}, {"[1,2]": "a"}),
        ({"$": "tuple"}, {"$": "tuple"}),
        ("\ud83d", "\\ud83d"),
        ("\ud83d\ude00", "\\ud83d\\ude00"),
        ("😀", "😀"),
        (True, True),
        (None, None),
    ],
)
def test_the_plain_form_of_each_type(value: object, shown: object) -> None:
    assert to_plain(value) == shown
    assert type(to_plain(value)) is type(shown)
    assert plain_text(dumps(value)) == shown


@settings(max_examples=300, deadline=None)
@given(values)
def test_any_value_has_a_plain_form_that_travels_as_strict_utf8_json(value: Any) -> None:
    shown = to_plain(value)
    json.dumps(shown, allow_nan=False, ensure_ascii=False).encode("utf-8")
    assert plain_text(dumps(value), limit=10**9) == shown


def test_br104_a_value_whose_class_is_gone_is_still_shown() -> None:
    gone = '{"$":"obj","c":"gone.models:Order","f":{"id":{"$":"uuid","v":"0-1"},"n":[1]},"x":[["$",1]]}'
    assert plain_text(gone) == {"id": "0-1", "n": [1], "$": 1}


def test_br104_huge_text_is_a_placeholder() -> None:
    assert plain_text('"' + "x" * 50_000_000 + '"') == "<50,000,002 characters, too long to show>"
    assert plain_text('"abc"', limit=3) == "<5 characters, too long to show>"


@settings(max_examples=300, deadline=None)
@given(
    st.text()
    | st.recursive(st.none() | st.integers(), lambda v: st.dictionaries(st.sampled_from("$vcfnxzs"), v))
)
def test_br104_the_plain_form_of_a_row_never_raises(row: object) -> None:
    for text in (row if isinstance(row, str) else json.dumps(row), json.dumps({"$": "dict", "v": row})):
        json.dumps(plain_text(text), allow_nan=False)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "gAAAAABn-encrypted",
        "[" * 100_000,
        '{"$":"datetime","v":5,"z":[]}',
        '{"$":"dict","v":7}',
        "\x80\x04K\x01.",
    ],
)
def test_br104_damaged_rows_are_placeholders(text: str) -> None:
    shown = plain_text(text)
    assert isinstance(shown, str)
    assert shown.startswith("<cannot be read: ")


def test_br104_nothing_is_nothing() -> None:
    assert plain_text(None) is None


def test_constants_of_a_foreign_writer_are_shown() -> None:
    assert plain_text('[NaN, -Infinity, {"$": "later", "v": [1]}]') == [
        "NaN",
        "-Infinity",
        {"$": "later", "v": [1]},
    ]
