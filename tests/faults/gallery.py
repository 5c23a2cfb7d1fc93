"""The gallery's step functions, each call of which is a line in a ledger outside the database; its days are seconds.

``RIVET_HOLD`` names a file with a line ``actor function`` per step that does not come to its end in the process that
calls it first: its function has run, and the process waits there to be killed.
"""

from __future__ import annotations

import functools
import inspect
import os
import threading
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from types import ModuleType
from typing import Any

from django.apps import AppConfig

from tests.cluster.actors import ledger


class Gallery(AppConfig):
    name = "tests.faults"
    label = "gallery"

    def ready(self) -> None:
        from patterns import basics, clock, failures, messages, timers, together, versions

        messages.PATIENCE = timers.FIRST_DAYS = timedelta(seconds=2)
        together.OFFERS_UNTIL, together.ON_THE_ROAD = timedelta(seconds=5), timedelta(seconds=2)
        timers.WHOLE_TRIAL = timedelta(seconds=4)
        clock.BACKUP_EVERY = timedelta(seconds=5)
        for module in (basics, clock, failures, messages, timers, together, versions):
            count_steps_of(module)


def count_steps_of(module: ModuleType) -> None:
    """What takes a ``step`` first is a step function: from now on each call of it is counted."""
    for name, function in list(vars(module).items()):
        if inspect.isfunction(function) and next(iter(inspect.signature(function).parameters), "") == "step":
            setattr(module, name, counted(function))


def counted(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def call(step: Any, *args: Any, **kwargs: Any) -> Any:
        what = f"{step.name}/{step.key} {function.__name__}"
        first = not has_been_called(what)
        ledger(step, what)
        try:
            return function(step, *args, **kwargs)
        finally:
            if first and what in held():
                with Path(os.environ["RIVET_HOLD"] + "ing").open("a") as holding:
                    holding.write(f"{os.getpid()} {what}\n")
                threading.Event().wait()

    return call


def has_been_called(what: str) -> bool:
    path = Path(os.environ["RIVET_LEDGER"])
    return path.exists() and any(line.endswith(what) for line in path.read_text().splitlines())


def held() -> list[str]:
    path = os.environ.get("RIVET_HOLD", "")
    return Path(path).read_text().splitlines() if path else []
