"""The actor that the tests of schedules use: plain, without a workflow, so that only schedules make it do something."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from rivet_workflows import Actor, ScheduledFire, UserError, action


@dataclass
class Log:
    calls: list[str] = field(default_factory=list)
    #: Fires as ``(kind, id, name, seconds late)``.
    fires: list[tuple[str, str, str | None, float]] = field(default_factory=list)
    times: list[Any] = field(default_factory=list)


class Clockwork(Actor):
    """Notes what its schedules do."""

    state = Log

    @action
    def note(self, c, text: str, fire: ScheduledFire) -> None:
        c.state.calls.append(text)
        late = (fire.fired_at - fire.scheduled_at).total_seconds()
        c.state.fires.append((fire.kind, fire.id, fire.name, late))
        c.state.times.append(fire.scheduled_at)

    @action
    def plain(self, c) -> None:
        c.state.calls.append("plain")

    @action
    def fail(self, c, fire: ScheduledFire) -> None:
        c.state.calls.append("never kept")
        raise UserError("no luck")

    @action
    async def scribble(self, c, text: str) -> None:
        c.state.calls.append(text)

    @action
    def leave(self, c, name: str, fire: ScheduledFire) -> None:
        c.state.calls.append("last")
        c.cron.delete(name)

    @action
    def end(self, c) -> None:
        c.destroy()

    @action(read_only=True)
    def get(self, c) -> Any:
        return c.state

    # -- what the tests call

    @action
    def do(self, c, part: str, method: str, args: list[Any], kwargs: dict[str, Any]) -> Any:
        """Any method of ``c.schedule`` or ``c.cron``."""
        return Box(getattr(getattr(c, part), method)(*args, **kwargs))

    @action
    def do_and_raise(self, c, part: str, method: str, args: list[Any], kwargs: dict[str, Any]) -> None:
        getattr(getattr(c, part), method)(*args, **kwargs)
        raise UserError("after all, no")


@dataclass
class Box:
    value: Any


class Setter:
    """``Setter(handle, "cron").set(name=…)`` calls ``c.cron.set`` in an action."""

    def __init__(self, handle: Any, part: str) -> None:
        self._handle, self._part = handle, part

    def __getattr__(self, method: str) -> Any:
        def call(*args: Any, **kwargs: Any) -> Any:
            return self._handle.do(self._part, method, list(args), kwargs).value

        return call
