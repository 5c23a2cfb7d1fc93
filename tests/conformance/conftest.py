"""Every rule in both modes: with the coroutine left parked, and replayed from the history after each commit."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.engine.driver import Driver

Drive = Callable[..., Driver]


@pytest.fixture(params=["parked", "replayed"])
def drive(request: pytest.FixtureRequest) -> Drive:
    """``drive(run)``: the workflow started, with everything done that can be done without time or messages."""

    def make(run: Any, *, start: bool = True, **options: Any) -> Driver:
        driver = Driver(run, replay=request.param == "replayed", **options)
        return driver.start() if start else driver

    return make


@pytest.fixture
def resisting() -> Iterator[None]:
    """For code that swallows everything: Python complains when such a coroutine is collected, as it should."""
    before = sys.unraisablehook
    sys.unraisablehook = lambda _: None
    yield
    gc.collect()
    sys.unraisablehook = before
