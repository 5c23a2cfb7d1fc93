"""Values as people and REST clients see them: JSON without marks, one way.

It reads the marked form instead of the values, so that the inspector can show a row whose classes
are gone, and never makes an object of one. Choices, for a reader in JavaScript: integers beyond
2**53 are text, as are NaN, Infinity and -Infinity; datetimes are ISO 8601; bytes are base64.
"""

from __future__ import annotations

import json
from base64 import b64decode
from collections.abc import Callable
from datetime import datetime
from typing import Any, Final
from zoneinfo import ZoneInfo

from rivet_workflows.codec.encode import tree

Tag = dict[str, Any]

SHOWN_LIMIT: Final = 200_000
"""Characters of stored text that a page decodes: some milliseconds of work."""

_EXACT_IN_JSON: Final = 2**53


def to_plain(value: object) -> object:
    """`value` as plain JSON data for people and REST; not meant to come back.

    Raises `SerializationError` for what cannot be stored either.
    """
    return _plain(tree(value))


def plain_text(text: str | None, limit: int = SHOWN_LIMIT) -> object:
    """What stored `text` holds, as plain JSON data, for pages that show rows. Never raises.

    Makes no object of a stored class. Text that is longer than `limit`, or cannot be read, comes
    back as a placeholder in angle brackets.
    """
    if text is None:
        return None
    try:
        if len(text) > limit:
            return f"<{len(text):,} characters, too long to show>"
        return _plain(json.loads(text))
    except Exception as error:  # A page about trouble must not add to it.
        return f"<cannot be read: {type(error).__name__}>"


def _plain(part: Any) -> object:
    if type(part) is str:
        return _text(part)
    if type(part) is dict:
        return _marked(part) if "$" in part else {_text(key): _plain(inner) for key, inner in part.items()}
    if type(part) is list:
        return [_plain(inner) for inner in part]
    if type(part) is int and abs(part) > _EXACT_IN_JSON:
        return str(part)
    if type(part) is float and part - part != 0:  # Only in text that something else wrote.
        return _float(part)
    return part


def _text(text: str) -> str:
    # A lone surrogate cannot be sent as UTF-8: its escape is shown.
    return text if text.isascii() else text.encode("utf-8", "backslashreplace").decode()


def _float(value: float) -> str:
    return "NaN" if value != value else "Infinity" if value > 0 else "-Infinity"


def _marked(tag: Tag) -> object:
    show = _SHOWN.get(tag["$"]) if type(tag["$"]) is str else None
    return show(tag) if show is not None else {key: _plain(inner) for key, inner in tag.items()}


def _datetime(tag: Tag) -> object:
    if "z" in tag:
        try:
            wall = datetime.fromisoformat(tag["v"])
            return wall.replace(tzinfo=ZoneInfo(tag["z"]), fold=tag.get("f", 0)).isoformat()
        except (ValueError, LookupError, OSError):
            # The zone is unknown here; its name is still worth seeing.
            return f"{tag['v']}[{tag['z']}]"
    return tag["v"]


def _timedelta(tag: Tag) -> object:
    """Seconds as text with six digits at most, as Django's and DRF's clients can compute with."""
    days, seconds, microseconds = tag["v"]
    total = (days * 86_400 + seconds) * 1_000_000 + microseconds
    whole, part = divmod(abs(total), 1_000_000)
    sign = "-" if total < 0 else ""
    return f"{sign}{whole}.{part:06d}".rstrip("0").rstrip(".") if part else f"{sign}{whole}"


def _zone(tag: Tag) -> object:
    if "z" in tag:
        return tag["z"]
    days, seconds, _ = tag["v"]
    minutes = abs(days * 86_400 + seconds) // 60
    return f"{'-' if days < 0 else '+'}{minutes // 60:02d}:{minutes % 60:02d}"


def _pairs(tag: Tag) -> object:
    """A dict by its keys as text; as a list of pairs when two keys would have the same."""
    out: dict[str, object] = {}
    for key, inner in tag["v"]:
        out[_key(_plain(key))] = _plain(inner)
    return out if len(out) == len(tag["v"]) else [[_plain(key), _plain(inner)] for key, inner in tag["v"]]


def _key(key: object) -> str:
    return key if type(key) is str else json.dumps(key, separators=(",", ":"))


def _object(tag: Tag) -> object:
    extra = {_text(str(name)): _plain(inner) for name, inner in tag.get("x", ())}
    return {name: _plain(inner) for name, inner in tag["f"].items()} | extra


def _surrogates(tag: Tag) -> object:
    return _text(b64decode(tag["v"]).decode("utf-8", "surrogatepass"))


_value: Final[Callable[[Tag], object]] = lambda tag: _plain(tag["v"])  # noqa: E731

_SHOWN: Final[dict[str, Callable[[Tag], object]]] = {
    **dict.fromkeys(("bytes", "date", "time", "decimal", "uuid", "int", "url"), lambda tag: tag["v"]),
    **dict.fromkeys(("tuple", "set", "frozenset", "custom"), _value),
    "str": _surrogates,
    "float": lambda tag: _float(float(tag["v"])),
    "datetime": _datetime,
    "timedelta": _timedelta,
    "tz": _zone,
    "dict": _pairs,
    "odict": _pairs,
    "obj": _object,
    "enum": lambda tag: _plain(tag["v"]) if "v" in tag else tag.get("n"),
}
