"""The ``vars`` of the actors that a worker holds: kept in memory, shared by an actor's steps, never stored."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

from rivet_workflows.client.invoking import invoke
from rivet_workflows.exceptions import RivetError
from rivet_workflows.worker import guard
from rivet_workflows.worker.context import StepContext


@dataclass(slots=True)
class VarsTable:
    """The ``vars`` of every actor that the worker holds, by holding: a new one starts with new vars.

    ``create_vars`` is called at the first touch, with the context of the touching step. When the hooks of taking up
    and letting go are built (``on_wake``, ``on_sleep``), it moves there: see ``Session._take_up``.
    """

    _of: dict[tuple[UUID, int], Any] = field(default_factory=dict)

    def __call__(self, context: StepContext) -> Any:
        place = context.holding
        try:
            return self._of[place]
        except KeyError:
            # Two steps of one actor may come here together; the first to store wins, for both.
            return self._of.setdefault(place, self._made(context))

    def forget(self, actor_id: UUID) -> None:
        """The actor is not held any more."""
        for place in [place for place in self._of if place[0] == actor_id]:
            del self._of[place]

    def clear(self) -> None:
        self._of.clear()

    @staticmethod
    def _made(context: StepContext) -> Any:
        kind = context.actor_type
        hook = kind.hooks.get("create_vars")
        if hook is not None:
            with guard.outside_the_loop():
                return invoke(hook, kind.bind(context.actor_id, context.key), context)
        if not kind.vars_enabled:
            raise RivetError(f"{kind.name} declares no vars: add `vars = …` to the class")
        return kind.initial_vars()
