"""Array literals made by hand say what psycopg's own say, and come back as they went."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rivet_workflows.store import literals as lit
from rivet_workflows.store.store import Store

pytestmark = pytest.mark.requires_postgres

texts = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0")) | st.sampled_from(
    [
        "",
        "NULL",
        "null",
        '"',
        "\\",
        '\\\\"',
        "{",
        "}",
        ",",
        " ",
        "a b",
        "\n\t\r",
        "é",
        "𝄞",
        "\\n",
        "'",
        "%s",
        "$1",
    ]
)
many = settings(
    max_examples=300,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


@pytest.fixture
def postgres(store: Store) -> Any:
    if store.vendor != "postgresql":
        pytest.skip("the suite's database is another")
    return store


@many
@given(values=st.lists(st.none() | texts))
def test_texts(postgres: Any, values: list[str | None]) -> None:
    ((ours, theirs),) = postgres.fast(
        "SELECT %s::text[], %s::text[]", [lit.optional_text_array(values), values]
    )
    assert ours == theirs == values
    full = [v for v in values if v is not None]
    if full:
        assert lit.text_array(full) == lit.optional_text_array(full)


@many
@given(values=st.lists(st.none() | st.integers(-(2**63), 2**63 - 1)))
def test_numbers(postgres: Any, values: list[int | None]) -> None:
    ((ours,),) = postgres.fast("SELECT %s::bigint[]", [lit.optional_array(values)])
    assert ours == values
    full = [v for v in values if v is not None]
    assert lit.int_array(full) == lit.number_array(full) == lit.optional_array(full)


@many
@given(uuids=st.lists(st.uuids()), bools=st.lists(st.booleans()))
def test_uuids_and_bools(postgres: Any, uuids: list[Any], bools: list[bool]) -> None:
    ((a, b),) = postgres.fast("SELECT %s::uuid[], %s::bool[]", [lit.uuid_array(uuids), lit.bool_array(bools)])
    assert (a, b) == (uuids, bools)


def test_an_empty_list_of_texts_is_not_one_empty_text(postgres: Any) -> None:
    assert postgres.fast("SELECT %s::text[]", [lit.text_array([])]) == [([],)]
