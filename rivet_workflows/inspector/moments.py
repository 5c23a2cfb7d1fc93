"""Points in time and spans as people read them. Stored times are microseconds since the epoch. Pure."""

from __future__ import annotations

from datetime import datetime

from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from rivet_workflows.client.moments import from_micros

__all__ = ["instant", "span"]

_SECOND = 1_000_000
_MINUTE = 60 * _SECOND
_HOUR = 60 * _MINUTE
_DAY = 24 * _HOUR


def instant(at: object) -> datetime | None:
    """The aware datetime of a stored time; None for what is none."""
    if not isinstance(at, int) or isinstance(at, bool) or at <= 0:
        return None
    return from_micros(at)


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
