"""The frames that a browser sends: JSON objects with a ``type``, checked before anything is done with them."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

from rivet_workflows.exceptions import RivetError

__all__ = ["Call", "Frame", "InvalidFrame", "Send", "Subscribe", "Unsubscribe", "parse"]

MAX_NAMES = 100
MAX_NAME = 128
#: Seconds that a waiting send may wait.
MAX_WAIT = 60.0
DEFAULT_WAIT = 5.0


class InvalidFrame(RivetError):
    """The frame is not what the protocol says; the connection stays open."""

    code = "invalid_frame"

    def __init__(self, message: str, id: Any = None) -> None:
        super().__init__(message)
        self.id = id


@dataclass(frozen=True, slots=True)
class Subscribe:
    """``events`` None: all of them. ``after`` None: from now on. One with an ``id`` is answered with its ``seq``."""

    events: tuple[str, ...] | None
    after: int | None
    id: str | int | None = None


@dataclass(frozen=True, slots=True)
class Unsubscribe:
    events: tuple[str, ...] | None


@dataclass(frozen=True, slots=True)
class Call:
    id: str | int
    action: str
    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Send:
    id: str | int | None
    queue: str
    body: Any
    wait: bool
    timeout: float
    delay: float | None
    dedupe_key: str | None


Frame = Subscribe | Unsubscribe | Call | Send

_KEYS = {
    "subscribe": {"type", "id", "events", "after"},
    "unsubscribe": {"type", "events"},
    "call": {"type", "id", "action", "args", "kwargs"},
    "send": {"type", "id", "queue", "body", "wait", "timeout", "delay", "dedupe_key"},
}


def parse(text: str) -> Frame:
    """The frame in ``text``. Raises :class:`InvalidFrame`, with the frame's ``id`` where it has one."""
    try:
        data = json.loads(text, parse_constant=_refuse)
    except RecursionError:
        raise InvalidFrame("the frame is nested too deeply") from None
    except ValueError as error:
        raise InvalidFrame(f"the frame is not JSON: {error}") from None
    if not isinstance(data, dict):
        raise InvalidFrame("a frame is a JSON object")
    given = data.get("id")
    own_id = given if isinstance(given, str | int) and not isinstance(given, bool) else None
    try:
        return _frame(data, own_id)
    except InvalidFrame as error:
        error.id = own_id
        raise


def _refuse(constant: str) -> Any:
    raise ValueError(f"{constant} is not JSON; send it as text")


def _frame(data: dict[str, Any], own_id: str | int | None) -> Frame:
    kind = data.get("type")
    known = _KEYS.get(kind) if isinstance(kind, str) else None
    if known is None:
        raise InvalidFrame(f"a frame's type is one of {', '.join(_KEYS)}")
    unknown = sorted(data.keys() - known)
    if unknown:
        raise InvalidFrame(f"{kind} has no {unknown[0]!r}; it has {', '.join(sorted(known))}")
    if kind == "subscribe":
        return Subscribe(_names(data), _whole(data, "after"), own_id)
    if kind == "unsubscribe":
        return Unsubscribe(_names(data))
    if kind == "call":
        if own_id is None:
            raise InvalidFrame("a call has an id (a string or a number), which its result repeats")
        return Call(
            own_id,
            _text(data, "action"),
            tuple(_typed(data, "args", list, [])),
            _typed(data, "kwargs", dict, {}),
        )
    return Send(
        own_id,
        _text(data, "queue"),
        data.get("body"),
        _typed(data, "wait", bool, False),
        _seconds(data, "timeout", DEFAULT_WAIT, most=MAX_WAIT),
        _seconds(data, "delay", None),
        _typed(data, "dedupe_key", str, "") or None,
    )


def _names(data: dict[str, Any]) -> tuple[str, ...] | None:
    names = data.get("events")
    if names is None:
        return None
    if not isinstance(names, list) or not all(
        isinstance(name, str) and 0 < len(name) <= MAX_NAME for name in names
    ):
        raise InvalidFrame(f"events is a list of names of at most {MAX_NAME} characters")
    if len(names) > MAX_NAMES:
        raise InvalidFrame(f"events has at most {MAX_NAMES} names")
    return tuple(names)


def _text(data: dict[str, Any], key: str) -> str:
    value = data.get(key)
    if not isinstance(value, str) or not value:
        raise InvalidFrame(f"{key} is a name")
    return value


def _typed(data: dict[str, Any], key: str, kind: type, default: Any) -> Any:
    value = data.get(key)
    if value is None:
        return default
    if not isinstance(value, kind):
        article = {list: "a list", dict: "an object", bool: "true or false", str: "a string"}[kind]
        raise InvalidFrame(f"{key} is {article}")
    return value


def _whole(data: dict[str, Any], key: str) -> int | None:
    value = data.get(key)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 2**63:
        raise InvalidFrame(f"{key} is a whole number, the seq of an event, or null")
    return value


def _seconds(data: dict[str, Any], key: str, default: Any, *, most: float | None = None) -> Any:
    value = data.get(key)
    if value is None:
        return default
    if isinstance(value, bool) or not isinstance(value, int | float) or value < 0:
        raise InvalidFrame(f"{key} is a number of seconds")
    if most is not None and value > most:
        raise InvalidFrame(f"{key} is at most {most:g} seconds")
    return value
