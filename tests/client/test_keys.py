"""Keys: what callers may use to name an actor, and what counts as the same one."""

from __future__ import annotations

import json
from enum import Enum
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rivet_workflows import keys
from rivet_workflows.exceptions import ValidationFailed

SOME_UUID = UUID("01890a5d-ac96-774b-bcce-b302099a8057")


@pytest.mark.parametrize(
    ("one", "same"),
    [(1, "1"), ("a", ("a",)), (SOME_UUID, str(SOME_UUID)), ((1, SOME_UUID), ("1", str(SOME_UUID)))],
)
def test_these_are_one_key(one, same):
    assert keys.encode(one) == keys.encode(same)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (("a", "b"), "a/b"),
        (("a", "b"), ("b", "a")),
        ("a", "A"),
        ("e", "é"),
        ("", ()),
        ("a", ("a", "")),
        (1, "01"),
    ],
)
def test_these_are_different_keys(one, other):
    assert keys.encode(one) != keys.encode(other)


@pytest.mark.parametrize("text", ["nul\0inside", "a/b", "back\\slash", "\ud800", "ünïcödé", "", "😀", '"[]"'])
def test_any_text_is_a_key_and_reads_back_as_it_was(text):
    stored = keys.encode(text)
    assert stored.isascii()
    assert "\0" not in stored
    assert keys.decode(stored) == text


def test_a_key_of_one_part_reads_back_as_text_and_of_several_as_a_tuple():
    assert keys.decode(keys.encode(7)) == "7"
    assert keys.decode(keys.encode(("eu", 7))) == ("eu", "7")
    assert keys.decode(keys.encode(())) == ()


def test_a_text_enum_counts_by_its_content():
    class Region(str, Enum):  # noqa: UP042  its str() is its name, not its content
        EU = "eu"

    assert keys.encode(Region.EU) == keys.encode("eu")


@pytest.mark.parametrize("key", [None, 1.0, True, b"a", {"a": 1}, (("a",),), (None,), object()])
def test_other_types_are_refused_by_name(key):
    with pytest.raises(ValidationFailed, match="key"):
        keys.encode(key)


@pytest.mark.parametrize("key", ["x" * 129, "é" * 65])
def test_a_part_may_have_128_bytes(key):
    keys.encode("x" * 128)
    with pytest.raises(ValidationFailed, match="128 bytes"):
        keys.encode(key)


@pytest.mark.parametrize("digits", [200, 5000])
def test_an_int_counts_by_its_digits(digits):
    with pytest.raises(ValidationFailed, match="128 bytes"):
        keys.encode(10**digits)


def test_the_whole_may_have_1024_bytes():
    keys.encode(("x" * 128,) * 8)
    with pytest.raises(ValidationFailed, match="1024 bytes; this one has 1025"):
        keys.encode((*("x" * 128,) * 8, "y"))


@given(st.lists(st.text(max_size=12), max_size=6).map(tuple))
def test_every_key_reads_back(parts):
    expected = parts[0] if len(parts) == 1 else parts
    assert keys.decode(keys.encode(parts)) == expected
    assert json.loads(keys.encode(parts)) == list(parts)
