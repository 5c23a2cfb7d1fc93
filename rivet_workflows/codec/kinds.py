"""Which kinds of classes the codec makes objects of, and how a pydantic generic is referred to.

pydantic is recognised by what is already imported: a value cannot be a model in a process where
pydantic was not loaded, and a stored model's class cannot be found there either.
"""

from __future__ import annotations

import dataclasses
import sys
import types
import typing
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from functools import reduce
from operator import or_
from typing import Any, Final
from uuid import UUID

from rivet_workflows.codec import names
from rivet_workflows.codec.refusals import Refused, type_name
from rivet_workflows.exceptions import SerializationError

Reference = str | list[Any]
"""The name of a class; for a pydantic generic `[origin, [argument, …]]`."""


def pydantic_class(module: str, name: str) -> Any:
    """A class of pydantic, None while pydantic is not imported."""
    return getattr(sys.modules.get(f"pydantic.{module}"), name, None)


def is_pydantic(cls: type) -> bool:
    base = pydantic_class("main", "BaseModel")
    return base is not None and base in cls.__mro__


def is_namedtuple(cls: type) -> bool:
    fields, defaults = getattr(cls, "_fields", None), getattr(cls, "_field_defaults", None)
    return issubclass(cls, tuple) and isinstance(fields, tuple) and isinstance(defaults, dict)


def is_object_class(cls: type) -> bool:
    """Whether stored text may name `cls` at all."""
    return issubclass(cls, Enum) or is_pydantic(cls) or dataclasses.is_dataclass(cls) or is_namedtuple(cls)


_BUILTIN: Final[dict[str, Any]] = {
    **{cls.__name__: cls for cls in (str, int, float, bool, bytes, list, dict, tuple, set, frozenset)},
    **{cls.__name__: cls for cls in (date, datetime, time, timedelta, Decimal, UUID)},
    "None": type(None),
    "Any": Any,
    "...": ...,
}
_BUILTIN_NAMES: Final = {id(found): name for name, found in _BUILTIN.items()}
_UNIONS: Final = {types.UnionType: "|", typing.Union: "Union"}


def reference(cls: Any) -> Reference:
    """How `cls` is written into a tag; `Refused` when it could not be found again by that."""
    generic = cls.__dict__.get("__pydantic_generic_metadata__") if isinstance(cls, type) else None
    if generic and generic["origin"]:
        return [names.name_of(generic["origin"]), [_argument(arg, cls) for arg in generic["args"]]]
    return names.name_of(cls)


def _argument(arg: Any, owner: type) -> Reference:
    if id(arg) in _BUILTIN_NAMES:
        return _BUILTIN_NAMES[id(arg)]
    if arg is None:
        return "None"
    origin = typing.get_origin(arg)
    if origin is not None and (origin in _UNIONS or id(origin) in _BUILTIN_NAMES):
        kind = _UNIONS.get(origin) or _BUILTIN_NAMES[id(origin)]
        return [kind, [_argument(inner, owner) for inner in typing.get_args(arg)]]
    if isinstance(arg, type) and is_object_class(arg):
        return reference(arg)
    shown = type_name(arg) if isinstance(arg, type) else str(arg)
    raise Refused(
        f"its class {type_name(owner)} has the type argument {shown}, which has no stored form",
        "Make a subclass with a name of its own: class Named(Generic[...]): pass.",
    )


def dereference(ref: Reference) -> type:
    """The class a tag's reference means; `SerializationError` when there is none, or of a wrong kind."""
    if isinstance(ref, str):
        return names.resolve(ref)
    origin, arguments = ref
    cls = names.resolve(origin)
    if not is_pydantic(cls):
        raise SerializationError(
            f"A stored value names {type_name(cls)} with type arguments, but it is no pydantic model."
        )
    made = cls[tuple(_from_argument(arg) for arg in arguments)]  # type: ignore[index]
    return typing.cast(type, made)


def _from_argument(ref: Reference) -> Any:
    if isinstance(ref, str):
        if ref in _BUILTIN:
            return _BUILTIN[ref]
        found = names.resolve(ref)
    elif ref[0] == "|":
        return reduce(or_, map(_from_argument, ref[1]))
    elif ref[0] == "Union":
        return typing.Union[tuple(map(_from_argument, ref[1]))]  # noqa: UP007 - made from data
    elif ref[0] in _BUILTIN:
        return _BUILTIN[ref[0]][tuple(map(_from_argument, ref[1]))]
    else:
        found = dereference(ref)
    if not is_object_class(found):
        raise SerializationError(
            f"A stored value names {type_name(found)} as a type argument; it cannot be one."
        )
    return found
