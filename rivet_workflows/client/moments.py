"""Points in time as callers see them (aware ``datetime``, UTC) and as they are stored (epoch microseconds). Pure."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)


def from_micros(at: int) -> datetime:
    """Exact, unlike ``datetime.fromtimestamp`` of a float. Beyond the calendar: its last moment."""
    try:
        return _EPOCH + timedelta(microseconds=at)
    except OverflowError:
        return datetime.max.replace(tzinfo=UTC)


def from_micros_or_none(at: int | None) -> datetime | None:
    return None if at is None else from_micros(at)


def to_micros(when: datetime) -> int:
    return (when - _EPOCH) // _MICROSECOND
