"""Why a value cannot be stored, where it sits, and what to pass instead.

The encoder raises `Refused` at the offending part; every container it climbs through adds its
piece of the path, so that nothing is spent on paths while all goes well. The text never holds a
value's `repr` (it may raise, be huge, or be a secret): only type names and dictionary keys.

Django is recognised by looking at what is already imported, never by importing it: a value cannot
be a model instance in a process where `django.db.models` was not loaded.
"""

from __future__ import annotations

import sys
import types
from collections.abc import Iterator, Mapping
from typing import Final

MAX_DEPTH: Final = 100
"""Levels of nesting. Encoding takes two Python frames a level, of the 1,000 there are by default."""

_KEY_SHOWN: Final = 60
_PARTS_SHOWN: Final = 14


class Refused(Exception):
    """A part of a value cannot be stored. Caught at the codec's door, where the path is complete."""

    def __init__(self, problem: str, mend: str, leaf: object = None) -> None:
        super().__init__(problem)
        self.problem = problem
        self.mend = mend
        self.leaf = leaf
        self.parts: list[str] = []
        self._loops: list[int] = []

    def under(self, part: str, container: object) -> None:
        """Note that the offending part sits at `part` of `container`; called on the way up."""
        self.parts.append(part)
        if self.leaf is not None and container is self.leaf:
            self._loops.append(len(self.parts))

    def message(self, what: str) -> str:
        """The whole text for the user, with `what` as the root of the path."""
        if self._loops:
            # The outermost place where it is met again: one turn of the circle below the first.
            again = self._loops[-2] if len(self._loops) > 1 else 0
            where = _join(what, self.parts[again:])
            return f"{where} cannot be stored: it contains itself. Pass a key or id in place of it."
        return f"{_join(what, self.parts)} cannot be stored: {self.problem}. {self.mend}"


def _join(what: str, parts: list[str]) -> str:
    path = parts[::-1]
    if len(path) > _PARTS_SHOWN:
        path = [*path[: _PARTS_SHOWN - 4], " … ", *path[-3:]]
    return what + "".join(path)


def key_part(key: object) -> str:
    """The piece of a path that stands for a dictionary key."""
    if isinstance(key, int) and type(key) is int and key.bit_length() < 200:
        return f"[{key}]"
    if isinstance(key, str) and type(key) is str:
        text = repr(key)
        return f"[{text if len(text) <= _KEY_SHOWN else text[:_KEY_SHOWN] + '…'}]"
    return f"[<{type(key).__name__}>]"


def type_name(cls: type) -> str:
    """How a class is named to people: with its module, unless it is a built-in."""
    module = cls.__module__
    return cls.__qualname__ if module == "builtins" else f"{module}.{cls.__qualname__}"


def too_deep(value: object) -> Refused:
    """The value is nested beyond `MAX_DEPTH`, or holds itself (`Refused` finds out which)."""
    return Refused(f"it is nested deeper than {MAX_DEPTH} levels", "Pass a flatter value.", value)


def refuse(value: object) -> Refused:
    """The refusal for a value of a type that is not known here."""
    cls = type(value)
    problem, mend = _django(cls) or _common(cls) or _subclass(cls) or _unknown(cls)
    return Refused(problem, mend)


def _loaded(module: str, name: str) -> type | None:
    found = getattr(sys.modules.get(module), name, None)
    return found if isinstance(found, type) else None


def _is(cls: type, module: str, name: str) -> bool:
    # The MRO, not isinstance: a lazy object answers isinstance by running its query.
    base = _loaded(module, name)
    return base is not None and base in cls.__mro__


def _variable(cls: type) -> str:
    """`OrderLine` -> `order_line`: how the user probably calls it."""
    name = cls.__name__.lstrip("_")
    return "".join("_" + c.lower() if c.isupper() and i else c.lower() for i, c in enumerate(name)) or "value"


def _django(cls: type) -> tuple[str, str] | None:
    name = type_name(cls)
    if _is(cls, "django.db.models.base", "Model"):
        var = _variable(cls)
        return f"it is a model instance ({name})", f"Pass {var}.pk and load the row where it is used."
    for module, base, problem, mend in _DJANGO:
        if _is(cls, module, base):
            return f"it is {problem} ({name})", mend
    return None


_DJANGO: Final = (
    ("django.db.models.query", "QuerySet", "a queryset", "Pass list(queryset.values_list('pk', flat=True))."),
    ("django.db.models.manager", "BaseManager", "a manager", "Pass the keys of the rows you mean."),
    (
        "django.utils.functional",
        "LazyObject",
        "a lazy object",
        "Pass a plain value of it, as request.user.pk.",
    ),
    ("django.utils.functional", "Promise", "lazy text", "Pass str(value), in the language you mean it in."),
    ("django.http.request", "HttpRequest", "a request", "Pass the values you need from it."),
    ("rest_framework.request", "Request", "a request", "Pass the values you need from it."),
    ("django.http.response", "HttpResponseBase", "a response", "Pass the values you need from it."),
    (
        "django.utils.datastructures",
        "MultiValueDict",
        "a dict of lists",
        "Pass value.dict(), or dict(value.lists()).",
    ),
    ("django.core.files.base", "File", "a file", "Save it and pass its name."),
    ("django.forms.forms", "BaseForm", "a form", "Pass form.cleaned_data."),
    ("rest_framework.serializers", "BaseSerializer", "a serializer", "Pass serializer.data."),
)


def _common(cls: type) -> tuple[str, str] | None:
    name = type_name(cls)
    top = cls.__module__.partition(".")[0]
    if top == "numpy":
        return f"it is a {name}", "Pass value.item() or value.tolist()."
    if name.startswith("pandas.") and cls.__name__ == "Timestamp":
        return f"it is a {name}", "Pass value.to_pydatetime()."
    if any(
        base.__module__ == "pydantic.types" and base.__name__.startswith(("Secret", "_Secret"))
        for base in cls.__mro__
    ):
        return (
            f"it is a secret ({name}), and would be stored readable",
            "Pass its name and look it up where it is used.",
        )
    for bases, problem, mend in _COMMON:
        if issubclass(cls, bases):
            return f"it is {problem} ({name})", mend
    if any(hasattr(cls, name) for name in ("acquire", "fileno", "send_bytes", "cursor")):
        return (
            f"it is a {type_name(cls)}, which lives in this process alone",
            "Open it where it is used, inside the step.",
        )
    if issubclass(cls, Iterator):
        return f"it is an iterator ({name}), which can be read only once", "Pass list(value)."
    return None


_COMMON: Final[tuple[tuple[type | tuple[type, ...], str, str], ...]] = (
    (types.CoroutineType, "a coroutine", "Await it first and pass what it returns."),
    (
        (types.GeneratorType, types.AsyncGeneratorType),
        "a generator, which can be read only once",
        "Pass list(value).",
    ),
    (
        (types.FunctionType, types.BuiltinFunctionType, types.MethodType),
        "a function",
        "Call it and pass its result, or pass its name.",
    ),
    (type, "a class", "Pass its name."),
    (types.ModuleType, "a module", "Pass its name."),
    (BaseException, "an exception", "Raise it, or pass str(error)."),
    (memoryview, "a view on memory", "Pass bytes(value)."),
    (types.MappingProxyType, "a view on a dict", "Pass dict(value)."),
    ((type({}.keys()), type({}.values()), type({}.items())), "a view on a dict", "Pass list(value)."),
)

_AS_BASE: Final[tuple[tuple[type, str], ...]] = (
    (str, "str(value)"),
    (bool, "bool(value)"),
    (int, "int(value)"),
    (float, "float(value)"),
    (dict, "dict(value)"),
    (list, "list(value)"),
    (tuple, "tuple(value)"),
    (set, "set(value)"),
    (frozenset, "frozenset(value)"),
    (bytes, "bytes(value)"),
)


def _subclass(cls: type) -> tuple[str, str] | None:
    """A subclass of a JSON type: the base alone would be stored, silently another value on replay."""
    for base, call in _AS_BASE:
        if issubclass(cls, base):
            return (
                f"it is a {type_name(cls)}, a subclass of {base.__name__} that would come back as that",
                f"Pass {call}, or register the class with rivet_workflows.codec.register.",
            )
    return None


def _unknown(cls: type) -> tuple[str, str]:
    if issubclass(cls, Mapping):
        return f"it is a {type_name(cls)}", "Pass dict(value)."
    if hasattr(cls, "__await__"):
        return f"it is an awaitable ({type_name(cls)})", "Await it first and pass what it returns."
    return (
        f"it is a {type_name(cls)}, a type that is not known here",
        "Pass plain values, a dataclass or a pydantic model, or use rivet_workflows.codec.register.",
    )
