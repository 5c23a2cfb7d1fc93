"""Finding and making actors: what ``rivet_workflows.client`` offers.

:class:`Client` exists once for callers (``rivet_workflows.client`` itself is its methods) and is subclassed where calls
are made on behalf of something: ``step.client()`` gives one whose sends join the step's commit.
"""

from __future__ import annotations

import builtins
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any
from uuid import UUID

from rivet_workflows import codec, keys
from rivet_workflows.client.actions import arun_action, on_created, run_action
from rivet_workflows.client.handles import Handle
from rivet_workflows.client.results import Sent
from rivet_workflows.client.sending import encoded
from rivet_workflows.client.twins import in_thread
from rivet_workflows.exceptions import ActorExists, ActorNotFound, ValidationFailed
from rivet_workflows.keys import Key
from rivet_workflows.records import Lifecycle, Outgoing
from rivet_workflows.registry import ActorType, registry
from rivet_workflows.store import get_store

if TYPE_CHECKING:
    from rivet_workflows.actors import Actor

__all__ = ["Client"]

#: Rows that one query of a listing reads.
PAGE = 1000


class Client:
    """Finds, makes and lists actors. Every method has an ``a``-twin for async code."""

    # -- for subclasses

    def deliver(self, message: Outgoing) -> Sent[Any]:
        """Put a message into its queue. Joins the open transaction."""
        sent = get_store().send([message])[0]
        return Sent(sent.id, duplicate=sent.duplicate)

    def act(self, handle: Handle, action: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run an action of an actor."""
        return run_action(handle.actor_id, handle.name, action, args, kwargs)

    async def aact(self, handle: Handle, action: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """:meth:`act` for async code."""
        return await arun_action(handle.actor_id, handle.name, action, args, kwargs)

    # -- one actor

    def create(self, actor: str | type[Actor], key: Key = (), *, input: Any = None) -> Handle:
        """A new actor. Its ``create_state`` and ``on_create`` run here, in this transaction.

        Raises ``ActorExists`` when the name and key are taken, ``ValidationFailed`` for a key that is none,
        ``SerializationError`` and ``PayloadTooLarge`` (input), ``LookupError`` for a name nobody declared.
        """
        actor_type = registry.get(actor)
        stored = keys.encode(key)
        handle = self._make(actor_type, stored, input)
        if not handle.created:
            raise ActorExists(
                f"there is a {actor_type.name} {keys.readable(stored)!r} already",
                metadata={"name": actor_type.name, "id": str(handle.actor_id)},
            )
        return handle

    def get_or_create(self, actor: str | type[Actor], key: Key = (), *, input: Any = None) -> Handle:
        """The actor of that name and key, made if there is none (``handle.created``). ``input`` counts only then."""
        actor_type = registry.get(actor)
        stored = keys.encode(key)
        row = get_store().find(actor_type.name, stored)
        return self._handle(row) if row is not None else self._make(actor_type, stored, input)

    def get(self, actor: str | type[Actor], key: Key = ()) -> Handle:
        """The actor of that name and key. Raises ``ActorNotFound``."""
        actor_type = registry.get(actor)
        stored = keys.encode(key)
        row = get_store().find(actor_type.name, stored)
        if row is None:
            raise ActorNotFound(
                f"there is no {actor_type.name} {keys.readable(stored)!r}", metadata={"name": actor_type.name}
            )
        return self._handle(row)

    def get_for_id(self, actor_id: UUID | str) -> Handle:
        """The actor with that id. Raises ``ActorNotFound``, also when it was destroyed and another has its key now."""
        wanted = _uuid(actor_id)
        row = get_store().get(wanted) if wanted is not None else None
        if row is None:
            raise ActorNotFound(f"there is no actor with the id {actor_id}", metadata={"id": str(actor_id)})
        return self._handle(row)

    # -- many

    def list(
        self,
        actor: str | type[Actor] | None = None,
        *,
        status: str | None = None,
        key: Key | None = None,
        limit: int | None = None,
        after: UUID | None = None,
    ) -> builtins.list[Handle]:
        """Actors by class, ``status`` (``live completed failed cancelled set_aside``) and key, in order of their ids.

        All of them, or by pages: ``limit`` at a time, ``after`` the last id of the page before. Raises
        ``ValidationFailed`` for another status.
        """
        name = None if actor is None else registry.get(actor).name
        lifecycle = None if status is None else _lifecycle(status)
        if key is not None:
            return self._listed_by_key(name, lifecycle, keys.encode(key), after)
        found: builtins.list[Handle] = []
        while limit is None or len(found) < limit:
            size = PAGE if limit is None else min(PAGE, limit - len(found))
            rows = get_store().list_actors(name, lifecycle, after, size)
            found += [self._handle(row) for row in rows]
            if len(rows) < size:
                break
            after = rows[-1].id
        return found

    def _listed_by_key(
        self, name: str | None, lifecycle: Lifecycle | None, stored_key: str, after: UUID | None
    ) -> builtins.list[Handle]:
        names = [name] if name is not None else [actor_type.name for actor_type in registry.all()]
        rows = sorted(
            (row for each in names if (row := get_store().find(each, stored_key)) is not None),
            key=lambda row: row.id,
        )
        return [
            self._handle(row)
            for row in rows
            if lifecycle in (None, row.lifecycle) and (after is None or row.id > after)
        ]

    # -- async twins

    async def acreate(self, actor: str | type[Actor], key: Key = (), *, input: Any = None) -> Handle:
        """:meth:`create` for async code."""
        return await in_thread(self.create, actor, key, input=input)

    async def aget_or_create(self, actor: str | type[Actor], key: Key = (), *, input: Any = None) -> Handle:
        """:meth:`get_or_create` for async code."""
        return await in_thread(self.get_or_create, actor, key, input=input)

    async def aget(self, actor: str | type[Actor], key: Key = ()) -> Handle:
        """:meth:`get` for async code."""
        return await in_thread(self.get, actor, key)

    async def aget_for_id(self, actor_id: UUID | str) -> Handle:
        """:meth:`get_for_id` for async code."""
        return await in_thread(self.get_for_id, actor_id)

    async def alist(
        self,
        actor: str | type[Actor] | None = None,
        *,
        status: str | None = None,
        key: Key | None = None,
        limit: int | None = None,
        after: UUID | None = None,
    ) -> builtins.list[Handle]:
        """:meth:`list` for async code."""
        return await in_thread(self.list, actor, status=status, key=key, limit=limit, after=after)

    # -- inside

    def _handle(self, row: Any, *, created: bool = False) -> Handle:
        return Handle(self, row.id, row.name, row.key, created=created)

    def _make(self, actor_type: ActorType, stored_key: str, given: Any) -> Handle:
        text = None if given is None else encoded(given, "MAX_INPUT_SIZE", "input")
        hooked = "create_state" in actor_type.hooks or "on_create" in actor_type.hooks
        state = None
        if actor_type.state_enabled and "create_state" not in actor_type.hooks:
            initial = actor_type.validate_state(actor_type.initial_state())
            state = encoded(initial, "MAX_STATE", f"state of {actor_type.name}")
        with get_store().atomic() if hooked else nullcontext():
            row, created = get_store().create_actor(
                actor_type.name, stored_key, input=text, state=state, runs=actor_type.run is not None
            )
            if created and hooked:
                # As the workflow will read it, and nobody else's object.
                on_created(actor_type, row.id, stored_key, None if text is None else codec.loads(text))
        return self._handle(row, created=created)


def _uuid(actor_id: UUID | str) -> UUID | None:
    if isinstance(actor_id, UUID):
        return actor_id
    try:
        return UUID(actor_id)
    except (ValueError, TypeError, AttributeError):
        return None


def _lifecycle(status: str) -> Lifecycle:
    try:
        return Lifecycle[str(status).upper()]
    except KeyError:
        known = ", ".join(lifecycle.label for lifecycle in Lifecycle)
        message = f"actors are listed by {known}, not by {status!r}"
        raise ValidationFailed(
            message, metadata={"issues": [{"path": ["status"], "message": message, "type": "enum"}]}
        ) from None
