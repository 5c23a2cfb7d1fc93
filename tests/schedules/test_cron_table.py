"""Cron expressions in time zones, against an independent computation: a walk over every minute of UTC.

A-CRON-08: a minute of the wall clock that does not exist is skipped, one that comes twice counts the first time.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from functools import cache
from itertools import pairwise
from zoneinfo import ZoneInfo

import pytest

from rivet_workflows.client.moments import from_micros, to_micros
from rivet_workflows.store.cron import ALIASES, BadExpression, check_expression, fields, matches

MONTHS = {
    name: n
    for n, name in enumerate(
        ["JAN", "FEB", "MAR", "APR", "MAY", "JUN", "JUL", "AUG", "SEP", "OCT", "NOV", "DEC"], 1
    )
}
DAYS = {name: n for n, name in enumerate(["SUN", "MON", "TUE", "WED", "THU", "FRI", "SAT"])}


def numbers(text: str, low: int, high: int, names: dict[str, int]) -> set[int]:
    """One field, read the plain way."""
    found: set[int] = set()
    for term in text.split(","):
        span, _, step = term.partition("/")
        first, _, last = span.partition("-")
        if span == "*":
            begin, end = low, high
        else:
            begin = names.get(first) if first in names else int(first)  # type: ignore[assignment]
            end = (names[last] if last in names else int(last)) if last else (high if step else begin)
        found |= set(range(begin, end + 1, int(step or 1)))
    return found


def brute_force(expression: str, zone: str, begin: datetime, end: datetime) -> list[datetime]:
    minute, hour, day, month, weekday = ALIASES.get(expression, expression).split()
    minutes, hours = numbers(minute, 0, 59, {}), numbers(hour, 0, 23, {})
    days, months = numbers(day, 1, 31, {}), numbers(month, 1, 12, MONTHS)
    weekdays = {n % 7 for n in numbers(weekday, 0, 7, DAYS)}
    both = day.startswith("*") or weekday.startswith("*")
    found: list[datetime] = []
    for at, wall in walk(zone, begin, end):
        if wall.minute not in minutes or wall.hour not in hours or wall.month not in months:
            continue
        by_day, by_weekday = wall.day in days, wall.isoweekday() % 7 in weekdays
        if (by_day and by_weekday) if both else (by_day or by_weekday):
            found.append(at)
    return found


@cache
def walk(zone: str, begin: datetime, end: datetime) -> list[tuple[datetime, datetime]]:
    """Every minute that begins within, and what the clock shows then for the first time."""
    tz = ZoneInfo(zone)
    found = []
    seen: set[datetime] = set()
    at = begin
    # What came just before may be repeated within.
    for back in range(1, 200):
        seen.add((begin - timedelta(minutes=back)).astimezone(tz).replace(tzinfo=None, fold=0))
    while at < end:
        wall = at.astimezone(tz).replace(tzinfo=None, fold=0)
        if wall not in seen:
            seen.add(wall)
            found.append((at, wall))
        at += timedelta(minutes=1)
    return found


def ours(expression: str, zone: str, begin: datetime, end: datetime) -> list[datetime]:
    found = []
    rule = check_expression(expression, zone, to_micros(begin))
    for at in matches(rule, zone, to_micros(begin) - 1):
        moment = from_micros(at)
        if moment >= end:
            break
        found.append(moment)
    return found


EXPRESSIONS = [
    "* * * * *",
    "*/7 * * * *",
    "*/15 * * * *",
    "0 * * * *",
    "30 * * * *",
    "5,35 */3 * * *",
    "0 0 * * *",
    "30 1 * * *",
    "0 2 * * *",
    "30 2 * * *",
    "15 2 * * *",
    "59 2 * * *",
    "0 3 * * *",
    "10-20/5 1-3 * * *",
    "*/10 2 * * *",
    "* 1 * * *",
    "45 23 * * *",
    "0 9 * * 1-5",
    "0 9 * * MON-FRI",
    "0 12 * * 0",
    "0 12 * * 7",
    "30 2 * * SUN",
    "0 0 1 * *",
    "0 0 29 2 *",
    "0 6 31 * *",
    "0 6 1,15 * *",
    "0 6 13 * 5",
    "0 6 */10 * 1",
    "0 6 1-7 * *",
    "0 6 * */2 *",
    "0 6 * JAN,JUL *",
    "0 6 * 3 SUN",
    "20 4 28-31 * *",
    "0 */6 * * *",
    "0 1-23/2 * * *",
    "15/15 8 * * *",
    "@hourly",
    "@daily",
    "@weekly",
    "@monthly",
    "@yearly",
    "1 1 1 1 *",
]
WEEKS = [
    # Both days of the change in each zone, a leap day, and the turn of a year.
    ("Europe/Paris", datetime(2026, 3, 27, tzinfo=UTC)),
    ("Europe/Paris", datetime(2027, 10, 29, tzinfo=UTC)),
    ("US/Pacific", datetime(2026, 3, 6, tzinfo=UTC)),
    ("US/Pacific", datetime(2028, 11, 3, tzinfo=UTC)),
    ("Australia/Lord_Howe", datetime(2026, 4, 3, tzinfo=UTC)),
    ("Australia/Lord_Howe", datetime(2027, 10, 1, tzinfo=UTC)),
    ("Asia/Kathmandu", datetime(2028, 2, 27, tzinfo=UTC)),
    ("UTC", datetime(2026, 12, 30, tzinfo=UTC)),
]


@pytest.mark.parametrize("expression", EXPRESSIONS)
def test_a_cron_08_the_table_of_expressions_zones_and_years(expression: str):
    for zone, begin in WEEKS:
        end = begin + timedelta(days=4)
        assert ours(expression, zone, begin, end) == brute_force(expression, zone, begin, end), zone


def local(expression: str, zone: str, day: datetime) -> list[str]:
    """The wall-clock times of one local day at which it fires."""
    tz = ZoneInfo(zone)
    begin = day.replace(tzinfo=tz).astimezone(UTC)
    end = (day + timedelta(days=1)).replace(tzinfo=tz).astimezone(UTC)
    return [f"{at.astimezone(tz):%H:%M%z}" for at in ours(expression, zone, begin, end)]


@pytest.mark.parametrize(
    ("zone", "spring", "autumn", "skipped", "twice"),
    [
        ("Europe/Paris", datetime(2026, 3, 29), datetime(2026, 10, 25), "30 2", "02:30+0200"),
        ("US/Pacific", datetime(2026, 3, 8), datetime(2026, 11, 1), "30 2", None),
        ("Australia/Lord_Howe", datetime(2026, 10, 4), datetime(2026, 4, 5), "15 2", "02:15+1030"),
    ],
)
def test_a_cron_08_both_days_of_the_change(zone, spring, autumn, skipped, twice):
    expression = f"{skipped} * * *"
    assert local(expression, zone, spring) == []
    assert len(local(expression, zone, autumn)) == 1
    assert len(local(expression, zone, autumn + timedelta(days=1))) == 1
    if twice is not None and zone == "Europe/Paris":
        assert local(expression, zone, autumn) == [twice]
    # Across the days of the change, each local day that has the time has it once.
    assert len(local("45 23 * * *", zone, spring)) == len(local("45 23 * * *", zone, autumn)) == 1


def test_a_cron_08_us_pacific_fires_at_the_first_of_two():
    assert local("30 1 * * *", "US/Pacific", datetime(2026, 11, 1)) == ["01:30-0700"]
    assert local("45 1 * * *", "Australia/Lord_Howe", datetime(2026, 4, 5)) == ["01:45+1100"]


def test_a_cron_08_asked_within_the_repeated_hour_it_does_not_fire_again():
    second = datetime(2026, 10, 25, 1, 10, tzinfo=UTC)  # 02:10 in Paris, for the second time
    following = from_micros(next(matches("30 2 * * *", "Europe/Paris", to_micros(second))))
    assert following == datetime(2026, 10, 26, 1, 30, tzinfo=UTC)


def test_a_cron_07_times_are_strictly_after_and_ascending():
    at = to_micros(datetime(2026, 5, 1, 9, 0, tzinfo=UTC))
    assert next(matches("0 9 * * *", "UTC", at)) == at + 86_400_000_000
    assert next(matches("0 9 * * *", "UTC", at - 1)) == at
    times = matches("*/5 * * * *", "US/Pacific", at)
    some = [next(times) for _ in range(500)]
    assert all(first < second for first, second in pairwise(some))


@pytest.mark.parametrize(
    "expression", ["0 0 30 2 *", "0 0 31 2,4,6 *", "@reboot", "a b c d e", "* * * *", "*/0 * * * *"]
)
def test_a_cron_03_impossible_expressions_are_refused(expression: str):
    with pytest.raises(BadExpression):
        check_expression(expression, "Europe/Paris", 0)


def test_a_cron_01_aliases_are_spelled_out():
    assert [fields(alias) for alias in ("@daily", "@DAILY", " @hourly ")] == [
        "0 0 * * *",
        "0 0 * * *",
        "0 * * * *",
    ]
