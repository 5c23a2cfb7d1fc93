"""Waiting for what nobody rings a bell for: rows that another process writes, lines of a file."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any


def until(
    condition: Callable[[], Any],
    what: str | Callable[[], str] = "it has happened",
    timeout: float = 120,
    pause: float = 0.01,
) -> Any:
    """Ask again and again until ``condition()`` is true; its value. Raises AssertionError after ``timeout`` seconds."""
    end = time.monotonic() + timeout
    while not (value := condition()):
        if time.monotonic() > end:
            raise AssertionError(f"not within {timeout} s: {what if isinstance(what, str) else what()}")
        time.sleep(pause)
    return value
