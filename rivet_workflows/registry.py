"""The actor types of this process, by name, and what is known of each.

Filled as actor classes are defined, read by every room that meets an actor by its name. Importable before Django
is set up; knows the engine's code hashing and nothing of how a class is read (that is ``declaration``).
"""

from __future__ import annotations

import copy
import difflib
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import timedelta
from functools import cached_property
from typing import TYPE_CHECKING, Any
from uuid import UUID

from rivet_workflows.engine.options import StepOptions
from rivet_workflows.engine.source import code_hash
from rivet_workflows.exceptions import ActorNotFound, QueueNotFound, ValidationFailed
from rivet_workflows.markers import Event, Queue
from rivet_workflows.validation import validate_kept

if TYPE_CHECKING:
    from rivet_workflows.actors import Actor

__all__ = [
    "ActionDef",
    "ActorOptions",
    "ActorType",
    "ActorTypeNotFound",
    "DeclarationError",
    "Registry",
    "registry",
]

MISSING: Any = object()


class DeclarationError(TypeError):
    """An actor class that cannot work, refused as it is defined. ``id`` is stable, like a system check's."""

    def __init__(self, message: str, *, id: str) -> None:
        super().__init__(f"{message} ({id})")
        self.id = id


class ActorTypeNotFound(ActorNotFound, LookupError):
    """No actor class of that name is registered in this process."""


@dataclass(frozen=True, slots=True)
class ActionDef:
    """One action. ``signature`` leaves out ``self`` and ``c``: it is what a caller passes."""

    name: str
    func: Callable[..., Any]
    read_only: bool
    on_worker: bool
    is_async: bool
    signature: inspect.Signature
    #: Seconds that the caller of an ``on_worker`` action waits; None: the setting.
    timeout: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ActorOptions:
    """The options of the class statement. ``max_queue_size`` None: the setting of that name."""

    unique_names: bool = False
    strict_args: bool = False
    retain: timedelta | None = None
    max_queue_size: int | None = None
    create_on_connect: bool = False
    step_defaults: Mapping[str, Any] = field(default_factory=dict)
    removed: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class ActorType:
    """One actor class, read once: what it is called, what it has, and how an instance is made."""

    name: str
    cls: type[Actor]
    queues: Mapping[str, Queue[Any, Any]]
    events: Mapping[str, Event[Any]]
    actions: Mapping[str, ActionDef]
    #: ``async def run(self, ctx)``, or None: a plain actor without workflow.
    run: Callable[..., Any] | None
    #: The optional methods that the class has, by name.
    hooks: Mapping[str, Callable[..., Any]]
    options: ActorOptions
    #: ``state`` and ``vars`` as declared; MISSING when they are not.
    state: Any = MISSING
    vars: Any = MISSING
    #: ``file:line`` of the class statement, for messages.
    location: str = ""

    @property
    def doc(self) -> str:
        """The class's own docstring, or ``""``."""
        return inspect.cleandoc(self.cls.__dict__.get("__doc__") or "")

    @cached_property
    def code(self) -> str:
        """Hash of the workflow's code objects, 16 hex digits; ``""`` without a workflow.

        Taken at first use: ``run`` may name functions that its module defines after the class.
        """
        owner: Any = self.cls
        return code_hash(self.run, owner) if self.run is not None else ""

    @cached_property
    def step_options(self) -> StepOptions:
        """Step options that the class sets, over the settings' ``STEP_DEFAULTS`` as they were at first use."""
        from rivet_workflows.conf import settings
        from rivet_workflows.engine.options import DEFAULTS

        return DEFAULTS.merged(settings.STEP_DEFAULTS).merged(self.options.step_defaults)

    def bind(self, actor_id: UUID, key: str | tuple[str, ...]) -> Actor:
        """An instance for one actor, as hooks, actions and ``run`` get it as ``self``."""
        instance = object.__new__(self.cls)
        object.__setattr__(instance, "actor_id", actor_id)
        object.__setattr__(instance, "key", key)
        return instance

    @cached_property
    def serves(self) -> bool:
        """Has it actions that run where a worker holds the actor?"""
        return any(action.on_worker for action in self.actions.values())

    # -- state and vars

    @property
    def state_enabled(self) -> bool:
        """Has the actor a state? Without one, ``c.state`` is an error."""
        return self.state is not MISSING or "create_state" in self.hooks

    @property
    def vars_enabled(self) -> bool:
        """Has the actor vars?"""
        return self.vars is not MISSING or "create_vars" in self.hooks

    @cached_property
    def state_type(self) -> Any:
        """The declared type of the state, or None: the class, or what the making function is annotated with."""
        return _declared_type(self.state, self.hooks.get("create_state"))

    def initial_state(self) -> Any:
        """A fresh state from ``state = ...``; ``create_state``, which needs a context, is the caller's to call."""
        return _fresh(self.state)

    def initial_vars(self) -> Any:
        """Fresh vars from ``vars = ...``, likewise."""
        return _fresh(self.vars)

    def validate_state(self, value: Any) -> Any:
        """``value`` as a state of this actor. Raises :class:`ValidationFailed`."""
        return validate_kept(self.state_type, value, f"state of {self.name}")

    def validate_loaded(self, value: Any) -> Any:
        """A stored state, as ``migrate_state`` has it, likewise."""
        try:
            return self.validate_state(value)
        except ValidationFailed as error:
            if "migrate_state" in self.hooks:
                mend = "that is what migrate_state returned for the stored one"
            else:
                mend = "it was stored by other code: write migrate_state(self, c, stored), which says what it is today"
            raise ValidationFailed(f"{error.message}; {mend}", metadata=error.metadata) from None

    # -- queues

    def queue(self, name: str | Queue[Any, Any]) -> Queue[Any, Any] | None:
        """The declared queue; None for any name on an actor that declares none (D-17).

        Raises :class:`QueueNotFound` when the actor declares queues and this is none of them.
        """
        wanted = name.name if isinstance(name, Queue) else name
        if not self.queues:
            return None
        if wanted in self.queues:
            return self.queues[wanted]
        raise QueueNotFound(
            f"{self.name} has no queue {wanted!r}{_hint(wanted, self.queues)}",
            metadata={"queue": wanted, "queues": sorted(self.queues)},
        )

    def has_queue(self, name: str | Queue[Any, Any]) -> bool:
        """May messages be sent to this queue?"""
        try:
            self.queue(name)
        except QueueNotFound:
            return False
        return True


class Registry:
    """Actor types by name. One per process; tests take a snapshot and restore it."""

    def __init__(self) -> None:
        self._types: dict[str, ActorType] = {}

    def add(self, actor_type: ActorType) -> None:
        """Register, in the place of one of the same name: whether that is meant is the caller's to know."""
        self._types[actor_type.name] = actor_type

    def find(self, name: str) -> ActorType | None:
        """The type of that name, or None."""
        return self._types.get(name)

    def get(self, name_or_cls: str | type[Actor]) -> ActorType:
        """The type of that name, or that the class is registered under.

        Raises :class:`ActorTypeNotFound` (a ``LookupError``), naming close matches; ``TypeError`` for an abstract
        class and for what is neither a name nor an actor class.
        """
        name = name_or_cls if isinstance(name_or_cls, str) else _name_of(name_or_cls)
        found = self._types.get(name)
        if found is None:
            raise ActorTypeNotFound(
                f"no actor is called {name!r}{_hint(name, self._types)} Is its app in INSTALLED_APPS, and the class "
                "in the app's actors.py?",
                metadata={"name": name},
            )
        return found

    def all(self) -> list[ActorType]:
        """Every registered type, by name."""
        return [self._types[name] for name in sorted(self._types)]

    def unregister(self, name: str) -> None:
        """Forget a type. For tests. Unknown names are fine."""
        self._types.pop(name, None)

    def replace(
        self,
        old: str | type[Actor],
        new: type[Actor] | None = None,
        *,
        run: Callable[..., Any] | None = None,
    ) -> ActorType:
        """Put the code of ``new``, or another ``run``, under the name of ``old``, as a deploy does. For tests.

        The new class keeps its own entry as well. Returns the type now registered under the old name.
        """
        current = self.get(old)
        changed = replace(self.get(new), name=current.name) if new is not None else current
        if run is not None:
            if not inspect.iscoroutinefunction(run):
                raise TypeError(f"run must be an async def, not {run!r}")
            changed = replace(changed, run=run)
        self._types[current.name] = changed
        return changed

    def snapshot(self) -> Mapping[str, ActorType]:
        """What is registered now, for :meth:`restore`."""
        return dict(self._types)

    def restore(self, snapshot: Mapping[str, ActorType]) -> None:
        """Exactly what was registered at the snapshot."""
        self._types = dict(snapshot)


registry = Registry()


def _name_of(cls: Any) -> str:
    name = cls.__dict__.get("__rivet_name__") if isinstance(cls, type) else None
    if name is not None:
        return str(name)
    if isinstance(cls, type) and hasattr(cls, "__rivet_name__"):
        raise TypeError(f"{cls.__qualname__} is abstract: name one of its subclasses")
    raise TypeError(f"an actor class or its name is needed, not {cls!r}")


def _hint(name: str, known: Mapping[str, Any]) -> str:
    close = difflib.get_close_matches(name, known, 3)
    if close:
        return f"; did you mean {' or '.join(map(repr, close))}?"
    return f"; there is {', '.join(sorted(known))}." if known else "; none is registered."


def _fresh(declared: Any) -> Any:
    if declared is MISSING:
        return None
    return declared() if callable(declared) else copy.deepcopy(declared)


def _declared_type(declared: Any, creating: Callable[..., Any] | None) -> Any:
    if isinstance(declared, type):
        return declared
    if declared is not MISSING and not callable(declared):
        return type(declared)
    maker = declared if declared is not MISSING else creating
    if maker is None:
        return None
    try:
        return inspect.get_annotations(maker, eval_str=True).get("return")
    except Exception:  # a name that only type checkers know: no check
        return None
