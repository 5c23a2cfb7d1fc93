"""The kit with which projects test their actors: the pytest fixture ``rivet``, and ``RivetTestMixin`` for test cases.

Knows the worker, the store and the client; nothing of the package knows it. Its names load on first use, so the
pytest plugin can be imported where Django is not set up.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rivet_workflows.testing.harness import Harness
    from rivet_workflows.testing.mixin import RivetTestMixin
    from rivet_workflows.testing.replay import NotDeterministic

__all__ = ["Harness", "NotDeterministic", "RivetTestMixin"]

_HOME = {"Harness": "harness", "NotDeterministic": "replay", "RivetTestMixin": "mixin"}


def __getattr__(name: str) -> Any:
    home = _HOME.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{home}"), name)
    globals()[name] = value
    return value
