"""How an actor is declared: subclass :class:`Actor`, in an installed app's ``actors.py``.

Defining the class registers it. Importable before Django is set up; knows the registry and the settings, never a
database, a worker or a client.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Any, ClassVar, NoReturn, Self, TypedDict, Unpack
from uuid import UUID

from rivet_workflows.declaration import class_statement, declare
from rivet_workflows.markers import ActionOptions, Event, Queue, action, step

__all__ = ["ActionOptions", "Actor", "ActorKeywords", "Event", "Queue", "action", "step"]

#: Operations that any signed-in user may do while neither the class nor the project says otherwise. All others
#: (cancel, recover, replay_from, destroy, changing state, listing every actor, …) are for staff.
SIGNED_IN_OPERATIONS = frozenset(
    {"create", "get", "call", "send", "connect", "subscribe", "events", "status", "result", "history"}
)


class ActorKeywords(TypedDict, total=False):
    """The options of the class statement."""

    name: str
    abstract: bool
    unique_names: bool
    strict_args: bool
    retain: timedelta | None
    max_queue_size: int | None
    create_on_connect: bool
    step_defaults: Mapping[str, Any]
    removed: Mapping[str, str]


class Actor:
    """Base of all actors: a row with an identity, a state, queues and, with ``async def run``, a workflow.

    Options of the class statement, ``class Checkout(Actor, name="checkout", ...)``; all but the first two are
    inherited:

    ``name``
        What it is registered under; otherwise the class's name in snake case. At most 64 characters.
    ``abstract``
        A base for other classes, not registered itself.
    ``unique_names``
        A name used twice in one scope of the workflow is an error, not a second occurrence (D-01).
    ``strict_args``
        A step met again with other arguments is a divergence also under a unique name (D-02).
    ``retain``
        ``timedelta`` after its end at which a finished actor's row goes too. None: it stays (D-25).
    ``max_queue_size``
        Messages that may wait; None: the setting ``MAX_QUEUE_SIZE``.
    ``create_on_connect``
        A WebSocket to an actor that is not there creates it.
    ``step_defaults``
        Options of every step that says nothing else, as of ``@step``.
    ``removed``
        Entries that older code made and this no longer does: name to kind (D-04).

    Raises :class:`~rivet_workflows.registry.DeclarationError`, a ``TypeError``, for a class that cannot work.
    """

    #: The actor's id and key, on ``self`` in hooks, actions and ``run``. Several key parts are a tuple.
    actor_id: UUID
    key: str | tuple[str, ...]

    #: What an actor's state and vars are made from: a class or function without arguments, or a value to copy.
    state: ClassVar[Any]
    vars: ClassVar[Any]

    #: Set on each registered class; abstract ones have none of their own.
    __rivet_name__: ClassVar[str | None] = None

    def __init_subclass__(cls, **options: Unpack[ActorKeywords]) -> None:
        super().__init_subclass__()
        declare(cls, dict(options), class_statement(), base=Actor)

    def __new__(cls, *args: Any, **kwargs: Any) -> Self:
        raise TypeError(
            f"{cls.__qualname__} is not instantiated: client.get_or_create({cls.__name__}, key) gives a handle"
        )

    def __setattr__(self, name: str, value: Any) -> NoReturn:
        raise AttributeError(
            f"self.{name} = … would be lost: an actor's object lives only as long as one call. Keep it in c.state "
            "(stored; step.state in a step) or in c.vars (as long as the worker holds the actor)"
        )

    def __delattr__(self, name: str) -> NoReturn:
        self.__setattr__(name, None)

    def __repr__(self) -> str:
        return f"<{type(self).__qualname__} {self.key!r} {self.actor_id}>"

    def has_permission(self, request: Any, operation: str, name: str | None) -> bool:
        """May this request do this? Asked for every remote operation, on the actor it is about; override it.

        ``request`` has ``.user`` (a DRF request, or a WebSocket connection); ``operation`` is ``create``, ``get``,
        ``call``, ``send``, ``subscribe``, … and ``name`` the action, queue or event, where there is one.

        Unless overridden it asks the function that the setting ``PERMISSION`` names. Without one, active signed-in
        users may use actors (:data:`SIGNED_IN_OPERATIONS`), and operating them (all else) takes ``is_staff``.
        """
        from django.utils.module_loading import import_string

        from rivet_workflows.conf import settings

        if settings.PERMISSION is not None:
            return bool(import_string(settings.PERMISSION)(self, request, operation, name))
        user = getattr(request, "user", None)
        if user is None or not user.is_authenticated or not user.is_active:
            return False
        return operation in SIGNED_IN_OPERATIONS or bool(user.is_staff)
