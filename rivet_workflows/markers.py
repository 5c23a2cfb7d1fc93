"""What stands in the body of an actor class: queues, events, actions; and the options of a step function.

These only mark. What they add up to is read by ``declaration``, and kept by ``registry``. Importable before
Django is set up; knows the step options and the validation, nothing else.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Generic, TypedDict, TypeVar, Unpack, overload

from rivet_workflows.engine.options import DEFAULTS, seconds
from rivet_workflows.validation import validate

__all__ = ["ActionOptions", "Event", "Queue", "StepKeywords", "action", "step"]

B = TypeVar("B")
R = TypeVar("R")
P = TypeVar("P")
F = TypeVar("F", bound=Callable[..., Any])


class _Named:
    """A class attribute that goes by its attribute's name unless told another."""

    def __init__(self, name: str | None) -> None:
        self._name = name
        #: The attributes it was assigned to, as ``(class name, attribute)``; more than one is refused.
        self.assigned: list[tuple[str, str]] = []

    def __set_name__(self, owner: type, attribute: str) -> None:
        self.assigned.append((owner.__qualname__, attribute))

    @property
    def name(self) -> str:
        """The name it is sent to by. Raises ``AttributeError`` when it stands in no class body."""
        if self._name is not None:
            return self._name
        if not self.assigned:
            raise AttributeError(
                f"this {type(self).__name__} is no attribute of a class and was given no name="
            )
        return self.assigned[0][1]

    def __repr__(self) -> str:
        named = self._name is not None or self.assigned
        return f"<{type(self).__name__} {self.name!r}>" if named else f"<unnamed {type(self).__name__}>"


class Queue(_Named, Generic[B, R]):
    """A queue of the actor: ``orders = Queue(OrderPlaced)``, ``approval = Queue(Approval, reply=Verdict)``.

    ``body``: the type of its messages, checked at the sender; they arrive as instances of it. ``reply``: likewise
    for what a receiver completes a message with. Both optional. ``name``: the queue's name, when it is not the
    attribute's.
    """

    @overload
    def __init__(
        self: Queue[Any, Any], body: None = None, *, reply: None = None, name: str | None = None
    ) -> None: ...
    @overload
    def __init__(
        self: Queue[B, Any], body: type[B], *, reply: None = None, name: str | None = None
    ) -> None: ...
    @overload
    def __init__(self: Queue[B, R], body: type[B], *, reply: type[R], name: str | None = None) -> None: ...
    @overload
    def __init__(
        self: Queue[Any, R], body: None = None, *, reply: type[R], name: str | None = None
    ) -> None: ...
    @overload
    def __init__(self: Queue[Any, Any], body: Any, *, reply: Any = None, name: str | None = None) -> None: ...
    def __init__(self, body: Any = None, *, reply: Any = None, name: str | None = None) -> None:
        super().__init__(name)
        self.body = body
        self.reply = reply

    def validate_body(self, value: Any) -> Any:
        """``value`` as a body of this queue. Raises :class:`ValidationFailed`."""
        return validate(self.body, value, f'body of queue "{self.name}"')

    def validate_reply(self, value: Any) -> Any:
        """``value`` as a reply to a message of this queue. Raises :class:`ValidationFailed`."""
        return validate(self.reply, value, f'reply on queue "{self.name}"')


class Event(_Named, Generic[P]):
    """An event that the actor broadcasts: ``status_changed = Event(str)``. Type and ``name`` optional."""

    @overload
    def __init__(self: Event[Any], payload: None = None, *, name: str | None = None) -> None: ...
    @overload
    def __init__(self: Event[P], payload: type[P], *, name: str | None = None) -> None: ...
    @overload
    def __init__(self: Event[Any], payload: Any, *, name: str | None = None) -> None: ...
    def __init__(self, payload: Any = None, *, name: str | None = None) -> None:
        super().__init__(name)
        self.payload = payload

    def validate_payload(self, value: Any) -> Any:
        """``value`` as a payload of this event. Raises :class:`ValidationFailed`."""
        return validate(self.payload, value, f'payload of event "{self.name}"')


@dataclass(frozen=True, slots=True)
class ActionOptions:
    """What ``@action(...)`` was told."""

    read_only: bool = False
    on_worker: bool = False
    #: Seconds that the caller of an ``on_worker`` action waits; None: the setting.
    timeout: float | None = None


@overload
def action(function: F, /) -> F: ...
@overload
def action(
    *, read_only: bool = False, on_worker: bool = False, timeout: float | timedelta | None = None
) -> Callable[[F], F]: ...
def action(
    function: Callable[..., Any] | None = None,
    /,
    *,
    read_only: bool = False,
    on_worker: bool = False,
    timeout: float | timedelta | None = None,
) -> Any:
    """Make a method callable by name from Python, REST and WebSocket: ``def rename(self, c, title)``.

    An action is one database transaction: it commits whole or, when it raises, leaves no trace. ``read_only``: it
    takes no lock and may not change anything. ``on_worker``: it runs where the worker holds the actor, with
    ``c.vars``, and its caller waits up to ``timeout`` seconds for that (default: ``WORKER_ACTION_TIMEOUT``). Raises
    ``TypeError`` for anything but a plain method, ``def`` or ``async def``.
    """
    for name, value in (("read_only", read_only), ("on_worker", on_worker)):
        if not isinstance(value, bool):
            raise TypeError(f"@action: {name} must be True or False, not {value!r}")
    if timeout is not None and not on_worker:
        raise TypeError(
            "@action: timeout= is how long callers of an on_worker=True action wait; others do not"
        )
    bound = None if timeout is None else seconds(timeout, "timeout")
    if bound == 0:
        raise ValueError("@action: timeout must be longer than 0 seconds")

    def mark(function: Any) -> Any:
        if isinstance(function, staticmethod | classmethod) or not inspect.isfunction(function):
            raise TypeError(f"@action goes on a method of an actor, not on {_called(function)}")
        function.__rivet_action__ = ActionOptions(read_only, on_worker, bound)  # type: ignore[attr-defined]
        return function

    return mark if function is None else mark(function)


class StepKeywords(TypedDict, total=False):
    """The options of a step, as :class:`~rivet_workflows.engine.options.StepOptions` describes them."""

    timeout: float | timedelta | None
    retry_on_timeout: bool
    max_retries: int
    no_retry: type[BaseException] | tuple[type[BaseException], ...]
    retry_backoff_base: float | timedelta
    retry_backoff_max: float | timedelta
    ephemeral: bool
    atomic: bool
    context: bool
    rollback: Callable[..., Any] | None


@overload
def step(function: F, /) -> F: ...
@overload
def step(**options: Unpack[StepKeywords]) -> Callable[[F], F]: ...
def step(function: Any = None, /, **options: Any) -> Any:
    """Set a function's options for when it runs as a step: ``@step(timeout=5, max_retries=3)``.

    Keywords at the call of ``ctx.step`` win. ``context=False`` leaves the step context out of its arguments. The
    function itself stays what it is and can be called directly. Raises ``TypeError`` for an unknown option or a
    function that cannot be a step, ``ValueError`` for a value out of range.
    """
    DEFAULTS.merged(options)

    def mark(function: Any) -> Any:
        _check_step(function, options)
        function.__rivet_step__ = dict(options)
        return function

    return mark if function is None else mark(function)


def _check_step(function: Any, options: dict[str, Any]) -> None:
    if not callable(function) or isinstance(function, type | staticmethod | classmethod):
        raise TypeError(f"@step goes on a function, not on {_called(function)}")
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise TypeError(f"{_called(function)} contains yield and cannot be a step: return a list instead")
    if options.get("atomic") and inspect.iscoroutinefunction(function):
        raise TypeError(
            f"{_called(function)} is async: atomic=True needs a def, as Django's transactions belong to a thread"
        )


def _called(thing: Any) -> str:
    if isinstance(thing, staticmethod | classmethod):
        return f"a {type(thing).__name__} ({thing.__func__.__qualname__})"
    return str(getattr(thing, "__qualname__", None) or repr(thing))
