"""Steps without threads and registry: the context that functions get, and a call of one to its report."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable
from typing import Any

from rivet_workflows import codec
from rivet_workflows.exceptions import ErrorInfo
from rivet_workflows.records import StateWrite
from rivet_workflows.worker.orders import Effects, StateChange, StepReport, StepStart


class SimStep:
    """The step context that functions get: what they may do here."""

    def __init__(self, store: Any, start: StepStart) -> None:
        self.start = start
        self.attempt = start.token.attempt
        self.idempotency_key = start.idempotency_key
        self.effects = Effects()
        self.store = store
        self._state: Any = None
        self._base: tuple[int, str] | None = None
        self._updates: list[Callable[[Any], Any]] = []

    @property
    def state(self) -> Any:
        if self._base is None:
            version, text = self.store.load_state(self.start.token.actor_id)
            self._base = version, text or "null"
            self._state = codec.loads(self._base[1])
        return self._state

    def update(self, fn: Callable[[Any], Any]) -> None:
        self._updates.append(fn)

    def broadcast(self, name: str, payload: Any) -> None:
        self.effects.events.append((name, codec.dumps(payload)))

    def complete(self, message: Any, response: Any = None) -> None:
        self.effects.completes.append((message.id, codec.dumps(response)))

    def close(self) -> Effects:
        if self._base is not None:
            changed = codec.dumps(self._state)
            if changed != self._base[1] or self._updates:
                write = StateWrite(self._base[0], changed)
                self.effects.state = StateChange(*self._base, changed, self._updates, write)
        elif self._updates:
            self.effects.state = StateChange(None, None, None, self._updates)
        if self.effects.state is not None and self._updates:
            self.effects.state.prepared = None
        return self.effects


def run(step: SimStep, error: BaseException | None = None, **flags: Any) -> StepReport:
    """Call the function of an attempt; ``error``: it raises that instead. ``flags`` of the report of a failure."""
    start = step.start
    try:
        if error is not None:
            raise error
        value = start.function(step, *start.args, **start.kwargs)
        if inspect.iscoroutine(value):
            value = asyncio.run(value)
        value, text = codec.roundtrip(value)
        return StepReport(True, text, value, effects=step.close(), atomic=start.options.atomic)
    except Exception as exc:
        effects = step.close()
        effects.sends, effects.completes = [], []
        return StepReport(False, error=ErrorInfo.from_exception(exc), effects=effects, **flags)
