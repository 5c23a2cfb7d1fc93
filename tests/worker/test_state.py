"""The three-way merge of a state, and queued updates: pure functions over texts."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rivet_workflows.records import StateWrite
from rivet_workflows.worker.orders import StateChange
from rivet_workflows.worker.state import Conflict, InvalidUpdate, apply_updates, merge, prepare


def text(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"))


def obj(**fields: Any) -> str:
    return text({"$": "obj", "c": "shop:State", "f": fields})


scalars = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False), st.text())
values = st.recursive(scalars, lambda inner: st.lists(inner, max_size=3), max_leaves=5)
names = st.text(max_size=4).filter(lambda name: name != "$")
states = st.dictionaries(names, values, max_size=6)
#: What somebody does to a state: fields set, and fields removed.
changes = st.tuples(st.dictionaries(names, values, max_size=4), st.sets(names, max_size=3))


def changed(state: dict, change: tuple[dict, set], *, only: set[str]) -> dict:
    sets, removals = change
    left = {name: value for name, value in state.items() if not (name in removals and name in only)}
    return left | {name: value for name, value in sets.items() if name in only}


@given(states, changes, changes, st.data())
def test_changes_of_different_fields_are_both_there(base: dict, one: tuple, two: tuple, data: st.DataObject):
    every = sorted({*base, *one[0], *two[0]})
    mine = set(data.draw(st.lists(st.sampled_from(every), unique=True) if every else st.just([])))
    others = set(every) - mine
    ours, theirs = changed(base, one, only=mine), changed(base, two, only=others)

    merged = merge(text(base), text(ours), text(theirs))

    assert not isinstance(merged, Conflict)
    expected = changed(changed(base, one, only=mine), two, only=others)
    # Compared as text: 1, 1.0 and True are equal to Python, and not to whoever wrote them.
    assert {k: text(v) for k, v in json.loads(merged).items()} == {k: text(v) for k, v in expected.items()}


@given(states, states)
def test_one_writer_alone_gets_what_it_wrote(base: dict, ours: dict):
    assert merge(text(base), text(ours), text(base)) == text(ours)
    assert merge(text(base), text(base), text(ours)) == text(ours)


@given(states, states, states)
def test_a_field_of_the_result_is_from_one_of_the_writers(base: dict, ours: dict, theirs: dict):
    merged = merge(text(base), text(ours), text(theirs))
    if isinstance(merged, Conflict):
        return
    for name, value in json.loads(merged).items():
        assert text(value) in {text(side[name]) for side in (ours, theirs) if name in side}


def test_the_same_field_changed_twice_is_a_conflict_that_names_it():
    merged = merge(
        obj(charges=[], status="new"), obj(charges=["a"], status="new"), obj(charges=["b"], status="new")
    )

    assert merged == Conflict(("charges",))
    assert "'charges'" in str(merged)
    assert "step.update" in str(merged)


def test_two_increments_to_the_same_value_conflict_because_one_would_be_lost():
    assert merge(obj(n=1, m=1), obj(n=2, m=1), obj(n=2, m=2)) == Conflict(("n",))


def test_a_field_is_the_same_when_its_text_is():
    assert merge(text({"a": 1}), text({"a": 1, "b": 1}), text({"a": 1.0})) == text({"a": 1.0, "b": 1})
    assert merge(text({"a": 1}), text({"a": True}), text({"a": 1.0})) == Conflict(("a",))


def test_a_removed_field_stays_removed_unless_the_other_changed_it():
    assert merge(text({"a": 1, "b": 1}), text({"b": 1}), text({"a": 1, "b": 2})) == text({"b": 2})
    assert merge(text({"a": 1}), text({}), text({"a": 2})) == Conflict(("a",))


def test_fields_of_objects_merge_and_the_class_stays():
    assert merge(obj(a=1, b=1), obj(a=2, b=1), obj(a=1, b=3)) == obj(a=2, b=3)


def test_an_object_that_became_another_class_does_not_merge():
    other = text({"$": "obj", "c": "shop:Other", "f": {"a": 1}})
    assert isinstance(merge(obj(a=1), other, obj(a=2)), Conflict)


def test_a_state_that_is_one_value_is_one_field():
    assert merge("1", "2", "1") == "2"
    assert merge("1", "2", "3") == Conflict(("the whole state",))


def test_a_dict_with_keys_that_json_lacks_is_merged_as_pairs():
    theirs = text({"$": "dict", "v": [["a", 1], [7, 1]]})
    assert merge(text({"a": 1}), text({"a": 2}), theirs) == text({"$": "dict", "v": [["a", 2], [7, 1]]})


def test_a_pydantic_model_keeps_which_fields_were_set():
    def model(set_: list[str], **fields: Any) -> str:
        return text({"$": "obj", "c": "shop:Model", "f": fields, "s": set_})

    merged = merge(model([], a=0, b=0), model(["a"], a=1, b=0), model(["b"], a=0, b=1))
    assert merged == model(["a", "b"], a=1, b=1)


# -- updates ---------------------------------------------------------------------------------------------


def updated(state: Any, *updates: Any) -> Any:
    return json.loads(apply_updates(text(state), updates, json.loads, text))


def test_updates_are_applied_in_order_and_may_return_or_change():
    assert updated({"n": 1}, lambda s: s | {"n": s["n"] + 1}, lambda s: s.update(n=s["n"] * 10)) == {"n": 20}


def test_an_update_that_returns_something_else_is_refused():
    with pytest.raises(InvalidUpdate, match="returned a int, not a dict"):
        updated({}, lambda s: s.setdefault("n", 1))


# -- prepare ---------------------------------------------------------------------------------------------


def prepared(change: StateChange, version: int, stored: Any) -> StateWrite | Conflict:
    return prepare(change, lambda: (version, text(stored)), json.loads, text)


def test_a_change_of_the_stored_version_is_written_as_it_is():
    change = StateChange(3, text({"a": 1}), text({"a": 2}))
    assert prepared(change, 3, {"a": 1}) == StateWrite(3, text({"a": 2}))


def test_a_change_of_an_older_version_is_merged():
    change = StateChange(3, text({"a": 1, "b": 1}), text({"a": 2, "b": 1}))
    assert prepared(change, 4, {"a": 1, "b": 5}) == StateWrite(4, text({"a": 2, "b": 5}))
    assert prepared(change, 4, {"a": 9, "b": 1}) == Conflict(("a",))


def test_updates_alone_take_the_stored_state_whatever_its_version():
    change = StateChange(None, None, None, [lambda s: s | {"n": s["n"] + 1}])
    assert prepared(change, 12, {"n": 41}) == StateWrite(12, text({"n": 42}))


def test_updates_come_after_the_merge():
    change = StateChange(1, text({"a": 1, "n": 1}), text({"a": 2, "n": 1}), [lambda s: s | {"n": s["n"] + 1}])
    assert prepared(change, 2, {"a": 1, "n": 10}) == StateWrite(2, text({"a": 2, "n": 11}))
