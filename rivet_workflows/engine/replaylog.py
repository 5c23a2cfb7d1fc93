"""``ctx.log``. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .machine import Machine


def _silent(*_args: Any, **_kwargs: Any) -> None:
    """Said already, when this happened for the first time."""


class ReplayLog:
    """The project's logger, silent while what happened before is gone through again."""

    def __init__(self, machine: Machine, logger: Any) -> None:
        self._machine = machine
        self._logger = logger

    def __getattr__(self, name: str) -> Any:
        if self._machine.replaying or self._machine.stopped or self._logger is None:
            return _silent
        return getattr(self._logger, name)
