"""Does an object still hold what its class declares? pydantic takes an instance as it is, whatever was assigned to it.

:func:`conforming` looks inside: into the fields of dataclasses and pydantic models, wherever they lie in lists and
dicts. What fits stays the very object that it is; what can become its type (``"5"`` for an ``int``, a dict for a
dataclass) becomes it, in a copy; anything else is an issue with its path. Fields whose annotation means nothing at run
time take anything. Knows no Django; part of the validation.
"""

from __future__ import annotations

import copy
import dataclasses
import functools
import inspect
import sys
import types
import typing
from collections.abc import Callable
from typing import Annotated, Any

import pydantic
from pydantic import TypeAdapter

Path = tuple[Any, ...]
Issue = dict[str, Any]
#: pydantic's checker for a type; raises for what is no usable type.
Adapters = Callable[[Any], TypeAdapter[Any]]


def conforming(hint: Any, value: Any, adapters: Adapters, issues: list[Issue], path: Path = ()) -> Any:
    """``value`` as one that fits ``hint``, all the way down. What does not is added to ``issues``."""
    if not (isinstance(hint, type) and type(value) is hint and _is_object(value)):
        value = _shallow(hint, value, adapters, issues, path)
    return inside(value, adapters, issues, path) if _has_objects(hint) else value


def inside(value: Any, adapters: Adapters, issues: list[Issue], path: Path = ()) -> Any:
    """``value`` with every object in it conforming to its own class."""
    kind = type(value)
    if _is_object(value):
        return _object(value, adapters, issues, path)
    if kind in (list, tuple):
        items = [inside(item, adapters, issues, (*path, n)) for n, item in enumerate(value)]
        return kind(items) if _differ(items, value) else value
    if kind is dict:
        items = [inside(item, adapters, issues, (*path, key)) for key, item in value.items()]
        return dict(zip(value, items, strict=True)) if _differ(items, value.values()) else value
    return value


def _shallow(hint: Any, value: Any, adapters: Adapters, issues: list[Issue], path: Path) -> Any:
    adapter = adapters(hint)
    try:
        strict = adapter.validate_python(value, strict=True)
    except pydantic.ValidationError:
        pass
    else:
        # Equal: the same object, as the text of a field that nobody touched must not change (an int where a float is).
        return value if strict == value else strict
    try:
        return adapter.validate_python(value)
    except pydantic.ValidationError as error:
        found = error.errors(include_url=False, include_context=False, include_input=False)
        issues += [{"path": [*path, *e["loc"]], "message": e["msg"], "type": e["type"]} for e in found]
        return value


def _object(value: Any, adapters: Adapters, issues: list[Issue], path: Path) -> Any:
    changes: dict[str, Any] = {}
    kind: Any = type(value)
    for name, hint in _fields(kind, adapters).items():
        try:
            held = getattr(value, name)
        except AttributeError:
            issues.append({"path": [*path, name], "message": "Field required", "type": "missing"})
            continue
        fitting = conforming(hint, held, adapters, issues, (*path, name))
        if fitting is not held:
            changes[name] = fitting
    if not changes:
        return value
    changed = copy.copy(value)
    for name, fitting in changes.items():
        object.__setattr__(changed, name, fitting)
    return changed


def _is_object(value: Any) -> bool:
    return isinstance(value, pydantic.BaseModel) or (
        dataclasses.is_dataclass(value) and not isinstance(value, type)
    )


def _differ(items: typing.Iterable[Any], before: typing.Iterable[Any]) -> bool:
    return any(one is not other for one, other in zip(items, before, strict=True))


@functools.lru_cache(maxsize=1024)
def _fields(cls: Any, adapters: Adapters) -> dict[str, Any]:
    """The fields of a class whose types can be checked."""
    if issubclass(cls, pydantic.BaseModel):
        declared = {
            name: Annotated[(f.annotation, *f.metadata)] if f.metadata else f.annotation
            for name, f in cls.model_fields.items()
        }
    else:
        names = {f.name for f in dataclasses.fields(cls)}
        declared = {name: hint for name, hint in _annotations(cls).items() if name in names}
    return {name: hint for name, hint in declared.items() if hint is not Any and _usable(hint, adapters)}


def _annotations(cls: type) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for base in reversed(cls.__mro__):
        scope = vars(sys.modules.get(base.__module__, types.ModuleType("nowhere")))
        for name, annotation in _own_annotations(base).items():
            holder = types.SimpleNamespace(__annotations__={name: annotation})
            try:
                found[name] = typing.get_type_hints(
                    holder, globalns=scope, localns=dict(vars(base)), include_extras=True
                )[name]
            except Exception:  # a name that only type checkers know, or a class local to a function
                found.pop(name, None)
    return found


def _own_annotations(cls: type) -> dict[str, Any]:
    if sys.version_info >= (3, 14):
        import annotationlib

        return annotationlib.get_annotations(cls, format=annotationlib.Format.FORWARDREF)
    return inspect.get_annotations(cls)


def _usable(hint: Any, adapters: Adapters) -> bool:
    try:
        adapters(hint)
    except Exception:  # pydantic has no schema for it: the value is left unchecked
        return False
    return True


def _has_objects(hint: Any, seen: frozenset[Any] = frozenset()) -> bool:
    """Can there be objects in a value of this type? Else there is no need to walk through its million numbers."""
    if isinstance(hint, type) and (dataclasses.is_dataclass(hint) or issubclass(hint, pydantic.BaseModel)):
        return True
    if typing.is_typeddict(hint):
        if hint in seen:
            return False
        try:
            hints = typing.get_type_hints(hint).values()
        except Exception:  # a name that only type checkers know: it may be an object, so look
            return True
        return any(_has_objects(each, seen | {hint}) for each in hints)
    if hint in (list, tuple, dict, Any, object):
        return True
    if typing.get_origin(hint) is typing.Literal:
        return False
    return any(_has_objects(each, seen) for each in typing.get_args(hint))
