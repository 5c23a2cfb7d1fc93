"""Storing objects of the user's classes: dataclasses, pydantic models, NamedTuples, Enums.

One form for the first three, `{"$": "obj", "c": class, "f": {field: value}}`, so that a dataclass may
become a pydantic model under its rows. Cached properties are not part of a value and are not kept,
the first time as on replay; any other attribute that is not a field is refused.

Reading them back is the business of `builders.py`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Iterable
from enum import Enum, Flag
from typing import Any, Final

from rivet_workflows.codec import names
from rivet_workflows.codec.kinds import is_namedtuple, is_pydantic, pydantic_class, reference
from rivet_workflows.codec.refusals import MAX_DEPTH, Refused, too_deep, type_name

Encode = Callable[[object, int], object]
Encoder = Callable[[Any, int], object]


def object_encoder(cls: type, encode: Encode) -> Encoder | None:
    """How instances of `cls` are stored, their parts by `encode`; None when it is none of the known kinds."""
    if issubclass(cls, Enum):
        return _enum(cls, encode)
    if is_pydantic(cls):
        return _pydantic(cls, encode)
    if dataclasses.is_dataclass(cls):
        return _dataclass(cls, encode)
    if is_namedtuple(cls):
        return _namedtuple(cls, encode)
    url = pydantic_class("networks", "_BaseUrl")
    if url is not None and url in cls.__mro__:
        name = names.name_of(cls)
        return lambda value, _depth: {"$": "url", "c": name, "v": str(value)}
    return None


_SHOWN: Final = frozenset({str, int, float, bool, type(None)})
"""Enum values that are stored beside the name: for people, and for a member that gets another name."""


def _enum(cls: type[Enum], encode: Encode) -> Encoder:
    name = names.name_of(cls)
    if issubclass(cls, Flag):  # A combination has no name of its own; its value is an int.
        return lambda member, depth: {"$": "enum", "c": name, "v": encode(member._value_, depth + 1)}

    def encoder(member: Enum, depth: int) -> object:
        tag: dict[str, object] = {"$": "enum", "c": name, "n": member._name_}
        if type(member._value_) in _SHOWN:
            tag["v"] = encode(member._value_, depth + 1)
        return tag

    return encoder


def _dataclass(cls: type, encode: Encode) -> Encoder:
    name = names.name_of(cls)
    fields = tuple(field.name for field in dataclasses.fields(cls))
    if any("__new__" in vars(base) for base in cls.__mro__[:-1] if not base.__flags__ & _HEAP_TYPE):
        raise Refused(
            f"it is a {type_name(cls)}, a dataclass on top of a built-in type",
            "Register the class with rivet_workflows.codec.register.",
        )

    def encoder(value: object, depth: int) -> object:
        parts = ((field, getattr(value, field, _UNSET)) for field in fields)
        tag = {"$": "obj", "c": name, "f": _fields(parts, value, encode, depth)}
        _refuse_others(value, fields)
        return tag

    return encoder


_HEAP_TYPE: Final = 1 << 9
"""CPython's flag of classes made in Python. The others, but for `object`, hold more than their attributes."""


def _refuse_others(value: object, fields: Collection[str]) -> None:
    """An attribute that is no field would be lost, and nothing makes it anew: `__post_init__` is not run."""
    own = getattr(value, "__dict__", None)
    if not own or own.keys() <= set(fields):
        return
    for name in own.keys() - set(fields):
        if name != "__orig_class__" and not hasattr(type(value), name):  # A cached property is made anew.
            raise Refused(
                f"its attribute {name!r} is not a field of {type_name(type(value))} and would be lost",
                f"Declare it: {name}: <type> = field(init=False), or make it a cached_property.",
            )


def _namedtuple(cls: type, encode: Encode) -> Encoder:
    name = names.name_of(cls)
    fields: tuple[str, ...] = cls._fields  # type: ignore[attr-defined]

    def encoder(value: tuple[object, ...], depth: int) -> object:
        # Past an overridden __iter__: what is stored is the tuple.
        parts = zip(fields, tuple.__iter__(value), strict=True)
        tag = {"$": "obj", "c": name, "f": _fields(parts, value, encode, depth)}
        _refuse_others(value, ())
        return tag

    return encoder


def _pydantic(cls: type, encode: Encode) -> Encoder:
    ref = reference(cls)
    fields = tuple(cls.__pydantic_fields__)  # type: ignore[attr-defined]

    def encoder(value: Any, depth: int) -> object:
        stored = value.__dict__
        tag: dict[str, object] = {"$": "obj", "c": ref}
        tag["f"] = _fields(((f, stored.get(f, _UNSET)) for f in fields), value, encode, depth)
        tag["s"] = sorted(value.__pydantic_fields_set__)
        if value.__pydantic_extra__:
            # As pairs: these names come from outside, and one may be "$".
            extra = _fields(value.__pydantic_extra__.items(), value, encode, depth)
            tag["x"] = [[encode(name, depth), part] for name, part in extra.items()]
        if value.__pydantic_private__:
            tag["p"] = _fields(value.__pydantic_private__.items(), value, encode, depth)
        return tag

    return encoder


_UNSET: Final[Any] = object()


def _fields(
    parts: Iterable[tuple[str, object]], owner: object, encode: Encode, depth: int
) -> dict[str, object]:
    if depth >= MAX_DEPTH:
        raise too_deep(owner)
    out: dict[str, object] = {}
    name = ""
    try:
        for name, part in parts:
            if part is _UNSET:
                raise Refused("this field is not set", "Set it, or to a value that says 'none'.")
            out[name] = encode(part, depth + 1)
    except Refused as refused:
        refused.under(f".{name}", owner)
        raise
    return out
