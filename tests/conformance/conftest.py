"""Every rule in both modes: with the coroutine left parked, and replayed from the history after each commit; once more
replayed from what the store has written to the suite's database.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.conformance.stored import StoredDriver
from tests.engine.driver import Driver

Drive = Callable[..., Driver]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Those that are stored need the database."""
    for item in items:
        params = (
            item.callspec.params if isinstance(item, pytest.Function) and hasattr(item, "callspec") else {}
        )
        if params.get("drive") == "stored":
            item.add_marker(pytest.mark.django_db)


@pytest.fixture(params=["parked", "replayed", "stored"])
def drive(request: pytest.FixtureRequest) -> Drive:
    """``drive(run)``: the workflow started, with everything done that can be done without time or messages."""

    def make(run: Any, *, start: bool = True, **options: Any) -> Driver:
        if request.param == "stored":
            driver: Driver = StoredDriver(run, **options)
        else:
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
