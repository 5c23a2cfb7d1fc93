"""From the body of an actor class to its :class:`~rivet_workflows.registry.ActorType`, or a clear refusal.

Each rule that a class can break has an id of its own (``rivet_workflows.E1xx``), and each refusal says which class
and line, what is wrong and what to write instead. Nothing here reads settings or imports Django.
"""

from __future__ import annotations

import difflib
import inspect
import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from datetime import timedelta
from types import CodeType, FunctionType
from typing import TYPE_CHECKING, Any, NoReturn

from rivet_workflows.codec.names import declared_in
from rivet_workflows.engine.options import DEFAULTS
from rivet_workflows.markers import ActionOptions, Event, Queue
from rivet_workflows.names import RULE, is_name
from rivet_workflows.records import REMOVABLE
from rivet_workflows.registry import MISSING, ActionDef, ActorOptions, ActorType, DeclarationError, registry
from rivet_workflows.validation import signature_of

if TYPE_CHECKING:
    from rivet_workflows.actors import Actor

#: What handles have of their own; an action of such a name could not be called as a method.
_TWINNED = frozenset(
    {"send", "call", "status", "result", "history", "cancel", "recover", "wake", "pause", "resume", "destroy"}
    | {"replay_from", "skip"}
)
HANDLE_ATTRIBUTES = frozenset({"actor_id", "name", "key", "created"} | _TWINNED | {f"a{n}" for n in _TWINNED})

#: Optional methods and how many arguments they are called with, ``self`` included.
HOOKS: Mapping[str, tuple[str, ...]] = {
    "create_state": ("self", "c", "input"),
    "create_vars": ("self", "c"),
    "migrate_state": ("self", "c", "stored"),
    "on_create": ("self", "c", "input"),
    "on_wake": ("self", "c"),
    "on_sleep": ("self", "c"),
    "on_destroy": ("self", "c"),
    "on_state_change": ("self", "c", "state"),
    "on_error": ("self", "c", "event"),
    "on_connect": ("self", "c", "connection"),
    "on_disconnect": ("self", "c", "connection"),
    "has_permission": ("self", "request", "operation", "name"),
}
#: Names on ``self`` that mean something already.
RESERVED = frozenset({"actor_id", "key", "state", "vars", "run"})
_FORBIDDEN = ("__init__", "__new__", "__setattr__", "__getattribute__")
_ACTOR_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.\-]{0,63}\Z")


@dataclass(frozen=True, slots=True)
class ClassStatement:
    """Where a class was defined. ``code`` is the code object that ran the statement."""

    code: CodeType | None
    filename: str
    line: int

    def __str__(self) -> str:
        return f"{self.filename}:{self.line}"


class OnSelf:
    """``state`` and ``vars`` as class attributes: the declaration on the class, a refusal on ``self``."""

    def __init__(self, name: str, declared: Any) -> None:
        self.name = name
        self.declared = declared

    def __get__(self, instance: object, owner: type) -> Any:
        if instance is None:
            return self.declared
        raise AttributeError(f"self.{self.name} is the declaration, not the value: use c.{self.name}")


def class_statement() -> ClassStatement:
    """The class statement being carried out; called from ``__init_subclass__``."""
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_name == "__init_subclass__":
        frame = frame.f_back
    return ClassStatement(frame.f_code, frame.f_code.co_filename, frame.f_lineno)


def declare(cls: type[Actor], given: Mapping[str, Any], at: ClassStatement, *, base: type[Actor]) -> None:
    """Read the class and register it. Raises :class:`DeclarationError`; then nothing is registered."""
    reader = _Reader(cls, at, base)
    options, name, abstract = reader.options(given)
    cls.__rivet_statement__ = at  # type: ignore[attr-defined]
    cls.__rivet_options__ = options  # type: ignore[attr-defined]
    cls.__rivet_name__ = None
    actor_type = reader.read(name, options)
    for attribute in ("state", "vars"):
        if attribute in cls.__dict__ and not isinstance(cls.__dict__[attribute], OnSelf):
            setattr(cls, attribute, OnSelf(attribute, cls.__dict__[attribute]))
    if abstract:
        return
    _refuse_second(actor_type, at, reader)
    cls.__rivet_name__ = name
    declared_in(cls)
    registry.add(actor_type)


def snake_case(name: str) -> str:
    """``HTTPCheck`` becomes ``http_check``, ``OrderV2`` ``order_v2``."""
    name = re.sub(r"([A-Z]+)([A-Z][a-z])", r"\1_\2", name)
    return re.sub(r"([a-z0-9])([A-Z])", r"\1_\2", name).lower()


def _refuse_second(actor_type: ActorType, at: ClassStatement, reader: _Reader) -> None:
    """Two classes of one name are an error; one class met again (reload, ``__main__``, a test twice) is not."""
    earlier = registry.find(actor_type.name)
    if earlier is None:
        return
    before: ClassStatement = earlier.cls.__rivet_statement__  # type: ignore[attr-defined]
    same = earlier.cls.__qualname__ == actor_type.cls.__qualname__ and before.filename == at.filename
    if same and not (before.code is at.code and before.line != at.line):
        return
    reader.refuse(
        "E101",
        f"the name {actor_type.name!r} is taken by {earlier.cls.__module__}.{earlier.cls.__qualname__} ({before})",
        'give one of them another: class …(Actor, name="…")',
    )


class _Reader:
    """Reads one class. Its methods raise :class:`DeclarationError` through :meth:`refuse`."""

    def __init__(self, cls: type[Actor], at: ClassStatement, base: type[Actor]) -> None:
        self.cls = cls
        self.at = at
        self.base = base
        #: Attribute to (value, class it stands in), nearest class first, the package's own left out.
        self.attributes: dict[str, tuple[Any, type]] = {}
        for owner in cls.__mro__:
            if owner is not base and owner is not object:
                for attribute, value in owner.__dict__.items():
                    self.attributes.setdefault(attribute, (value, owner))

    def refuse(self, id: str, problem: str, mend: str, function: Any = None) -> NoReturn:
        where = str(self.at)
        code = getattr(inspect.unwrap(function), "__code__", None) if callable(function) else None
        if code is not None:
            where = f"{code.co_filename}:{code.co_firstlineno}"
        raise DeclarationError(
            f"{self.cls.__qualname__}: {problem}; {mend} [{where}]", id=f"rivet_workflows.{id}"
        )

    # -- options of the class statement

    def options(self, given: Mapping[str, Any]) -> tuple[ActorOptions, str, bool]:
        known = {f.name for f in fields(ActorOptions)} | {"name", "abstract"}
        for option in given:
            if option not in known:
                close = difflib.get_close_matches(option, known, 1)
                self.refuse(
                    "E102",
                    f"unknown option {option!r} in the class statement",
                    f"did you mean {close[0]!r}?" if close else f"there is {', '.join(sorted(known))}",
                )
        name = given.get("name", snake_case(self.cls.__name__))
        if not isinstance(name, str) or not _ACTOR_NAME.match(name):
            self.refuse(
                "E103",
                f"{name!r} cannot be an actor's name",
                "use 1 to 64 letters, digits, '_', '-' and '.' of ASCII",
            )
        inherited = next(
            (o for b in self.cls.__mro__[1:] if (o := getattr(b, "__rivet_options__", None)) is not None),
            ActorOptions(),
        )
        own = {k: v for k, v in given.items() if k not in ("name", "abstract")}
        for option, value in {**own, "abstract": given.get("abstract", False)}.items():
            self._check_option(option, value)
        return replace(inherited, **own), name, bool(given.get("abstract", False))

    def _check_option(self, option: str, value: Any) -> None:
        if option in ("unique_names", "strict_args", "create_on_connect", "abstract"):
            if not isinstance(value, bool):
                self._bad_option(option, value, "True or False")
        elif option == "retain":
            if value is not None and not (isinstance(value, timedelta) and value > timedelta(0)):
                self._bad_option(option, value, "a timedelta greater than 0, or None")
        elif option == "max_queue_size":
            whole = isinstance(value, int) and not isinstance(value, bool)
            if value is not None and not (whole and value > 0):
                self._bad_option(option, value, "a whole number greater than 0, or None")
        elif option == "step_defaults":
            try:
                DEFAULTS.merged(value)
            except (TypeError, ValueError, AttributeError) as error:
                self.refuse("E104", f"step_defaults={value!r}: {error}", "give options as @step takes them")
        elif option == "removed":
            fits = isinstance(value, Mapping) and all(
                isinstance(name, str) and kind in REMOVABLE for name, kind in value.items()
            )
            if not fits:
                self._bad_option(option, value, f"a dict of name to kind, of {', '.join(sorted(REMOVABLE))}")

    def _bad_option(self, option: str, value: Any, wanted: str) -> NoReturn:
        self.refuse("E104", f"{option}={value!r}", f"it takes {wanted}")

    # -- the body

    def read(self, name: str, options: ActorOptions) -> ActorType:
        for attribute in _FORBIDDEN:
            if attribute in self.attributes:
                self.refuse(
                    "E105",
                    f"it defines {attribute}, but self holds nothing",
                    "keep values in c.state (create_state makes it) or c.vars (create_vars)",
                    self.attributes[attribute][0],
                )
        hooks = self._hooks()
        return ActorType(
            name=name,
            cls=self.cls,
            queues=self._named(Queue, "queue"),
            events=self._named(Event, "event"),
            actions=self._actions(),
            run=self._run(),
            hooks=hooks,
            options=options,
            state=self._declared("state", hooks),
            vars=self._declared("vars", hooks),
            location=str(self.at),
        )

    def _declared(self, attribute: str, hooks: Mapping[str, Any]) -> Any:
        if attribute not in self.attributes:
            return MISSING
        value, owner = self.attributes[attribute]
        declared = value.declared if isinstance(value, OnSelf) else value
        creator = f"create_{attribute}"
        if creator in hooks:
            maker = self.attributes[creator][1]
            if maker is owner:
                self.refuse(
                    "E106",
                    f"it has both {attribute} and {creator}",
                    f"keep one; {creator} may say its type: def {creator}(…) -> {_type_name(declared)}",
                    hooks[creator],
                )
            if self.cls.__mro__.index(maker) < self.cls.__mro__.index(owner):
                return MISSING  # the nearer class decides
        if callable(declared):
            self._check_maker(attribute, declared)
        return declared

    def _check_maker(self, attribute: str, maker: Callable[..., Any]) -> None:
        if isinstance(maker, FunctionType) and inspect.iscoroutinefunction(maker):
            self.refuse(
                "E107", f"{attribute} is an async function", f"write async def create_{attribute}", maker
            )
        try:
            signature_of(maker).bind()
        except ValueError:
            return  # a builtin without a signature
        except TypeError as error:
            self.refuse(
                "E107",
                f"{attribute} = {_type_name(maker)} cannot be made without arguments ({error})",
                f"give its fields defaults, or write create_{attribute}",
            )

    def _named(self, kind: type[Any], what: str) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for attribute, (value, _) in self.attributes.items():
            if isinstance(value, type) and issubclass(value, kind):
                self.refuse(
                    "E108", f"{attribute} is the class {kind.__name__}", f"call it: {kind.__name__}()"
                )
            if not isinstance(value, kind):
                continue
            if attribute in RESERVED or attribute in HOOKS:
                self.refuse(
                    "E108", f"a {what} cannot be called {attribute}", "rename the attribute; name= may stay"
                )
            if len({attr for _, attr in value.assigned}) > 1:
                self.refuse(
                    "E108", f"{attribute} shares its {kind.__name__} with another attribute", "make two"
                )
            if not isinstance(value.name, str) or not is_name(value.name):
                self.refuse("E103", f"{value.name!r} cannot be a {what}'s name", f"use {RULE}")
            if value.name in found:
                self.refuse("E108", f"two {what}s are called {value.name!r}", "give one another name=")
            found[value.name] = value
        return found

    def _run(self) -> Callable[..., Any] | None:
        if "run" not in self.attributes:
            return None
        run, _ = self.attributes["run"]
        if run is None:
            return None
        if getattr(run, "__rivet_action__", None) is not None:
            self.refuse("E110", "run is an @action", "run is the workflow: take the decorator off", run)
        if inspect.isasyncgenfunction(run):
            self.refuse("E110", "run contains yield", "call ctx.step, ctx.loop and the like instead", run)
        if not isinstance(run, FunctionType) or not inspect.iscoroutinefunction(run):
            self.refuse("E110", "run is not async", "write async def run(self, ctx)", run)
        self._check_takes(run, ("self", "ctx"), "run", "E110")
        return run

    def _hooks(self) -> dict[str, Callable[..., Any]]:
        found: dict[str, Callable[..., Any]] = {}
        for name, parameters in HOOKS.items():
            if name not in self.attributes:
                continue
            function, _ = self.attributes[name]
            if function is None:
                continue
            shape = f"def {name}({', '.join(parameters)})"
            self._check_function(function, name, shape, "E111")
            if getattr(function, "__rivet_action__", None) is not None:
                self.refuse("E111", f"{name} is an @action", "it is a hook: take the decorator off", function)
            self._check_takes(function, parameters, name, "E111")
            found[name] = function
        return found

    def _check_function(self, function: Any, name: str, shape: str, id: str) -> None:
        if not isinstance(function, FunctionType):
            self.refuse(id, f"{name} is {_kind(function)}, not a method", f"write {shape}", function)
        if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
            self.refuse(id, f"{name} contains yield", "return a list instead", function)

    def _check_takes(self, function: Any, parameters: tuple[str, ...], name: str, id: str) -> None:
        try:
            signature_of(function).bind(*parameters)
        except TypeError as error:
            shape = f"{'async ' if inspect.iscoroutinefunction(function) else ''}def {name}({', '.join(parameters)})"
            self.refuse(id, f"{name} cannot be called as it will be ({error})", f"write {shape}", function)

    # -- actions

    def _actions(self) -> dict[str, ActionDef]:
        found: dict[str, ActionDef] = {}
        for name, (function, owner) in self.attributes.items():
            marked = getattr(function, "__rivet_action__", None)
            if isinstance(function, FunctionType) and marked is None:
                self._refuse_hidden_action(name, function, owner)
            if isinstance(marked, ActionOptions):
                found[name] = self._action(name, function, marked)
        for name, definition in found.items():
            if f"a{name}" in found:
                self.refuse(
                    "E113",
                    f"the actions {name} and a{name} clash: a{name} is the async form of {name} on a handle",
                    "rename one",
                    definition.func,
                )
        return found

    def _refuse_hidden_action(self, name: str, function: Any, owner: type) -> None:
        for base in owner.__mro__[1:]:
            if getattr(base.__dict__.get(name), "__rivet_action__", None) is not None:
                self.refuse(
                    "E112", f"{name} hides the action of {base.__qualname__}", "add @action", function
                )

    def _action(self, name: str, function: Any, marked: Any) -> ActionDef:
        self._check_function(function, name, f"def {name}(self, c, …)", "E112")
        if name in HANDLE_ATTRIBUTES or f"a{name}" in HANDLE_ATTRIBUTES or name in RESERVED or name in HOOKS:
            self.refuse(
                "E113", f"an action cannot be called {name}: handles have that name", "rename it", function
            )
        if name.startswith("_"):
            self.refuse("E113", f"an action's name cannot start with '_': {name}", "rename it", function)
        signature = signature_of(function)
        try:
            signature.bind_partial(None, None)
        except TypeError:
            self.refuse("E112", f"{name} does not take self and c", f"write def {name}(self, c, …)", function)
        parameters = list(signature.parameters.values())
        positional = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
        if len(positional) < 2:
            self.refuse("E112", f"{name} does not name self and c", f"write def {name}(self, c, …)", function)
        return ActionDef(
            name=name,
            func=function,
            read_only=marked.read_only,
            on_worker=marked.on_worker,
            is_async=inspect.iscoroutinefunction(function),
            signature=signature.replace(parameters=parameters[2:]),
            timeout=marked.timeout,
        )


def _type_name(value: Any) -> str:
    return getattr(value, "__qualname__", None) or type(value).__name__


def _kind(value: Any) -> str:
    return f"a {type(value).__name__}"
