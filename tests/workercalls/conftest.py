"""The side database, for tests with whole workers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest
from django.db import connections

from tests.processes import gate, ledger, start
from tests.sidedb import side, side_source

__all__ = ["gate", "ledger", "side", "side_source", "start"]


@pytest.fixture
def aside() -> Iterator[Callable[..., Future[Any]]]:
    """Calls in threads of their own, so that the test can do something meanwhile."""

    def run(call: Callable[..., Any], args: tuple[Any, ...]) -> Any:
        try:
            return call(*args)
        finally:
            connections.close_all()

    with ThreadPoolExecutor(8) as pool:
        yield lambda call, *args: pool.submit(run, call, args)
