"""Cron expressions in time zones, against an independent computation: a walk over every minute of UTC.

A-CRON-08: a minute of the wall clock that does not exist is skipped, one that comes twice counts the first time.
"""

from __future__ import annotations

import calendar
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from rivet_workflows import ScheduleError
from rivet_workflows.client.moments import from_micros, to_micros
from rivet_workflows.store.cron import fields, matches

# -- the independent computation: reads an expression the plain way, and asks the clock minute by minute

MONTH_NAMES = "JAN FEB MAR APR MAY JUN JUL AUG SEP OCT NOV DEC"
MONTHS = {name: n for n, name in enumerate(MONTH_NAMES.split(), 1)}
DAY_NAMES = "SUN MON TUE WED THU FRI SAT"
DAYS = {name: n for n, name in enumerate(DAY_NAMES.split())}
NICKNAMES = {
    "@hourly": "0 * * * *",
    "@daily": "0 0 * * *",
    "@weekly": "0 0 * * 0",
    "@monthly": "0 0 1 * *",
    "@yearly": "0 0 1 1 *",
}


def numbers(text: str, low: int, high: int, names: dict[str, int]) -> set[int]:
    """One field."""
    found: set[int] = set()
    for term in text.split(","):
        span, _, step = term.partition("/")
        first, _, last = span.partition("-")
        if span == "*":
            begin, end = low, high
        else:
            begin = names[first] if first in names else int(first)
            end = (names[last] if last in names else int(last)) if last else (high if step else begin)
        found |= set(range(begin, end + 1, int(step or 1)))
    return found


def day_of_month(text: str) -> Callable[[datetime], bool]:
    if text == "L":
        return lambda wall: wall.day == calendar.monthrange(wall.year, wall.month)[1]
    if text == "LW":

        def last_working_day(wall: datetime) -> bool:
            days = calendar.monthrange(wall.year, wall.month)[1]
            left = [n for n in range(wall.day, days + 1) if wall.replace(day=n).weekday() < 5]
            return left == [wall.day]

        return last_working_day
    days = numbers(text, 1, 31, {})
    return lambda wall: wall.day in days


def day_of_week(text: str) -> Callable[[datetime], bool]:
    day, hash_, nth = text.partition("#")
    if hash_:
        return lambda wall: wall.isoweekday() % 7 == int(day) % 7 and (wall.day + 6) // 7 == int(nth)
    if text.endswith("L"):
        return lambda wall: (
            wall.isoweekday() % 7 == int(text[:-1]) % 7 and (wall + timedelta(days=7)).month != wall.month
        )
    weekdays = {n % 7 for n in numbers(text, 0, 7, DAYS)}
    return lambda wall: wall.isoweekday() % 7 in weekdays


def reader(expression: str) -> tuple[set[int], Callable[[datetime], bool]]:
    """The minutes, and whether a time of the wall clock at one of them matches. Days and weekdays: both must, if one
    of them is a star, else either."""
    minute, hour, day, month, weekday = NICKNAMES.get(expression, expression).split()
    minutes, hours, months = (
        numbers(minute, 0, 59, {}),
        numbers(hour, 0, 23, {}),
        numbers(month, 1, 12, MONTHS),
    )
    on_day, on_weekday = day_of_month(day), day_of_week(weekday)
    combine = all if day.startswith("*") or weekday.startswith("*") else any

    def fits(wall: datetime) -> bool:
        if wall.hour not in hours or wall.month not in months:
            return False
        return combine((on_day(wall), on_weekday(wall)))

    return minutes, fits


def walk(zone: str, begin: datetime, end: datetime) -> Iterator[tuple[datetime, datetime]]:
    """Every minute that begins within, and what the clock shows then for the first time."""
    tz = ZoneInfo(zone)
    seen: set[datetime] = set()
    at = begin - timedelta(hours=4)  # what came just before may be repeated within
    while at < end:
        wall = at.astimezone(tz).replace(tzinfo=None, fold=0)
        if wall not in seen:
            seen.add(wall)
            if at >= begin:
                yield at, wall
        at += timedelta(minutes=1)


def brute_force(
    expressions: list[str], zone: str, begin: datetime, end: datetime
) -> dict[str, list[datetime]]:
    at_minute: list[list[tuple[str, Callable[[datetime], bool]]]] = [[] for _ in range(60)]
    for expression in expressions:
        minutes, fits = reader(expression)
        for minute in minutes:
            at_minute[minute].append((expression, fits))
    found: dict[str, list[datetime]] = {expression: [] for expression in expressions}
    for at, wall in walk(zone, begin, end):
        for expression, fits in at_minute[wall.minute]:
            if fits(wall):
                found[expression].append(at)
    return found


def ours(expression: str, zone: str, begin: datetime, end: datetime) -> list[datetime]:
    found = []
    for at in matches(fields(expression), zone, to_micros(begin) - 1):
        moment = from_micros(at)
        if moment >= end:
            break
        found.append(moment)
    return found


# -- the table

EXPRESSIONS = [
    "* * * * *",
    "*/7 * * * *",
    "*/15 * * * *",
    "0 * * * *",
    "30 * * * *",
    "5,35 */3 * * *",
    "0 0 * * *",
    "30 0 * * *",
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
    "59 23 * * *",
    "0 9 * * 1-5",
    "0 9 * * MON-FRI",
    "0 12 * * 0",
    "0 12 * * 7",
    "0 12 * * */2",
    "30 2 * * SUN",
    "0 0 1 * *",
    "0 0 29 2 *",
    "0 0 30 2 MON",
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
    "0 18 L * *",
    "0 18 LW * *",
    "0 9 * * 5L",
    "0 9 * * 1#2",
]
#: Four days each, the change in the middle.
CHANGES = [
    ("Europe/Berlin", datetime(2026, 3, 27, tzinfo=UTC)),
    ("Europe/Berlin", datetime(2027, 10, 29, tzinfo=UTC)),
    (
        "Europe/Dublin",
        datetime(2028, 3, 24, tzinfo=UTC),
    ),  # its summer is the standard, its winter the exception
    ("Europe/Dublin", datetime(2026, 10, 23, tzinfo=UTC)),
    ("America/New_York", datetime(2026, 3, 6, tzinfo=UTC)),
    ("America/New_York", datetime(2028, 11, 3, tzinfo=UTC)),
    ("Australia/Lord_Howe", datetime(2026, 4, 3, tzinfo=UTC)),  # half an hour
    ("Australia/Lord_Howe", datetime(2027, 10, 1, tzinfo=UTC)),
    ("Africa/Casablanca", datetime(2026, 2, 13, tzinfo=UTC)),  # around Ramadan
    ("Africa/Casablanca", datetime(2026, 3, 20, tzinfo=UTC)),
    ("Africa/Cairo", datetime(2026, 4, 22, tzinfo=UTC)),  # at midnight
    ("Africa/Cairo", datetime(2026, 10, 28, tzinfo=UTC)),
    ("America/Santiago", datetime(2027, 4, 2, tzinfo=UTC)),
    ("America/Santiago", datetime(2027, 9, 3, tzinfo=UTC)),
    ("Pacific/Apia", datetime(2011, 12, 28, tzinfo=UTC)),  # a day that never was
]
CALM = [
    ("Asia/Kathmandu", datetime(2028, 2, 27, tzinfo=UTC)),
    ("Asia/Kathmandu", datetime(2026, 12, 30, tzinfo=UTC)),
    ("UTC", datetime(2028, 2, 27, tzinfo=UTC)),
    ("UTC", datetime(2100, 2, 26, tzinfo=UTC)),
    ("UTC", datetime(2026, 12, 30, tzinfo=UTC)),
]


@pytest.mark.parametrize(("zone", "begin"), CHANGES + CALM)
def test_a_cron_08_the_table_of_expressions_zones_and_years(zone: str, begin: datetime):
    end = begin + timedelta(days=4)
    for expression, expected in brute_force(EXPRESSIONS, zone, begin, end).items():
        assert ours(expression, zone, begin, end) == expected, expression


@pytest.mark.parametrize(("zone", "begin"), CHANGES)
def test_the_table_holds_a_change_of_the_clocks_where_it_says_so(zone: str, begin: datetime):
    tz = ZoneInfo(zone)
    offsets = {(begin + timedelta(days=n)).astimezone(tz).utcoffset() for n in (0, 4)}
    assert len(offsets) == 2


#: Times a year, so that a year has them all.
RARE = [
    "0 0 29 2 *",
    "0 0 30 2 MON",
    "0 6 31 * *",
    "0 6 30 * *",
    "30 2 28-31 3,10 *",
    "0 18 L * *",
    "0 18 L 2 *",
    "0 18 LW * *",
    "0 9 * * 5L",
    "0 9 * * 1#2",
    "0 9 * * 3#5",
    "0 6 13 * 5",
    "0 6 */10 * 1",
    "@monthly",
    "@yearly",
    "59 23 31 12 *",
]


@pytest.mark.timeout(120)
@pytest.mark.parametrize(
    ("zone", "begin", "months"),
    [
        ("Europe/Berlin", datetime(2028, 1, 1, tzinfo=UTC), 12),
        ("America/New_York", datetime(2027, 9, 1, tzinfo=UTC), 12),
        ("UTC", datetime(2100, 2, 1, tzinfo=UTC), 2),  # no leap year
        ("UTC", datetime(2104, 2, 1, tzinfo=UTC), 2),
    ],
)
def test_a_cron_07_leap_years_and_ends_of_months(zone: str, begin: datetime, months: int):
    end = begin + timedelta(days=31 * months)
    for expression, expected in brute_force(RARE, zone, begin, end).items():
        assert ours(expression, zone, begin, end) == expected, expression


def test_a_cron_07_the_next_leap_day_may_be_eight_years_away():
    after = to_micros(datetime(2096, 2, 29, 12, tzinfo=UTC))
    following = from_micros(next(matches("0 0 29 2 *", "UTC", after)))
    assert following == datetime(2104, 2, 29, tzinfo=UTC)


# -- the same through an actor's own schedules, on the days to come

JOBS = ["0 0 * * *", "30 0 * * *", "30 1 * * *", "15 2 * * *", "30 2 * * *", "0 3 * * *", "45 23 * * *"]
ZONES = sorted({zone for zone, _ in CHANGES if zone != "Pacific/Apia"})


def changes_to_come(zone: str, now: datetime) -> list[datetime]:
    """The next two hours in which the clocks are changed."""
    tz = ZoneInfo(zone)
    hour = now.replace(minute=0, second=0, microsecond=0)
    hours = [hour + timedelta(hours=n) for n in range(24 * 500)]
    found = [
        two
        for one, two in pairwise(hours)
        if one.astimezone(tz).utcoffset() != two.astimezone(tz).utcoffset()
    ]
    return found[:2]


@pytest.mark.parametrize("zone", ZONES)
def test_a_cron_08_both_days_of_the_change_in_the_life_of_an_actor(
    rivet: Any, clockwork: Any, cron: Any, zone: str
):
    tried = 0
    for change in changes_to_come(zone, rivet.now()):
        begin, end = change - timedelta(days=2), change + timedelta(days=2)
        if begin <= rivet.now():
            continue  # the clocks are being changed while this test runs
        rivet.jump(begin - rivet.now())
        tried += 1
        before = len(clockwork.get().calls)
        for expression in JOBS:
            cron.set(name=expression, expression=expression, timezone=zone, action="note", args=[expression])
        rivet.advance(end - rivet.now())
        log = clockwork.get()
        fired: dict[str, list[datetime]] = {expression: [] for expression in JOBS}
        for expression, at in list(zip(log.calls, log.times, strict=True))[before:]:
            fired[expression].append(at)
        assert fired == brute_force(JOBS, zone, begin + timedelta(minutes=1), end + timedelta(minutes=1))
        for expression in JOBS:
            cron.delete(expression)
    assert tried


def local(expression: str, zone: str, day: datetime) -> list[str]:
    """The wall-clock times of one local day at which it fires."""
    tz = ZoneInfo(zone)
    begin = day.replace(tzinfo=tz).astimezone(UTC)
    end = (day + timedelta(days=1)).replace(tzinfo=tz).astimezone(UTC)
    return [f"{at.astimezone(tz):%H:%M%z}" for at in ours(expression, zone, begin, end)]


@pytest.mark.parametrize(
    ("zone", "spring", "skipped", "autumn", "twice", "first"),
    [
        ("Europe/Berlin", datetime(2026, 3, 29), "30 2", datetime(2026, 10, 25), "30 2", "02:30+0200"),
        ("America/New_York", datetime(2026, 3, 8), "30 2", datetime(2026, 11, 1), "30 1", "01:30-0400"),
        ("Australia/Lord_Howe", datetime(2026, 10, 4), "15 2", datetime(2026, 4, 5), "45 1", "01:45+1100"),
        ("Africa/Casablanca", datetime(2026, 3, 22), "30 2", datetime(2026, 2, 15), "30 2", "02:30+0100"),
        ("Africa/Cairo", datetime(2026, 4, 24), "30 0", datetime(2026, 10, 29), "45 23", "23:45+0300"),
    ],
)
def test_a_cron_08_skipped_in_spring_once_in_autumn(zone, spring, skipped, autumn, twice, first):
    assert local(f"{skipped} * * *", zone, spring) == []
    assert len(local(f"{skipped} * * *", zone, spring + timedelta(days=1))) == 1
    assert local(f"{twice} * * *", zone, autumn) == [first]
    assert len(local(f"{twice} * * *", zone, autumn + timedelta(days=1))) == 1


def test_a_cron_08_asked_within_the_repeated_hour_it_does_not_fire_again():
    second = datetime(2026, 10, 25, 1, 10, tzinfo=UTC)  # 02:10 in Berlin, for the second time
    following = from_micros(next(matches("30 2 * * *", "Europe/Berlin", to_micros(second))))
    assert following == datetime(2026, 10, 26, 1, 30, tzinfo=UTC)


def test_a_cron_07_times_are_strictly_after_and_ascending():
    at = to_micros(datetime(2026, 5, 1, 9, 0, tzinfo=UTC))
    assert next(matches("0 9 * * *", "UTC", at)) == at + 86_400_000_000
    assert next(matches("0 9 * * *", "UTC", at - 1)) == at
    times = matches("*/5 * * * *", "US/Pacific", at)
    some = [next(times) for _ in range(500)]
    assert all(first < second for first, second in pairwise(some))


@pytest.mark.parametrize(
    "expression",
    [
        *("0 0 30 2 *", "0 0 31 2 *", "0 0 31 2,4,6 *", "0 0 31 2,4,6,9,11 *", "0 0 30-31 FEB *"),
        *("0 0 0 * *", "0 0 32 * *", "60 * * * *", "0 24 * * *", "0 0 * 13 *", "0 0 * 0 *", "0 0 * * 8"),
        *("*/0 * * * *", "5-1 * * * *", "* * * *", "* * * * * *", "a b c d e", "@reboot", "", "0 0 1 1 1#6"),
    ],
)
def test_a_cron_03_impossible_expressions_are_refused_at_the_call(clockwork: Any, cron: Any, expression: str):
    with pytest.raises(ScheduleError) as refused:
        cron.set(name="job", expression=expression, timezone="Europe/Berlin", action="plain")
    assert refused.value.code == "schedule_invalid_cron_expression"
    assert cron.list() == []


def test_a_cron_01_aliases_are_spelled_out():
    assert [fields(alias) for alias in ("@daily", "@DAILY", " @hourly ")] == [
        "0 0 * * *",
        "0 0 * * *",
        "0 * * * *",
    ]
