"""What is checked when a schedule is set, as nobody is there to hear of it when it fires."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any
from uuid import UUID
from zoneinfo import ZoneInfo

from rivet_workflows.client.fires import ScheduledFire
from rivet_workflows.client.moments import from_micros
from rivet_workflows.client.sending import encoded
from rivet_workflows.conf import settings
from rivet_workflows.exceptions import (
    InvalidMaxHistory,
    InvalidScheduleName,
    InvalidTimezone,
    TooManySchedules,
    ValidationFailed,
)
from rivet_workflows.records import ScheduleOp, ScheduleWrite
from rivet_workflows.registry import ActorType
from rivet_workflows.store import get_store
from rivet_workflows.validation import validate_arguments

__all__ = [
    "arguments_for",
    "check_max_history",
    "check_name",
    "check_room",
    "check_zone",
    "checked_call",
    "next_id",
]

MAX_HISTORY = 1_000


def arguments_for(function: Any, args: Sequence[Any], fire: ScheduledFire) -> tuple[Any, ...]:
    """What a scheduled action is called with: its arguments and the fire; without that where it takes none.

    Raises ``ValidationFailed`` when it can be called neither way.
    """
    try:
        validate_arguments(function, (*args, fire), {})
    except ValidationFailed:
        try:
            validate_arguments(function, args, {})
        except ValidationFailed:
            pass
        else:
            return tuple(args)
        raise
    return (*args, fire)


_ids = threading.Lock()
_last_id = UUID(int=0)


def next_id() -> UUID:
    """A UUIDv7 above those this process made before: schedules of one time fire in the order they were set."""
    global _last_id
    from rivet_workflows.models import uuid7  # not before Django is set up

    with _ids:
        made = uuid7()
        _last_id = made if made > _last_id else UUID(int=_last_id.int + 1)
        return _last_id


def checked_call(actor_type: ActorType, action: Any, args: tuple[Any, ...]) -> tuple[str, str]:
    """The action's name and the encoded arguments; checked now, as nobody is there to hear of it later."""
    from rivet_workflows.client.actions import find_action

    name = action if isinstance(action, str) else getattr(action, "__name__", None)
    if not isinstance(name, str) or (not isinstance(action, str) and not hasattr(action, "__rivet_action__")):
        raise TypeError(f"an action is named by a str or by the method itself, not by {action!r}")
    found = find_action(actor_type, name)
    sample = ScheduledFire("at", "", None, from_micros(0), from_micros(0))
    arguments_for(found.func, args, sample)
    return name, encoded(list(args), "MAX_PAYLOAD", f"arguments of scheduled {actor_type.name}.{name}")


def check_room(
    actor_type: ActorType, actor_id: UUID, pending: Sequence[ScheduleOp] = (), more: int = 1
) -> None:
    """Raises :class:`TooManySchedules` when ``more`` do not fit beside those stored and ``pending``."""
    there = get_store().count_schedules(actor_id)
    there += sum(1 if isinstance(op, ScheduleWrite) else -1 for op in pending)
    if there + more > settings.MAX_SCHEDULES:
        raise TooManySchedules(
            f"{actor_type.name} may have {settings.MAX_SCHEDULES:,} schedules (MAX_SCHEDULES), and has {there:,}",
            metadata={"limit": settings.MAX_SCHEDULES},
        )


def check_max_history(value: Any) -> None:
    """Raises :class:`InvalidMaxHistory`."""
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= MAX_HISTORY:
        raise InvalidMaxHistory(f"max_history is 0 to {MAX_HISTORY}, not {value!r}")


def check_name(name: Any) -> None:
    """Raises :class:`InvalidScheduleName`."""
    try:
        size = len(name.encode()) if isinstance(name, str) and "\0" not in name else 0
    except UnicodeEncodeError:
        size = 0
    if not 1 <= size <= 128:
        raise InvalidScheduleName(f"the name of a cron job has 1 to 128 bytes in UTF-8, not {name!r:.150}")


def check_zone(name: Any) -> None:
    """Raises :class:`InvalidTimezone`."""
    try:
        if not isinstance(name, str) or len(name) > 64:
            raise ValueError
        ZoneInfo(name)
    except (ValueError, OSError, LookupError):
        raise InvalidTimezone(
            f"{name!r:.80} is no time zone of the time zone database", metadata={"timezone": str(name)[:80]}
        ) from None
