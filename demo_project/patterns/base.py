"""What every actor of the gallery has, so that each can be about its own pattern alone."""

from __future__ import annotations

from typing import Any

from rivet_workflows import Actor, action


class Pattern(Actor, abstract=True):
    """An actor whose state can be read by anybody who may use it."""

    @action(read_only=True)
    def get_state(self, c: Any) -> Any:
        return c.state
