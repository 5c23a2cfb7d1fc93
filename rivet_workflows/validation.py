"""Checks of values against the types that a project declared: bodies, replies, payloads, state, arguments.

pydantic does the checking, so dataclasses, ``TypedDict``, pydantic models and plain types all work, and a value
that came as JSON becomes an instance of its type. No type, no check. Knows no Django and no other room.
"""

from __future__ import annotations

import functools
import inspect
import sys
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pydantic
import typing_extensions
from pydantic import ConfigDict, PydanticSchemaGenerationError, PydanticUserError, TypeAdapter

from rivet_workflows.conforming import conforming, inside
from rivet_workflows.exceptions import ValidationFailed

__all__ = ["adapter", "signature_of", "validate", "validate_arguments", "validate_kept"]


def validate(type_hint: Any, value: Any, what: str = "value") -> Any:
    """``value`` as an instance of ``type_hint``; the value itself when ``type_hint`` is None.

    ``what`` says in the error which value it was (``'body of queue "orders"'``). Raises :class:`ValidationFailed`,
    whose ``metadata["issues"]`` is a list of ``{"path": [...], "message": ..., "type": ...}``, and ``TypeError``
    for a type that nothing can be checked against.
    """
    if type_hint is None or type_hint is Any:
        return value
    try:
        found = adapter(type_hint).validate_python(value)
    except pydantic.ValidationError as error:
        raise _failed(what, _issues(error)) from None
    issues: list[dict[str, Any]] = []
    found = inside(found, adapter, issues)
    if issues:
        raise _failed(what, issues)
    return found


def validate_kept(type_hint: Any, value: Any, what: str) -> Any:
    """As :func:`validate`, for a value that is kept and changed by parts, a state: what fits stays as it is, so that a
    part that nobody touched keeps its text."""
    if type_hint is None or type_hint is Any:
        return value
    issues: list[dict[str, Any]] = []
    found = conforming(type_hint, value, adapter, issues)
    if issues:
        raise _failed(what, issues)
    return found


def validate_arguments(
    func: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any], *, skip: int = 2
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments as ``func`` annotates them, its first ``skip`` parameters (``self``, ``c``) left out.

    Defaults are not filled in; parameters without an annotation, or with one whose names do not resolve at run
    time, take anything. Raises :class:`ValidationFailed` for arguments that do not bind or do not fit.
    """
    signature, hints = _parameters(func, skip)
    name = getattr(func, "__name__", "function")
    try:
        bound = signature.bind(*args, **kwargs)
    except TypeError as error:
        message = f"{error}; it is called as {name}{_shown(signature)}"
        raise _failed(name, [{"path": [], "message": message, "type": "arguments"}]) from None
    issues: list[dict[str, Any]] = []
    for parameter, value in bound.arguments.items():
        if parameter in hints:
            kind = signature.parameters[parameter].kind
            bound.arguments[parameter] = _argument(hints[parameter], kind, parameter, value, issues)
    if issues:
        raise _failed(f"arguments of {name}", issues)
    return bound.args, bound.kwargs


def adapter(type_hint: Any) -> TypeAdapter[Any]:
    """pydantic's checker for the type, cached. Raises ``TypeError`` for what is no usable type."""
    try:
        return _cached_adapter(type_hint)
    except TypeError:
        if _hashable(type_hint):
            raise
        return _make_adapter(type_hint)


def signature_of(func: Callable[..., Any]) -> inspect.Signature:
    """The signature, also where annotations name what only type checkers import."""
    if sys.version_info >= (3, 14):
        import annotationlib

        return inspect.signature(func, annotation_format=annotationlib.Format.FORWARDREF)
    return inspect.signature(func)


def _argument(hint: Any, kind: Any, name: str, value: Any, issues: list[dict[str, Any]]) -> Any:
    if kind is inspect.Parameter.VAR_POSITIONAL:
        return tuple(_one(hint, item, [name, i], issues) for i, item in enumerate(value))
    if kind is inspect.Parameter.VAR_KEYWORD:
        return {key: _one(hint, item, [key], issues) for key, item in value.items()}
    return _one(hint, value, [name], issues)


def _one(hint: Any, value: Any, path: list[Any], issues: list[dict[str, Any]]) -> Any:
    try:
        found = adapter(hint).validate_python(value)
    except pydantic.ValidationError as error:
        issues.extend(issue | {"path": path + issue["path"]} for issue in _issues(error))
        return value
    return inside(found, adapter, issues, tuple(path))


@functools.lru_cache(maxsize=4096)
def _parameters(func: Callable[..., Any], skip: int) -> tuple[inspect.Signature, dict[str, Any]]:
    signature = signature_of(func)
    parameters = list(signature.parameters.values())[skip:]
    hints = {p.name: hint for p in parameters if (hint := _resolved(func, p)) is not None}
    return signature.replace(parameters=parameters), hints


def _resolved(func: Callable[..., Any], parameter: inspect.Parameter) -> Any:
    """The parameter's type, or None: not annotated, not resolvable, or nothing that can be checked."""
    if parameter.annotation is inspect.Parameter.empty:
        return None
    holder = types.SimpleNamespace(__annotations__={parameter.name: parameter.annotation})
    scope = getattr(inspect.unwrap(func), "__globals__", {})
    try:
        hint = typing.get_type_hints(holder, globalns=scope, include_extras=True)[parameter.name]
        if hint is Any:
            return None
        adapter(hint)
    except Exception:  # names that only type checkers know, classes local to a function, stand-ins of tests
        return None
    return hint


def _hashable(value: Any) -> bool:
    try:
        hash(value)
    except TypeError:
        return False
    return True


@functools.lru_cache(maxsize=4096)
def _cached_adapter(type_hint: Any) -> TypeAdapter[Any]:
    return _make_adapter(type_hint)


def _make_adapter(type_hint: Any) -> TypeAdapter[Any]:
    usable = _for_pydantic(type_hint) if sys.version_info < (3, 12) else type_hint
    try:
        try:
            made: TypeAdapter[Any] = TypeAdapter(usable)
        except PydanticSchemaGenerationError:
            # A class that pydantic cannot look into is checked with isinstance.
            made = TypeAdapter(usable, config=ConfigDict(arbitrary_types_allowed=True))
        if not made.pydantic_complete:
            made.rebuild(raise_errors=True)
        return made
    except (PydanticUserError, NameError) as error:
        mend = "define it, and all that it names, at the top of a module"
        if getattr(error, "code", "") == "typed-dict-version":
            mend = "import TypedDict from typing_extensions (before Python 3.12, pydantic needs that one)"
        raise TypeError(f"{type_hint!r} cannot be used as a type: {mend} [{error}]") from error


def _for_pydantic(hint: Any) -> Any:
    """Before Python 3.12 pydantic refuses ``typing.TypedDict``: the same one, made by typing_extensions."""
    if typing.is_typeddict(hint) and type(hint).__module__ == "typing":
        return _twin_of(hint)
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (list, set, frozenset, tuple, dict, types.UnionType, typing.Union):
        changed = tuple(_for_pydantic(a) if a is not ... else a for a in arguments)
        if changed != arguments:
            return typing.Union[changed] if origin in (types.UnionType, typing.Union) else origin[changed]  # noqa: UP007
    return hint


@functools.lru_cache(maxsize=1024)
def _twin_of(typed_dict: Any) -> Any:
    hints = typing.get_type_hints(typed_dict, include_extras=True)
    fields: dict[str, Any] = {}
    for key, hint in hints.items():
        origin = typing.get_origin(hint)
        marked = origin in (typing.Required, typing.NotRequired)
        changed = _for_pydantic(typing.get_args(hint)[0] if marked else hint)
        # Under `from __future__ import annotations` the class itself has not seen its own NotRequired.
        required = origin is typing.Required or (not marked and key in typed_dict.__required_keys__)
        fields[key] = changed if required else typing_extensions.NotRequired[changed]
    return typing_extensions.TypedDict(typed_dict.__name__, fields)  # type: ignore[operator]


def _issues(error: pydantic.ValidationError) -> list[dict[str, Any]]:
    found = error.errors(include_url=False, include_context=False, include_input=False)
    return [{"path": list(e["loc"]), "message": e["msg"], "type": e["type"]} for e in found]


def _failed(what: str, issues: list[dict[str, Any]]) -> ValidationFailed:
    first = issues[0]
    where = ".".join(str(part) for part in first["path"])
    more = f" (and {len(issues) - 1} more)" if len(issues) > 1 else ""
    text = f"{what}: {where + ': ' if where else ''}{first['message']}{more}"
    return ValidationFailed(text, metadata={"issues": issues})


def _shown(signature: inspect.Signature) -> str:
    bare = [p.replace(annotation=inspect.Parameter.empty) for p in signature.parameters.values()]
    return str(inspect.Signature(bare))
