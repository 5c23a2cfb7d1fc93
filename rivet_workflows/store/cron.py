"""When a recurring schedule fires next. Pure: times are microseconds since the epoch, and are given.

A cron expression is matched against the wall clock of its time zone, without daylight saving in the matching itself
(cronsim's own rules move and repeat jobs, as Debian's do): a wall-clock time that does not exist is skipped, one that
comes twice counts the first time (A-CRON-08).
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from zoneinfo import ZoneInfo

from cronsim import CronSim, CronSimError

from rivet_workflows.records import ScheduleKind

__all__ = ["ALIASES", "BadExpression", "check_expression", "fields", "following", "matches", "next_match"]

ALIASES = {
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
    "@monthly": "0 0 1 * *",
    "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@hourly": "0 * * * *",
}

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
#: Matching wall-clock times in a row that may be missing in a zone; more, and it has none.
_MISSING = 10_000


class BadExpression(ValueError):
    """The expression cannot be read, or no time matches it."""


def fields(expression: str) -> str:
    """The five fields of ``expression``, an alias spelled out, in one spelling. Raises :class:`BadExpression`."""
    text = " ".join(expression.split())
    if text.startswith("@"):
        if text.lower() not in ALIASES:
            raise BadExpression(
                f"{expression!r} is no alias of a cron expression; there are {', '.join(ALIASES)}"
            )
        return ALIASES[text.lower()]
    if len(text) > 200 or text.count(" ") != 4:
        raise BadExpression(
            f"{expression!r} is no cron expression: it has five fields, minute hour day-of-month month day-of-week"
        )
    return text.upper()


def check_expression(expression: str, zone: str, now: int) -> str:
    """The five fields of an expression that can be read and matches some time after ``now``.

    Raises :class:`BadExpression`, which says which of the two it is not.
    """
    text = fields(expression)
    try:
        first = next_match(text, zone, now)
    except (CronSimError, ValueError) as error:
        raise BadExpression(f"{expression!r} is no cron expression: {error}") from None
    if first is None:
        raise BadExpression(f"no time ever matches {expression!r}")
    return text


def next_match(expression: str, zone: str, now: int) -> int | None:
    """The first time strictly after ``now`` that matches; None: there is none in the next fifty years."""
    return next(matches(expression, zone, now), None)


def matches(expression: str, zone: str, now: int) -> Iterator[int]:
    """The times after ``now`` that match, one after the other."""
    tz = _zone(zone)
    # A naive start: cronsim then goes along the wall clock and knows of no zone.
    wall = (_EPOCH + timedelta(microseconds=now)).astimezone(tz).replace(tzinfo=None, fold=0)
    missing = 0
    try:
        for match in CronSim(expression, wall - timedelta(minutes=1)):
            at = _instant(match, tz)
            if at is None:
                missing += 1
                if missing > _MISSING:
                    return
            elif at > now:
                missing = 0
                yield at
    except OverflowError:
        return


def _instant(wall: datetime, tz: ZoneInfo) -> int | None:
    """When a clock in ``tz`` shows ``wall`` for the first time; None: it never does."""
    moment = wall.replace(tzinfo=tz, fold=0).astimezone(UTC)
    if moment.astimezone(tz).replace(tzinfo=None, fold=0) != wall:
        return None
    return (moment - _EPOCH) // _MICROSECOND


@lru_cache(maxsize=512)
def _zone(name: str) -> ZoneInfo:
    return ZoneInfo(name)


def following(kind: ScheduleKind, rule: str, zone: str, scheduled_at: int, now: int) -> int | None:
    """When a schedule that was due at ``scheduled_at`` fires next, strictly after ``now``: what was missed folds into
    the fire of now (A-CRON-07). An interval stays on its grid."""
    if kind is ScheduleKind.EVERY:
        interval = int(rule)
        return scheduled_at + interval * ((now - scheduled_at) // interval + 1)
    return next_match(rule, zone, now)
