"""Which name a class has in stored text, and which class a stored name means.

A name is `module:qualname`, or the one given by `@stable_name`. Looking one up never imports a
module, never runs a module's `__getattr__` and never calls a descriptor: it reads the dictionaries
of what is imported already. So a row can only ever name what the project itself has loaded.

Renames are stated by the project (`RIVET_WORKFLOWS["RENAMED"]`), as old to new dotted names; an
entry also covers everything below it, so one line moves a whole module.
"""

from __future__ import annotations

import sys
import types
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from rivet_workflows.codec.refusals import Refused, type_name
from rivet_workflows.exceptions import SerializationError

T = TypeVar("T", bound=type)

STABLE: Final = "__rivet_stable_name__"
"""Kept on the class too: `@dataclass(slots=True)` above `@stable_name` makes a new class of it."""


@dataclass(frozen=True, slots=True)
class Custom:
    """How a registered type is turned into something storable and back."""

    name: str
    encode: Callable[[Any], object]
    decode: Callable[[Any], object]


_stable: dict[str, type] = {}
_renamed: dict[str, str] = {}
#: Functions in which actors were declared, and the classes made in them that were stored: tests do that.
_local_scopes: set[str] = set()
_local: dict[str, type] = {}
custom_by_type: dict[type, Custom] = {}
custom_by_name: dict[str, Custom] = {}
_listeners: list[Callable[[], None]] = []


def on_change(forget: Callable[[], None]) -> None:
    """Call `forget` whenever a name, a type or a rename is added: the caches of the other files."""
    _listeners.append(forget)


def _changed() -> None:
    for forget in _listeners:
        forget()


def stable_name(name: str) -> Callable[[T], T]:
    """Give a class the name it is stored under, independent of where its code lives.

    With `@stable_name("shop.order.v1")` a class may be moved and renamed freely. Values stored
    before the decorator was added are still found by module and qualname.
    """
    if not name or ":" in name:
        raise ValueError(f"a stable name is a non-empty text without a colon, not {name!r}")

    def decorate(cls: T) -> T:
        other = _stable.get(name)
        if other is not None and other is not cls and type_name(other) != type_name(cls):
            raise ValueError(f"the stable name {name!r} belongs to {type_name(other)}; choose another")
        setattr(cls, STABLE, name)
        _stable[name] = cls
        _changed()
        return cls

    return decorate


def register(
    cls: T,
    *,
    name: str | None = None,
    encode: Callable[[Any], object] | None = None,
    decode: Callable[[Any], object] | None = None,
) -> T:
    """Make instances of exactly `cls` storable.

    `encode` gets the value and returns something storable; `decode` gets that back and returns an
    equal value. Neither may look at the clock, the database or anything else that changes. Without
    them only `name` is set, as by `stable_name` (for a dataclass, pydantic model, Enum, NamedTuple).
    """
    if cls in (str, int, float, bool, type(None), list, dict):
        raise ValueError(f"{cls.__name__} is a JSON type and is always stored as it is")
    if (encode is None) != (decode is None):
        raise TypeError("register() takes encode and decode together")
    if encode is None or decode is None:
        if name is None:
            raise TypeError("register() needs encode and decode, or a name")
        return stable_name(name)(cls)
    name = name or f"{cls.__module__}:{cls.__qualname__}"
    for other, custom in custom_by_type.items():
        if custom.name == name and type_name(other) != type_name(cls):
            raise ValueError(f"the name {name!r} belongs to {type_name(other)}; choose another")
    custom_by_type[cls] = custom_by_name[name] = Custom(name, encode, decode)
    _changed()
    return cls


def configure(renamed: Mapping[str, str] | None) -> None:
    """Set the renames of the project (`RIVET_WORKFLOWS["RENAMED"]`), old to new; replaces earlier ones."""
    _renamed.clear()
    for old, new in (renamed or {}).items():
        _renamed[old.replace(":", ".")] = new.replace(":", ".")
    _changed()


def current_name(name: str) -> str:
    """`name` after the renames of the project; unchanged when none applies.

    The longest matching entry wins, at a dot: `{"shop.old": "shop.new"}` turns `shop.old.Order` into
    `shop.new.Order`. Entries may be chained; a circle ends where it began.
    """
    seen: set[str] = set()
    while name not in seen:
        seen.add(name)
        dotted = name.replace(":", ".")
        head = dotted
        while head and head not in _renamed:
            head = head.rpartition(".")[0]
        if not head:
            return name
        name = _renamed[head] + dotted[len(head) :]
    return name


def declared_in(cls: type) -> None:
    """An actor is declared here. If that is inside a function, the classes made there may be stored too.

    They are found again in this process, and in every other that calls the function before it meets them.
    """
    scope, local, _ = cls.__qualname__.rpartition("<locals>")
    if local:
        _local_scopes.add(f"{cls.__module__}:{scope}")
        _changed()


def _is_local(cls: type) -> bool:
    scope, local, _ = cls.__qualname__.rpartition("<locals>")
    return bool(local) and f"{cls.__module__}:{scope}" in _local_scopes


def name_of(cls: type) -> str:
    """The name `cls` is stored under; `Refused` when another process could not find it by that."""
    stable = cls.__dict__.get(STABLE)
    if stable is not None:
        return str(stable)
    shown = type_name(cls)
    if cls.__module__ == "__main__":
        raise Refused(
            f"its class {shown} belongs to the running script, which a worker does not have",
            "Move the class to an importable module, or give it a @stable_name.",
        )
    if _is_local(cls):
        name = f"{cls.__module__}:{cls.__qualname__}"
        _local[name] = cls
        return name
    if _find(cls.__module__, cls.__qualname__) is not cls:
        raise Refused(
            f"its class {shown} cannot be found again by that name (made in a function, or replaced)",
            "Move the class to the top level of a module, or give it a @stable_name.",
        )
    return f"{cls.__module__}:{cls.__qualname__}"


def resolve(stored: str) -> type:
    """The class a stored name means; `SerializationError` with the mend when there is none."""
    name = current_name(stored)
    found = _stable.get(name)
    if found is not None:
        again = _find(found.__module__, found.__qualname__)
        return again if again is not None and again.__dict__.get(STABLE) == name else found
    module, colon, qualname = name.partition(":")
    again = _find(module, qualname) if colon else _find_dotted(name)
    if again is None:
        again = _local.get(name)
    if again is not None:
        return again
    dotted = stored.replace(":", ".")
    became = "" if name == stored else f" (now {name!r}, by RENAMED)"
    raise SerializationError(
        f"A stored value is of the class {stored!r}{became}, which is not there. If it was moved or renamed, "
        f"add RIVET_WORKFLOWS['RENAMED'] = {{{dotted!r}: '<new dotted name>'}}; if its module is imported "
        f"late, import it in your actors.py; if it was deleted, bring it back until no history holds it."
    )


def custom(stored: str) -> Custom:
    """The registration a stored name means; `SerializationError` with the mend when there is none."""
    found = custom_by_name.get(stored)
    if found is None:
        name = current_name(stored)
        found = custom_by_name.get(name)
        if found is None:  # The default name has a colon; RENAMED speaks in dots.
            head, _, tail = name.rpartition(".")
            found = custom_by_name.get(f"{head}:{tail}")
    if found is None:
        raise SerializationError(
            f"A stored value is of the registered type {stored!r}, which is not registered here. Call "
            f"rivet_workflows.codec.register for it where your actors are declared."
        )
    return found


def _find(module: str, qualname: str) -> type | None:
    loaded = sys.modules.get(module)
    if not isinstance(loaded, types.ModuleType):
        return None
    # Past any __getattribute__ of a lazy module, which would import.
    place: Mapping[str, object] = object.__getattribute__(loaded, "__dict__")
    found: object = None
    for part in qualname.split("."):
        found = place.get(part)
        if not isinstance(found, type):
            return None
        place = type.__getattribute__(found, "__dict__")
    return found if isinstance(found, type) else None


def _find_dotted(dotted: str) -> type | None:
    parts = dotted.split(".")
    for i in range(len(parts) - 1, 0, -1):
        found = _find(".".join(parts[:i]), ".".join(parts[i:]))
        if found is not None:
            return found
    return None
