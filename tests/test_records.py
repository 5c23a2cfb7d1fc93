"""Scopes: the texts by which a history is pruned and read in ranges."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rivet_workflows.records import child_scope, scope_steps

NUMBERS = st.integers(0, 2**63 - 1)
PLACES = st.lists(st.tuples(NUMBERS, NUMBERS), max_size=5)


def scope_of(place: list[tuple[int, int]]) -> str:
    scope = ""
    for seq, index in place:
        scope = child_scope(scope, seq, index)
    return scope


@given(PLACES)
def test_a_scope_says_what_it_lies_in(place: list[tuple[int, int]]) -> None:
    steps = list(scope_steps(scope_of(place)))
    assert [(seq, index) for seq, index, _within in steps] == place
    assert [within for _seq, _index, within in steps] == [scope_of(place[: n + 1]) for n in range(len(place))]


@given(PLACES, NUMBERS, NUMBERS, NUMBERS, PLACES)
def test_what_lies_in_an_iteration_is_one_range(
    place: list[tuple[int, int]], seq: int, end: int, index: int, deeper: list[tuple[int, int]]
) -> None:
    around = scope_of(place)
    inside = scope_of([*place, (seq, index), *deeper])
    assert (child_scope(around, seq, 0) <= inside < child_scope(around, seq, end)) == (index < end)


@given(PLACES, PLACES)
def test_scopes_sort_as_their_places_do(one: list[tuple[int, int]], other: list[tuple[int, int]]) -> None:
    assert (scope_of(one) < scope_of(other)) == (one < other)


@pytest.mark.parametrize("damaged", ["0", "01", "0x00", "f12", "010", "0100g"])
def test_a_text_that_is_no_scope_is_refused(damaged: str) -> None:
    with pytest.raises(ValueError, match=r"cut off|invalid literal"):
        list(scope_steps(damaged))
