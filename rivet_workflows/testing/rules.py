"""What a test wants to happen to steps: failures, timeouts, stand-ins, deaths of the worker. Pure data and matching."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

from rivet_workflows.client import Handle
from rivet_workflows.registry import registry
from rivet_workflows.worker.orders import StepStart

__all__ = ["POINTS", "Rules", "WorkerDied"]

#: Where ``crash_at`` can kill the worker.
POINTS = ("before", "after_run", "after_commit")


class WorkerDied(BaseException):
    """The worker dies here. Not an Exception: nothing that users write catches it."""


@dataclass(slots=True)
class Rule:
    """One wish. ``times`` None: always."""

    step: str
    what: str
    times: int | None = 1
    #: The name of a type, the id of one actor, or any.
    actor: str | UUID | None = None
    rollback: bool = False
    error: BaseException | type[BaseException] | None = None
    function: Callable[..., Any] | None = None

    def fits(self, start: StepStart) -> bool:
        if self.times == 0 or self.step != start.name or self.rollback != start.is_rollback:
            return False
        return self.actor is None or self.actor in (start.actor_name, start.token.actor_id)

    def used(self) -> None:
        if self.times is not None:
            self.times -= 1


@dataclass(slots=True)
class Rules:
    """All that a test asked for. The newest rule that fits counts."""

    _rules: list[Rule] = field(default_factory=list)

    def add(self, step: str, what: str, *, times: int | None = 1, actor: Any = None, **more: Any) -> None:
        """Note a wish. ``step`` is a step's name or its function; ``actor`` a handle, a class or a name."""
        name = step if isinstance(step, str) else getattr(step, "__name__", None)
        if not isinstance(name, str):
            raise TypeError(f"a step is named by its name or its function, not {step!r}")
        if times is not None and (not isinstance(times, int) or times < 1):
            raise ValueError(f"times must be a whole number from 1 on, or None for always, not {times!r}")
        self._rules.append(Rule(name, what, times, _who(actor), **more))

    def take(self, start: StepStart, *what: str) -> Rule | None:
        """The rule that applies to this attempt now, if any; it is used up by that."""
        for rule in reversed(self._rules):
            if rule.what in what and rule.fits(start):
                rule.used()
                return rule
        return None

    def unused(self) -> list[str]:
        """Wishes that never came true: a misspelt step, most likely."""
        return [
            f'{rule.what} of step "{rule.step}"' for rule in self._rules if rule.times and rule.what != "stub"
        ]


def error_of(rule: Rule) -> BaseException:
    """A fresh error where the rule names a class; the very object where it gives one."""
    if rule.error is None:
        return RuntimeError(f'failure of step "{rule.step}" injected by the test')
    return rule.error() if isinstance(rule.error, type) else rule.error


def _who(actor: Any) -> str | UUID | None:
    if actor is None or isinstance(actor, UUID):
        return actor
    if isinstance(actor, Handle):
        return actor.actor_id
    return registry.get(actor).name
