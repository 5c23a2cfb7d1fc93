"""Text forms of the values that hold no other values: times, numbers, ids, bytes.

Each `*_tag` makes the tagged JSON object of one type, each entry of `DECODERS` turns it back. Exact:
`Decimal("1.10")` keeps its zero, a datetime its zone's key and fold. A datetime in a named zone
is stored as wall time and key, without the offset: an update of the zone data between a run and
its replay must not change the text.
"""

from __future__ import annotations

import re
from base64 import b64decode, b64encode
from collections.abc import Callable
from datetime import date, datetime, time, timedelta, timezone, tzinfo
from decimal import Decimal
from math import isfinite
from typing import Any, Final
from uuid import UUID
from zoneinfo import ZoneInfo

from rivet_workflows.codec.refusals import Refused, type_name

Tag = dict[str, Any]

_SURROGATE_PAIR: Final = re.compile("[\ud800-\udbff][\udc00-\udfff]")


def joins_on_decode(text: str) -> bool:
    """Whether two lone surrogates stand side by side: JSON would read them back as one character."""
    return not text.isascii() and _SURROGATE_PAIR.search(text) is not None


def str_tree(value: str, _depth: int = 0) -> object:
    if not joins_on_decode(value):
        return value
    return {"$": "str", "v": b64encode(value.encode("utf-8", "surrogatepass")).decode()}


def int_tree(value: int, _depth: int = 0) -> object:
    if value.bit_length() > 2000:  # 603 digits: below the lowest limit that can be set for int <-> str
        try:
            int.__repr__(value)
        except ValueError:  # int <-> str is limited to 4,300 digits; hexadecimal is not.
            return {"$": "int", "v": hex(value)}
    return value


def float_tree(value: float, _depth: int = 0) -> object:
    if isfinite(value):
        return value
    return {"$": "float", "v": repr(value)}


def bytes_tree(value: bytes, _depth: int = 0) -> object:
    return {"$": "bytes", "v": b64encode(value).decode()}


def datetime_tree(value: datetime, _depth: int = 0) -> object:
    tag: Tag = {"$": "datetime", "v": ""}
    if type(value.tzinfo) is ZoneInfo:
        tag["v"] = value.replace(tzinfo=None).isoformat()
    else:
        tag["v"] = value.isoformat()
    return _with_zone(tag, value)


def time_tree(value: time, _depth: int = 0) -> object:
    return _with_zone({"$": "time", "v": value.isoformat()}, value)


def _with_zone(tag: Tag, value: datetime | time) -> Tag:
    zone = value.tzinfo
    if zone is not None:
        parts = zone_tree(zone)
        tag.update({key: part for key, part in parts.items() if key in ("z", "n")})
    if value.fold:
        tag["f"] = 1
    return tag


def zone_tree(zone: tzinfo, _depth: int = 0) -> Tag:
    if type(zone) is timezone:
        offset, *name = zone.__getinitargs__()  # type: ignore[attr-defined]
        tag: Tag = {"$": "tz", "v": [offset.days, offset.seconds, offset.microseconds]}
        if name:
            tag["n"] = name[0]
        return tag
    if type(zone) is ZoneInfo and zone.key:
        return {"$": "tz", "z": zone.key}
    raise Refused(
        f"its time zone is a {type_name(type(zone))} that cannot be found again by a name",
        "Use zoneinfo.ZoneInfo(<key>) or datetime.timezone.",
    )


def timedelta_tree(value: timedelta, _depth: int = 0) -> object:
    return {"$": "timedelta", "v": [value.days, value.seconds, value.microseconds]}


SCALAR_TREES: Final[dict[type, Callable[[Any, int], object]]] = {
    bool: lambda value, _depth: value,
    type(None): lambda value, _depth: value,
    str: str_tree,
    int: int_tree,
    float: float_tree,
    bytes: bytes_tree,
    datetime: datetime_tree,
    time: time_tree,
    timezone: zone_tree,
    ZoneInfo: zone_tree,
    timedelta: timedelta_tree,
    date: lambda value, _depth: {"$": "date", "v": value.isoformat()},
    Decimal: lambda value, _depth: {"$": "decimal", "v": str(value)},
    UUID: lambda value, _depth: {"$": "uuid", "v": str(value)},
}
"""What is at hand for each exact type. All of them are immutable, which `roundtrip` relies on."""


def _zone(tag: Tag) -> tzinfo:
    if "z" in tag:
        return ZoneInfo(tag["z"])
    days, seconds, microseconds = tag["v"]
    offset = timedelta(days, seconds, microseconds)
    return timezone(offset, tag["n"]) if "n" in tag else timezone(offset)


def _datetime(tag: Tag) -> datetime:
    value = datetime.fromisoformat(tag["v"])
    return _zoned(value, tag) if len(tag) > 2 else value


def _time(tag: Tag) -> time:
    value = time.fromisoformat(tag["v"])
    return _zoned(value, tag) if len(tag) > 2 else value


def _zoned(value: Any, tag: Tag) -> Any:
    zone = value.tzinfo
    if "z" in tag:
        zone = ZoneInfo(tag["z"])
    elif "n" in tag:
        zone = timezone(value.utcoffset(), tag["n"])
    return value.replace(tzinfo=zone, fold=tag.get("f", 0))


DECODERS: Final[dict[str, Callable[[Tag], object]]] = {
    "str": lambda tag: b64decode(tag["v"]).decode("utf-8", "surrogatepass"),
    "int": lambda tag: int(tag["v"], 16),
    "float": lambda tag: float(tag["v"]),
    "bytes": lambda tag: b64decode(tag["v"]),
    "datetime": _datetime,
    "time": _time,
    "tz": _zone,
    "timedelta": lambda tag: timedelta(*tag["v"]),
    "date": lambda tag: date.fromisoformat(tag["v"]),
    "decimal": lambda tag: Decimal(tag["v"]),
    "uuid": lambda tag: UUID(tag["v"]),
}
