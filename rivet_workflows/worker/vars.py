"""The ``vars`` of the actors that a worker holds: kept in memory, shared by an actor's steps, never stored."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from uuid import UUID

from rivet_workflows.client.invoking import invoke
from rivet_workflows.exceptions import RivetError
from rivet_workflows.worker import guard
from rivet_workflows.worker.context import StepContext

if TYPE_CHECKING:
    from rivet_workflows.registry import ActorType


@dataclass(slots=True)
class VarsTable:
    """The ``vars`` of every actor that the worker holds, by actor and epoch: who takes it up again makes new ones.

    ``create_vars`` is called as the actor is taken up. Only where that failed is it called again, at a step's first
    touch, whose failure is then the step's.
    """

    _of: dict[tuple[UUID, int], Any] = field(default_factory=dict)

    def __call__(self, context: StepContext) -> Any:
        return self._made_once(context.holding, lambda: self._made(context))

    def of(self, kind: ActorType, held: tuple[UUID, int]) -> Any:
        """Those of an actor as its hooks see them."""

        def declared() -> Any:
            if kind.vars_enabled and "create_vars" not in kind.hooks:
                return kind.initial_vars()
            raise RivetError(f"{kind.name} has no vars: {_why(kind)}")

        return self._made_once(held, declared)

    def put(self, held: tuple[UUID, int], value: Any) -> None:
        """What ``create_vars`` returned."""
        self._of[held] = value

    def forget(self, actor_id: UUID, epoch: int | None = None) -> None:
        """The actor is not held any more."""
        if epoch is not None:
            self._of.pop((actor_id, epoch), None)
            return
        for place in [place for place in self._of if place[0] == actor_id]:
            del self._of[place]

    def clear(self) -> None:
        self._of.clear()

    def _made_once(self, place: tuple[UUID, int], make: Callable[[], Any]) -> Any:
        try:
            return self._of[place]
        except KeyError:
            # Two steps of one actor may come here together; the first to store wins, for both.
            return self._of.setdefault(place, make())

    @staticmethod
    def _made(context: StepContext) -> Any:
        kind = context.actor_type
        hook = kind.hooks.get("create_vars")
        if hook is not None:
            with guard.outside_the_loop():
                return invoke(hook, kind.bind(context.actor_id, context.key), context)
        if not kind.vars_enabled:
            raise RivetError(f"{kind.name} declares no vars: {_why(kind)}")
        return kind.initial_vars()


def _why(kind: ActorType) -> str:
    return "its create_vars failed" if "create_vars" in kind.hooks else "add `vars = …` to the class"
