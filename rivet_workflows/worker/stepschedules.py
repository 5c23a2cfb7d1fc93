"""Schedules set in a step: kept until it commits (D-12), seen by the step itself until then."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from rivet_workflows.records import ScheduleOp
from rivet_workflows.worker import guard

if TYPE_CHECKING:
    from rivet_workflows.worker.context import StepContext


class StepSchedules:
    """What ``step.schedule`` and ``step.cron`` stand on; see ``client.schedules.ScheduleHost``."""

    #: A step may ask the store anywhere, as it may for its state.
    deferred = False

    def __init__(self, context: StepContext) -> None:
        self._context = context
        self.actor_type = context.actor_type
        self.actor_id = context.actor_id

    def now(self) -> int:
        """The database's time."""
        return self._context.database_time()

    @contextmanager
    def reading(self) -> Iterator[None]:
        """One look-up, also where an event loop runs."""
        self._context.scheduled()
        with guard.outside_the_loop():
            yield

    def change(self, op: ScheduleOp) -> None:
        """With the step."""
        self._context.add_schedule(op)

    def pending(self) -> Sequence[ScheduleOp]:
        """What the step has set and removed so far."""
        return self._context.scheduled()
