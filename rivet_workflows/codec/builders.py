"""Making objects of the user's classes from stored text.

Reading is not validation: neither `__init__` nor `__post_init__` nor a validator runs (one that
hashes a password would change the value); fields are set as they were. What an object is made of
is decided by what its class is now. A field that was added takes its default, without one the
reader is told what to do; a field that was removed is dropped with one log line.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable, Mapping
from enum import Enum, Flag
from typing import Any, Final

from rivet_workflows.codec import names
from rivet_workflows.codec.kinds import dereference, is_namedtuple, is_pydantic, pydantic_class
from rivet_workflows.codec.refusals import type_name
from rivet_workflows.exceptions import SerializationError

logger = logging.getLogger("rivet_workflows.codec")

Tag = dict[str, Any]
Build = Callable[[Tag], object]
Default = Callable[[Mapping[str, Any]], object]
"""The value of a field that was not stored, given those that were."""

_builders: Final[dict[str, Build]] = {}
_reported: Final[set[str]] = set()


def build_object(tag: Tag) -> object:
    """The object of an "obj" tag."""
    ref = tag["c"]
    key = ref if type(ref) is str else repr(ref)
    build = _builders.get(key)
    if build is None:
        build = _builders[key] = _builder(dereference(ref))
    return build(tag)


def build_enum(tag: Tag) -> object:
    """The member of an "enum" tag: by name, or by value when the name is gone."""
    cls = dereference(tag["c"])
    if not issubclass(cls, Enum):
        raise _wrong_kind(cls, "an Enum")
    if issubclass(cls, Flag):
        return cls(tag["v"])
    member = cls.__members__.get(tag.get("n", ""))
    if member is not None:
        return member
    if "v" in tag:
        for other in cls:
            if type(other._value_) is type(tag["v"]) and other._value_ == tag["v"]:
                return other
    raise SerializationError(
        f"A stored value is {type_name(cls)}.{tag.get('n')}, which that Enum no longer has. Keep the member "
        f"(an alias will do) until no history holds it."
    )


def build_url(tag: Tag) -> Any:
    """The pydantic URL of a "url" tag. These classes parse a text that another one wrote."""
    cls = dereference(tag["c"])
    base = pydantic_class("networks", "_BaseUrl")
    if base is None or base not in cls.__mro__:
        raise _wrong_kind(cls, "a URL type of pydantic")
    return cls(tag["v"])


def _builder(cls: type) -> Build:
    if is_pydantic(cls):
        return _pydantic(cls)
    if dataclasses.is_dataclass(cls):
        return _dataclass(cls)
    if is_namedtuple(cls):
        return _namedtuple(cls)
    raise _wrong_kind(cls, "a dataclass, a pydantic model or a NamedTuple")


def _wrong_kind(cls: type, expected: str) -> SerializationError:
    return SerializationError(
        f"A stored value names {type_name(cls)}, which is not (or no longer) {expected}. Nothing else is "
        f"made from stored text: make it one again, or map the stored name with RIVET_WORKFLOWS['RENAMED']."
    )


def _dataclass(cls: type) -> Build:
    defaults = {field.name: _dataclass_default(field) for field in dataclasses.fields(cls)}

    def build(tag: Tag) -> object:
        made: object = object.__new__(cls)
        for name, value in _fill(cls, tag["f"], defaults).items():
            object.__setattr__(made, name, value)  # Past a frozen class's own.
        return made

    return build


def _dataclass_default(field: dataclasses.Field[Any]) -> Default | None:
    factory, default = field.default_factory, field.default
    if factory is not dataclasses.MISSING:
        return lambda _stored: factory()
    if default is dataclasses.MISSING:
        return None
    info = pydantic_class("fields", "FieldInfo")
    if info is not None and isinstance(default, info):  # A pydantic dataclass with x: int = Field(...).
        return None if default.is_required() else _pydantic_default(default)
    return lambda _stored: default


def _namedtuple(cls: type) -> Build:
    given: dict[str, object] = cls._field_defaults  # type: ignore[attr-defined]
    fields: tuple[str, ...] = cls._fields  # type: ignore[attr-defined]
    defaults = {name: _constant(given[name]) if name in given else None for name in fields}

    def build(tag: Tag) -> object:
        made: object = tuple.__new__(cls, _fill(cls, tag["f"], defaults).values())
        return made

    return build


def _constant(value: object) -> Default:
    return lambda _stored: value


def _pydantic(cls: Any) -> Build:
    fields, private = cls.__pydantic_fields__, cls.__private_attributes__
    defaults = {
        name: None if info.is_required() else _pydantic_default(info) for name, info in fields.items()
    }
    keeps_extra = cls.model_config.get("extra") == "allow"
    set_state = pydantic_class("main", "BaseModel").__setstate__
    undefined = type(pydantic_class("fields", "PydanticUndefined"))

    def build(tag: Tag) -> object:
        stored = tag["f"]
        set_fields: list[str] = tag.get("s", [*stored])
        hidden = {name: value for name, value in tag.get("p", {}).items() if name in private}
        for name in private.keys() - hidden.keys():
            value = private[name].get_default()
            if type(value) is not undefined:
                hidden[name] = value
        made: object = cls.__new__(cls)
        state = {
            "__dict__": _fill(cls, stored, defaults),
            "__pydantic_fields_set__": fields.keys() & set(set_fields),
            "__pydantic_extra__": dict(tag.get("x", ())) if keeps_extra else None,
            "__pydantic_private__": hidden if private else None,
        }
        set_state(made, state)
        return made

    return build


def _pydantic_default(info: Any) -> Default:
    return lambda stored: info.get_default(call_default_factory=True, validated_data=dict(stored))


def _fill(cls: type, stored: dict[str, Any], defaults: Mapping[str, Default | None]) -> dict[str, Any]:
    """The class's fields, in its order: stored ones as they were, others by their default."""
    if stored.keys() == defaults.keys():
        return {name: stored[name] for name in defaults}
    unknown = stored.keys() - defaults.keys()
    if unknown:
        _report(cls, unknown)
    values: dict[str, Any] = {}
    for name, default in defaults.items():
        if name in stored:
            values[name] = stored[name]
        elif default is not None:
            values[name] = default(values)
        else:
            raise SerializationError(
                f"A stored {type_name(cls)} has no field {name!r}: it was written before the field was "
                f"added. Give the field a default, which such values then take."
            )
    return values


def _report(cls: type, unknown: set[str]) -> None:
    what = f"{type_name(cls)}: {', '.join(sorted(unknown))}"
    if what not in _reported:  # Once per process: a history may hold a million of them.
        _reported.add(what)
        logger.warning("Stored values have fields that their class no longer has; they are dropped: %s", what)


names.on_change(_builders.clear)
