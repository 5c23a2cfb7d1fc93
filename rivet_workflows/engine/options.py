"""What can be said about a step, and the checks on it. Pure.

Precedence: keywords at the call, ``@step(...)`` on the function, the actor's ``step_defaults``, the project's
``STEP_DEFAULTS``, the defaults here (R-STEP-01, in seconds).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from datetime import timedelta
from typing import Any

#: Longest delay or timeout that is accepted, about 9,000 years: beyond it dates do not exist any more.
MAX_SECONDS = 9_000 * 366 * 86_400


def seconds(value: Any, what: str) -> float:
    """``value`` (int, float or timedelta) in seconds.

    Raises TypeError for anything else (also ``True`` and ``"5"``), ValueError for NaN, infinities, negative
    values and such as no calendar holds.
    """
    if isinstance(value, timedelta):
        value = value.total_seconds()
    elif isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"{what} must be seconds (int, float) or a timedelta, not {type(value).__name__}")
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"{what} must be a finite number of seconds, not {value}")
    if value < 0:
        raise ValueError(f"{what} must not be negative, got {value}")
    if value > MAX_SECONDS:
        raise ValueError(f"{what} is longer than {MAX_SECONDS // (366 * 86_400)} years: {value}")
    return float(value)


def whole(value: Any, what: str, *, at_least: int = 1) -> int:
    """``value`` if it is an ``int`` (no bool) of at least ``at_least``; else ValueError."""
    if isinstance(value, bool) or not isinstance(value, int) or value < at_least:
        raise ValueError(f"{what} must be a whole number of at least {at_least}, not {value!r}")
    return value


def micros(value: Any, what: str) -> int:
    """:func:`seconds` in whole microseconds; a duration shorter than one but not 0 is one."""
    if isinstance(value, timedelta):
        seconds(value, what)
        return value // timedelta(microseconds=1)
    exact = seconds(value, what)
    return max(1, round(exact * 1_000_000)) if exact else 0


@dataclass(frozen=True, slots=True)
class StepOptions:
    """How a step is run. Times are seconds (or timedelta at the call)."""

    #: Longest time one attempt may take; None is no limit.
    timeout: float | None = 30.0
    #: A timed-out attempt is retried like a failure instead of ending the step (R-STEP-12).
    retry_on_timeout: bool = False
    #: Attempts after the first.
    max_retries: int = 3
    #: Exception classes that end the step at once.
    no_retry: tuple[type[BaseException], ...] = ()
    retry_backoff_base: float = 0.1
    retry_backoff_max: float = 30.0
    #: The entry is written with the next commit that must be: cheap steps that may safely run again.
    ephemeral: bool = False
    #: The function's own ORM writes commit with the step's record: exactly once (``def`` only).
    atomic: bool = False
    #: Pass the step context as first argument.
    context: bool = True
    rollback: Callable[..., Any] | None = None

    def backoff(self, attempt: int) -> int:
        """Microseconds from the start of failed attempt number ``attempt`` (from 1) to the next (R-STEP-05)."""
        # The exponent is bounded before it is raised: attempt 5,000 must not overflow a float.
        return round(
            min(self.retry_backoff_max, self.retry_backoff_base * 2.0 ** min(attempt, 60)) * 1_000_000
        )

    def remaining(self, attempt: int) -> int:
        """Attempts left once number ``attempt`` (from 1) has begun."""
        return max(0, self.max_retries - (attempt - 1))

    def merged(self, given: Mapping[str, Any]) -> StepOptions:
        """These options with ``given`` on top, checked. Unknown keywords raise TypeError naming ``kwargs=``."""
        if not given:
            return self
        unknown = given.keys() - OPTION_NAMES
        if unknown:
            raise TypeError(
                f"unknown step option {sorted(unknown)[0]!r}. Keyword arguments for the step function itself go "
                f"into kwargs={{...}}; options are {', '.join(sorted(OPTION_NAMES))}"
            )
        return replace(self, **{name: _CHECKS[name](value) for name, value in given.items()})


def _flag(name: str) -> Callable[[Any], bool]:
    def check(value: Any) -> bool:
        if not isinstance(value, bool):
            raise TypeError(f"{name} must be True or False, not {value!r}")
        return value

    return check


def _timeout(value: Any) -> float | None:
    if value is None:
        return None
    checked = seconds(value, "timeout")
    if checked == 0:
        raise ValueError("timeout must be greater than 0; None switches it off")
    return checked


def _max_retries(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"max_retries must be a whole number, not {value!r}")
    if value < 0:
        raise ValueError(f"max_retries must be 0 or more, got {value}")
    return value


def _no_retry(value: Any) -> tuple[type[BaseException], ...]:
    classes = tuple(value) if isinstance(value, tuple | list | set | frozenset) else (value,)
    for cls in classes:
        if not (isinstance(cls, type) and issubclass(cls, BaseException)):
            raise TypeError(f"no_retry takes exception classes, not {cls!r}")
    return classes


def _rollback(value: Any) -> Callable[..., Any] | None:
    if value is not None and not callable(value):
        raise TypeError(f"rollback must be a function, not {value!r}")
    return value  # type: ignore[no-any-return]


_CHECKS: dict[str, Callable[[Any], Any]] = {
    "timeout": _timeout,
    "retry_on_timeout": _flag("retry_on_timeout"),
    "max_retries": _max_retries,
    "no_retry": _no_retry,
    "retry_backoff_base": lambda value: seconds(value, "retry_backoff_base"),
    "retry_backoff_max": lambda value: seconds(value, "retry_backoff_max"),
    "ephemeral": _flag("ephemeral"),
    "atomic": _flag("atomic"),
    "context": _flag("context"),
    "rollback": _rollback,
}
OPTION_NAMES = frozenset(field.name for field in fields(StepOptions))
DEFAULTS = StepOptions()
