"""From values to text: the fast way for plain JSON data, the exact way for everything else.

Plain data (exactly str, int, float, bool, None, list, dict with str keys) is handed to the C encoder of the
standard library as it is. Everything else is first turned into plain data, in which `{"$": kind, …}`
marks what JSON lacks.

A dict of the user that has the key "$" is stored as pairs, so `"$":` in a text always is a mark of
ours; inside a JSON string its quotes would be escaped. Both fast paths rest on that.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from json.encoder import encode_basestring_ascii
from typing import Any, Final

from rivet_workflows import jsontext
from rivet_workflows.codec import names
from rivet_workflows.codec.objects import object_encoder
from rivet_workflows.codec.refusals import MAX_DEPTH, Refused, key_part, refuse, too_deep
from rivet_workflows.codec.scalars import SCALAR_TREES, joins_on_decode
from rivet_workflows.exceptions import SerializationError

Encoder = Callable[[Any, int], object]

MARK: Final = '"$":'

_SCALARS: Final = frozenset({str, int, float, bool, type(None)})
#: Integers below it have few digits: Python refuses to write very many.
_SMALL: Final = 10**18
_CONSTANTS: Final = {None: "null", True: "true", False: "false"}


def dumps(value: object, *, what: str = "value") -> str:
    """`value` as ASCII JSON text that `loads` turns into an equal value of the same type.

    Raises `SerializationError` for anything that cannot come back so, with the path to the part
    (`what` is its root) and what to pass instead.
    """
    text = _dumps_plain(value)
    return text if text is not None else jsontext.encode(tree(value, what=what))


def fingerprint(text: str) -> str:
    """A short hash (32 hex characters of SHA-256) of an encoded text: equal exactly for equal values."""
    return hashlib.sha256(text.encode("ascii")).hexdigest()[:32]


def tree(value: object, *, what: str = "value") -> object:
    """`value` as plain JSON data with marks; what `dumps` writes and `to_plain` reads."""
    try:
        return encode(value, 0)
    except Refused as refused:
        raise SerializationError(refused.message(what)) from refused.__cause__
    except RecursionError:
        # The caller's own stack was nearly used up, or a registered encode recurses.
        raise SerializationError(
            f"{what} cannot be stored: it is nested too deeply. Pass a flatter value."
        ) from None


def _dumps_plain(value: Any) -> str | None:
    """The text of plain data; None when it is not plain, or needs a mark after all."""
    cls = type(value)
    if cls is dict or cls is list:
        if not _is_plain(value):
            return None
        try:
            text = jsontext.encode(value)
        except (ValueError, TypeError, RecursionError):  # nan, too many digits; changed by another thread
            return None
        if MARK in text:
            return None
    elif cls is str:
        text = encode_basestring_ascii(value)
    elif cls is int and -_SMALL < value < _SMALL:
        return int.__repr__(value)
    else:
        return _CONSTANTS[value] if cls is bool or value is None else None
    if "\\ud" in text and jsontext.decode(text) != value:  # Two lone surrogates read back as one character.
        return None
    return text


def _is_plain(value: Any, depth: int = 0) -> bool:
    """Whether a list or dict consists of exactly JSON types, no deeper than allowed.

    Costs about what the C encoder costs after it (measured: 41 of 92 µs for 3.3 kB in 101 containers).
    Checking whole levels with `set(map(type, …))` was no faster there, and four times slower on small
    values. Depth first, so that a value which holds itself ends at the first branch.
    """
    if depth >= MAX_DEPTH:
        return False
    if type(value) is dict:
        for key in value:
            if type(key) is not str:
                return False
        value = value.values()
    for part in value:
        cls = type(part)
        if cls not in _SCALARS and not ((cls is dict or cls is list) and _is_plain(part, depth + 1)):
            return False
    return True


def encode(value: object, depth: int) -> object:
    """One part as plain JSON data; `Refused` when it cannot be. Exact types first."""
    cls = type(value)
    encoder = _encoders.get(cls)
    if encoder is None:
        encoder = _encoder_for(cls, value)
    return encoder(value, depth)


def _encoder_for(cls: type, value: object) -> Encoder:
    encoder = _by_rule(cls) or object_encoder(cls, encode)
    if encoder is None:
        raise refuse(value)
    _encoders[cls] = encoder
    return encoder


def _items(values: Iterable[object], container: object, depth: int) -> list[object]:
    if depth >= MAX_DEPTH:
        raise too_deep(container)
    out: list[object] = []
    try:
        for part in values:
            out.append(encode(part, depth + 1))  # noqa: PERF401 - `out` tells where it failed
    except Refused as refused:
        refused.under(f"[{len(out)}]", container)
        raise
    return out


def _dict(value: dict[Any, Any], depth: int) -> object:
    if depth >= MAX_DEPTH:
        raise too_deep(value)
    if not all(type(key) is str and key != "$" and not joins_on_decode(key) for key in value):
        return {"$": "dict", "v": _pairs(value, depth)}
    out: dict[str, object] = {}
    key = ""
    try:
        for key, part in value.items():
            out[key] = encode(part, depth + 1)
    except Refused as refused:
        refused.under(key_part(key), value)
        raise
    return out


def _pairs(value: Mapping[Any, Any], depth: int) -> list[object]:
    if depth >= MAX_DEPTH:
        raise too_deep(value)
    out: list[object] = []
    for key, part in value.items():
        try:
            stored = encode(key, depth + 1)
        except Refused as refused:
            refused.under(f".keys()[{len(out)}]", value)
            raise
        try:
            out.append([stored, encode(part, depth + 1)])
        except Refused as refused:
            refused.under(key_part(key), value)
            raise
    return out


def _set(kind: str) -> Encoder:
    def encoder(value: Iterable[object], depth: int) -> object:
        parts = _items(value, value, depth)
        # By text, not by value: elements need not be comparable, and their order differs between processes.
        return {"$": kind, "v": sorted(parts, key=jsontext.encode)}

    return encoder


def _by_rule(cls: type) -> Encoder | None:
    """Types that are stored as another one, because that other one is all they mean.

    `SafeString` becomes `str`: that a text needs no escaping is not to be believed of a row. The
    result of a DRF serializer becomes the dict or list it is. freezegun's dates become real ones.
    Recognised by name: none of these packages is imported here.
    """
    name = f"{cls.__module__}.{cls.__qualname__}"
    if name == "django.utils.safestring.SafeString":
        return lambda value, depth: encode(str.__str__(value), depth)
    if name == "rest_framework.utils.serializer_helpers.ReturnDict":
        return _dict
    if name == "rest_framework.utils.serializer_helpers.ReturnList":
        return lambda value, depth: _items(value, value, depth)
    if name in ("freezegun.api.FakeDatetime", "freezegun.api.FakeDate"):
        real = next(base for base in cls.__mro__ if base in SCALAR_TREES)
        return SCALAR_TREES[real]
    return None


def _custom(custom: names.Custom) -> Encoder:
    def encoder(value: object, depth: int) -> object:
        if depth >= MAX_DEPTH:
            raise too_deep(value)
        try:
            inner = custom.encode(value)
        except Exception as error:
            problem = f"the encode registered for {custom.name!r} raised {type(error).__name__}: {error}"
            raise Refused(problem, "Mend it, or pass plain values.") from error
        return {"$": "custom", "c": custom.name, "v": encode(inner, depth + 1)}

    return encoder


def _exact_encoders() -> dict[type, Encoder]:
    table: dict[type, Encoder] = {
        **SCALAR_TREES,
        list: lambda value, depth: _items(value, value, depth),
        dict: _dict,
        tuple: lambda value, depth: {"$": "tuple", "v": _items(value, value, depth)},
        set: _set("set"),
        frozenset: _set("frozenset"),
        OrderedDict: lambda value, depth: {"$": "odict", "v": _pairs(value, depth)},
    }
    return table | {cls: _custom(custom) for cls, custom in names.custom_by_type.items()}


_encoders = _exact_encoders()


def _forget() -> None:
    global _encoders
    _encoders = _exact_encoders()  # Another dict, not a cleared one: other threads encode meanwhile.


names.on_change(_forget)
