"""The recorded calls of a workflow, as callers see them."""

from __future__ import annotations

import json

import pytest

from rivet_workflows import ErrorInfo, StepExhausted, client, codec
from rivet_workflows.exceptions import failure_record
from tests.client import worker_side
from tests.client.shop import Order
from tests.client.worker_side import AT, EntryStatus, Kind, child_scope

pytestmark = pytest.mark.django_db


@pytest.fixture
def order():
    return client.create(Order, "o-1")


def locations(handle):
    return {entry.seq: entry.location for entry in handle.history()}


def test_a_workflow_that_has_not_run_has_none(order):
    assert order.history() == []


def test_a_finished_step_with_its_input_output_and_attempts(order):
    failed = ErrorInfo.from_exception(OSError("down"), with_traceback=False).to_dict()
    worker_side.row(
        order, 1, "charge", Kind.STEP,
        input=codec.dumps([["order-1"], {}]), output=codec.dumps((1, 2)),
        attempts=json.dumps([[AT, AT + 5, failed], [AT + 10, AT + 15, None]]),
    )  # fmt: skip
    (entry,) = order.history()
    assert (entry.seq, entry.done_seq, entry.kind, entry.name) == (1, 101, "step", "charge")
    assert (entry.occurrence, entry.status, entry.location, entry.path) == (
        1,
        "completed",
        "charge",
        ("charge",),
    )
    assert entry.input == [["order-1"], {}]
    assert entry.output == (1, 2)
    assert [attempt.error and attempt.error.message for attempt in entry.attempts] == ["down", None]
    assert entry.started_at.tzinfo is not None
    assert (entry.done_at - entry.started_at).microseconds == 1


def test_a_failed_step_shows_the_projects_own_error(order):
    cause = ErrorInfo.from_exception(OSError("down"))
    error = StepExhausted("charge failed", step_name="charge", attempts=4, error=cause)
    worker_side.row(
        order, 1, "charge", Kind.STEP, status=EntryStatus.FAILED, error=json.dumps(failure_record(error))
    )
    (entry,) = order.history()
    assert entry.status == "failed"
    assert entry.error.is_a("OSError")


def test_finished_and_open_entries_are_one_history_by_seq(order):
    worker_side.row(order, 2, "b", Kind.SLEEP)
    worker_side.open_entries(
        order,
        {"s": 1, "p": "", "n": "a", "k": Kind.STEP, "t": AT, "a": 2},
        {"s": 3, "p": "", "n": "c", "k": Kind.MESSAGE, "t": AT, "q": None},
        # Finished between the two reads: the row counts.
        {"s": 2, "p": "", "n": "b", "k": Kind.SLEEP, "t": AT},
    )
    shown = [(entry.seq, entry.kind, entry.status) for entry in order.history()]
    assert shown == [(1, "step", "running"), (2, "sleep", "completed"), (3, "message", "running")]


def test_a_step_in_backoff_is_retrying_and_shows_what_went_wrong(order):
    failed = ErrorInfo.from_exception(OSError("down"), with_traceback=False).to_dict()
    entry = {
        "s": 1,
        "p": "",
        "n": "a",
        "k": Kind.STEP,
        "t": AT,
        "a": 1,
        "b": AT + 9,
        "x": [[AT, AT + 5, failed]],
    }
    worker_side.open_entries(order, entry)
    (shown,) = order.history()
    assert (shown.status, len(shown.attempts), shown.error.message) == ("retrying", 1, "down")


def test_locations_name_loops_branches_blocks_and_repeated_names(order):
    loop = child_scope("", 1, 4)
    join = child_scope(loop, 2, 1)
    block = child_scope(join, 3, 0)
    worker_side.row(order, 4, "work", Kind.STEP, block)
    worker_side.row(order, 5, "work", Kind.STEP, block, occurrence=2)
    worker_side.row(order, 3, "try-it", Kind.TRY, join)
    worker_side.open_entries(
        order,
        {"s": 1, "p": "", "n": "outer", "k": Kind.LOOP, "t": AT, "i": 4},
        {"s": 2, "p": loop, "n": "parallel", "k": Kind.JOIN, "t": AT, "bn": ["x", "y"]},
        {"s": 6, "p": child_scope(join, 3, 0), "n": "last", "k": Kind.STEP, "t": AT},
    )
    assert locations(order) == {
        1: "outer",
        2: "outer/~4/parallel",
        4: "outer/~4/parallel/y/try-it/work",
        5: "outer/~4/parallel/y/try-it/work#2",
        6: "outer/~4/parallel/y/try-it/last",
    }
    assert order.history()[2].path == ("outer", 4, "parallel", "y", "try-it", "work")


def test_branches_of_finished_joins_keep_their_names_and_items_of_a_map_their_numbers(order):
    worker_side.row(order, 1, "both", Kind.JOIN, input='["users","orders"]')
    worker_side.row(order, 2, "fetch", Kind.STEP, child_scope("", 1, 1))
    worker_side.row(order, 3, "each", Kind.MAP, input=None)
    worker_side.row(order, 4, "resize", Kind.STEP, child_scope("", 3, 12))
    assert locations(order) == {1: "both", 2: "both/orders/fetch", 3: "each", 4: "each/12/resize"}


def test_names_with_separators_stay_apart_in_the_path(order):
    worker_side.row(order, 1, "a/b", Kind.STEP)
    assert order.history()[0].path == ("a/b",)


def test_a_row_whose_value_cannot_be_read_spoils_neither_the_list_nor_its_other_fields(order):
    gone = '{"$":"obj","c":"gone.Class","f":{"x":1}}'
    worker_side.row(order, 1, "a", Kind.STEP, output=gone, input='["cut of')
    (entry,) = order.history()
    assert entry.name == "a"
    assert entry.input == '["cut of'
    with pytest.raises(Exception, match=r"gone\.Class"):
        entry.output


def test_an_unknown_opener_does_not_break_the_page(order):
    worker_side.row(order, 9, "lost", Kind.STEP, child_scope("", 5, 2))
    assert locations(order) == {9: "?5/~2/lost"}
