"""Points in time and spans as people read them. Stored times are microseconds since the epoch. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from django.conf import settings
from django.utils import timezone
from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from rivet_workflows.client.moments import from_micros

__all__ = ["Moment", "instant", "moment", "shown", "span"]

_SECOND = 1_000_000
_MINUTE = 60 * _SECOND
_HOUR = 60 * _MINUTE
_DAY = 24 * _HOUR


def instant(at: object) -> datetime | None:
    """The aware datetime of a stored time; None for what is none."""
    if not isinstance(at, int) or isinstance(at, bool) or at <= 0:
        return None
    return from_micros(at)


@dataclass(frozen=True, slots=True)
class Moment:
    """A point in time in the current time zone, written out: the template's filters took half of a long page's time."""

    #: For machines, with the offset.
    iso: str
    #: For a tooltip, to the microsecond.
    full: str
    #: In a line: without the date where that is today.
    text: str


def moment(at: object) -> Moment | None:
    """A stored time, written out; None for what is none."""
    when = instant(at)
    return None if when is None else shown(when)


def shown(when: datetime) -> Moment:
    """An aware datetime, written out."""
    # As templates do: without USE_TZ a project has no current time zone, and UTC is said.
    zone = timezone.get_current_timezone() if settings.USE_TZ else when.tzinfo
    try:
        when = when.astimezone(zone)
    except OverflowError:  # the last day of the calendar, in the east
        zone = when.tzinfo
    time = f"{when:%H:%M:%S}"
    today = datetime.now(zone).date() == when.date()
    return Moment(
        when.isoformat(timespec="milliseconds"),
        f"{when:%Y-%m-%d %H:%M:%S.%f %Z}",
        time if today else f"{when:%Y-%m-%d} {time}",
    )


def span(micros: int | None) -> str:
    """How long something took or takes, in the units that matter: ``340 ms``, ``2.4 s``, ``3 min 20 s``, ``4 days``."""
    if micros is None:
        return ""
    micros = max(0, micros)
    if micros < _SECOND:
        return _("%(n)s ms") % {"n": _significant(micros / 1000)}
    if micros < _MINUTE:
        return _("%(n)s s") % {"n": _significant(micros / _SECOND)}
    if micros < _HOUR:
        return _("%(m)d min %(s)d s") % {"m": micros // _MINUTE, "s": micros % _MINUTE // _SECOND}
    if micros < 2 * _DAY:
        return _("%(h)d h %(m)d min") % {"h": micros // _HOUR, "m": micros % _HOUR // _MINUTE}
    days = micros // _DAY
    return ngettext("%(n)d day", "%(n)d days", days) % {"n": days}


def _significant(number: float) -> str:
    return f"{number:.0f}" if number >= 10 else f"{number:.1f}".removesuffix(".0")
