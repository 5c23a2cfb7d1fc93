"""Actors declared in a test are forgotten after it; workers, here and in processes of their own."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from rivet_workflows.registry import registry
from tests.processes import gate, ledger, start
from tests.sidedb import side, side_source
from tests.worker.fleet import chain, slow, workers

__all__ = ["chain", "gate", "ledger", "side", "side_source", "slow", "start", "workers"]


@pytest.fixture(autouse=True)
def _own_actors() -> Iterator[None]:
    before = registry.snapshot()
    yield
    registry.restore(before)
