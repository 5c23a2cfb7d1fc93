"""What may be said about a step, a duration or a count, and what is refused; R-STEP-01, R-STEP-05."""

from __future__ import annotations

import math
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest

from rivet_workflows.engine.context import moment
from rivet_workflows.engine.options import MAX_SECONDS, StepOptions, micros, seconds, whole
from rivet_workflows.engine.program import Limits
from rivet_workflows.engine.turn import Failure, StepOrder, Turn
from rivet_workflows.exceptions import ErrorInfo
from tests.engine.steps import echo


def test_the_defaults_are_these() -> None:
    assert StepOptions() == StepOptions(
        timeout=30.0,
        retry_on_timeout=False,
        max_retries=3,
        no_retry=(),
        retry_backoff_base=0.1,
        retry_backoff_max=30.0,
        ephemeral=False,
        atomic=False,
        context=True,
        rollback=None,
    )
    assert Limits() == Limits(
        max_scope_entries=10_000,
        max_starts=5,
        max_value=1024 * 1024,
        input_shown=8 * 1024,
        attempts_shown=20,
        max_idle_iterations=100_000,
        max_turn_rows=1_000,
    )


def test_a_turn_orders_nothing_by_itself() -> None:
    turn = Turn()
    assert all(not getattr(turn, name) for name in ("rows", "starts", "dirty", "must_commit", "more"))
    assert all(getattr(turn, name) == [] for name in Turn.__annotations__)
    assert set(turn.more) == set(Turn.__annotations__)
    assert (turn.rollback_scan, turn.outcome, turn.set_aside) == (None, None, None)
    with pytest.raises(AttributeError):
        turn.lists
    order = StepOrder(1, 1, "s", echo, (), {}, StepOptions())
    assert (order.durable, order.is_rollback, order.remaining_retries) == (True, False, 0)
    failure = Failure("workflow", ErrorInfo("E", "e"))
    unset = (
        "step_name",
        "attempt",
        "max_retries",
        "remaining_retries",
        "will_retry",
        "retry_delay",
        "retry_at",
    )
    assert [getattr(failure, name) for name in (*unset, "set_aside")] == [None] * 8


@pytest.mark.parametrize(
    ("value", "result"),
    [(0, 0.0), (5, 5.0), (0.25, 0.25), (timedelta(minutes=2), 120.0), (MAX_SECONDS, float(MAX_SECONDS))],
)
def test_seconds(value: Any, result: float) -> None:
    found = seconds(value, "the delay")
    assert found == result
    assert type(found) is float


@pytest.mark.parametrize(
    ("value", "error", "text"),
    [
        (True, TypeError, r"the delay must be seconds \(int, float\) or a timedelta, not bool"),
        ("5", TypeError, r"the delay must be seconds \(int, float\) or a timedelta, not str"),
        (None, TypeError, ".* not NoneType"),
        (math.nan, ValueError, "the delay must be a finite number of seconds, not nan"),
        (-math.inf, ValueError, "the delay must be a finite number of seconds, not -inf"),
        (-0.5, ValueError, r"the delay must not be negative, got -0\.5"),
        (timedelta(seconds=-1), ValueError, r"the delay must not be negative, got -1\.0"),
        (MAX_SECONDS + 1, ValueError, r"the delay is longer than 9000 years: \d+"),
    ],
)
def test_what_is_no_duration(value: Any, error: type[Exception], text: str) -> None:
    for check in (seconds, micros):
        with pytest.raises(error, match=f"^{text}"):
            check(value, "the delay")


def test_nine_thousand_years_of_leap_days_are_accepted() -> None:
    assert timedelta(days=9_000 * 366).total_seconds() == MAX_SECONDS


@pytest.mark.parametrize(
    ("value", "result"),
    [
        (0, 0),
        (2, 2_000_000),
        (0.5, 500_000),
        (0.000_001_6, 2),
        (1e-9, 1),
        (timedelta(microseconds=3), 3),
        (timedelta(0), 0),
        # Exact where a float of seconds is not.
        (timedelta(days=100_000, microseconds=1), 8_640_000_000_000_001),
    ],
)
def test_micros(value: Any, result: int) -> None:
    found = micros(value, "the delay")
    assert found == result
    assert type(found) is int


def test_whole_numbers() -> None:
    assert whole(1, "count") == 1
    assert whole(0, "count", at_least=0) == 0
    for value in (0, -1, True, 1.0, "1", None):
        with pytest.raises(ValueError, match=f"^count must be a whole number of at least 1, not {value!r}$"):
            whole(value, "count")
    with pytest.raises(ValueError, match="at least 2"):
        whole(1, "count", at_least=2)


@pytest.mark.parametrize(
    ("value", "result"),
    [
        (datetime(1970, 1, 1, tzinfo=UTC), 0),
        (datetime(1970, 1, 1, 1, 0, 0, 7, tzinfo=timezone(timedelta(hours=1))), 7),
        (1.5, 1_500_000),
        (-1, -1_000_000),
        (0.000_001_6, 2),
    ],
)
def test_points_in_time(value: Any, result: int) -> None:
    found = moment(value, "the time")
    assert found == result
    assert type(found) is int


@pytest.mark.parametrize(
    ("value", "error", "text"),
    [
        (datetime(2020, 1, 1), ValueError, "the time is a naive datetime"),
        (True, TypeError, "the time must be an aware datetime or epoch seconds, not bool"),
        ("2020", TypeError, "the time must be an aware datetime or epoch seconds, not str"),
        (math.nan, ValueError, "the time must be finite, not nan"),
        (math.inf, ValueError, "the time must be finite, not inf"),
        (-math.inf, ValueError, "the time must be finite, not -inf"),
    ],
)
def test_what_is_no_point_in_time(value: Any, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=f"^{text}"):
        moment(value, "the time")


def test_r_step_05_the_backoff() -> None:
    options = StepOptions()
    delays = [options.backoff(attempt) for attempt in (1, 2, 3, 8, 9)]
    assert delays == [200_000, 400_000, 800_000, 25_600_000, 30_000_000]
    assert options.backoff(5_000) == 30_000_000
    slow = StepOptions(retry_backoff_base=0.0, retry_backoff_max=7.0)
    assert slow.backoff(3) == 0
    # As long as the numbers are told apart at all: the exponent is bounded late enough.
    tiny = StepOptions(retry_backoff_base=1e-15, retry_backoff_max=5_000.0)
    assert [tiny.backoff(attempt) for attempt in (60, 61)] == [round(1e-15 * 2.0**60 * 1_000_000)] * 2


def test_attempts_that_are_left() -> None:
    options = StepOptions(max_retries=3)
    assert [options.remaining(attempt) for attempt in (1, 2, 4, 5, 9)] == [3, 2, 0, 0, 0]


@pytest.mark.parametrize(
    ("name", "value", "result"),
    [
        ("timeout", None, None),
        ("timeout", timedelta(seconds=3), 3.0),
        ("timeout", 0.001, 0.001),
        ("max_retries", 0, 0),
        ("max_retries", 7, 7),
        ("retry_on_timeout", True, True),
        ("ephemeral", True, True),
        ("atomic", True, True),
        ("context", False, False),
        ("no_retry", KeyError, (KeyError,)),
        ("no_retry", [KeyError, KeyboardInterrupt], (KeyError, KeyboardInterrupt)),
        ("no_retry", (KeyError,), (KeyError,)),
        ("no_retry", {KeyError}, (KeyError,)),
        ("no_retry", frozenset([KeyError]), (KeyError,)),
        ("retry_backoff_base", timedelta(seconds=2), 2.0),
        ("retry_backoff_max", 9, 9.0),
        ("rollback", echo, echo),
        ("rollback", None, None),
    ],
)
def test_an_option(name: str, value: Any, result: Any) -> None:
    assert getattr(StepOptions().merged({name: value}), name) == result


@pytest.mark.parametrize(
    ("name", "value", "error", "text"),
    [
        ("timeout", 0, ValueError, "timeout must be greater than 0"),
        ("timeout", -1, ValueError, "timeout must not be negative"),
        ("timeout", "1", TypeError, "timeout must be seconds"),
        ("max_retries", -1, ValueError, "max_retries must be 0 or more, got -1"),
        ("max_retries", True, TypeError, "max_retries must be a whole number, not True"),
        ("max_retries", 1.0, TypeError, r"max_retries must be a whole number, not 1\.0"),
        ("retry_on_timeout", 1, TypeError, "retry_on_timeout must be True or False, not 1"),
        ("ephemeral", 1, TypeError, "ephemeral must be True or False, not 1"),
        ("atomic", None, TypeError, "atomic must be True or False, not None"),
        ("context", "no", TypeError, "context must be True or False, not 'no'"),
        ("no_retry", int, TypeError, "no_retry takes exception classes, not <class 'int'>"),
        ("no_retry", [KeyError()], TypeError, r"no_retry takes exception classes, not KeyError\(\)"),
        ("retry_backoff_base", -1, ValueError, "retry_backoff_base must not be negative"),
        ("retry_backoff_max", -1, ValueError, "retry_backoff_max must not be negative"),
        ("rollback", "undo", TypeError, "rollback must be a function, not 'undo'"),
        ("retries", 1, TypeError, "unknown step option 'retries'"),
    ],
)
def test_an_option_that_is_refused(name: str, value: Any, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=f"^{text}"):
        StepOptions().merged({name: value})


def test_an_unknown_option_is_told_with_those_that_are_there() -> None:
    with pytest.raises(TypeError) as caught:
        StepOptions().merged({"zeal": 1, "colour": 2, "timeout": 1})
    assert str(caught.value) == (
        "unknown step option 'colour'. Keyword arguments for the step function itself go into kwargs={...}; options "
        "are atomic, context, ephemeral, max_retries, no_retry, retry_backoff_base, retry_backoff_max, "
        "retry_on_timeout, rollback, timeout"
    )


def test_options_are_laid_over_one_another() -> None:
    base = StepOptions(timeout=1.0, max_retries=9)
    assert base.merged({}) is base
    assert base.merged({"timeout": 2}) == StepOptions(timeout=2.0, max_retries=9)
