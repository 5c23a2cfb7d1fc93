"""Actors declared in a test are forgotten after it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from rivet_workflows.registry import registry
from tests.sidedb import side, side_source

__all__ = ["side", "side_source"]


@pytest.fixture(autouse=True)
def _own_actors() -> Iterator[None]:
    before = registry.snapshot()
    yield
    registry.restore(before)
