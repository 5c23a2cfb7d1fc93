"""A bounded number of simulated worlds; ``SIMULATION_RUNS`` sets more, ``SIMULATION_SEED`` where to begin."""

from __future__ import annotations

import os
from typing import Any

import pytest

from .shrink import shrunk
from .simulate import Violation, simulate

RUNS = int(os.environ.get("SIMULATION_RUNS", "40"))
SEED = int(os.environ.get("SIMULATION_SEED", "1"))
#: Choices of the scheduler in one world.
SIZE = 400


@pytest.fixture(autouse=True)
def sqlite_allowed(django_db_blocker: Any) -> Any:
    """A tenth of the worlds have a database of their own, in memory."""
    with django_db_blocker.unblock():
        yield


@pytest.mark.timeout(600)
@pytest.mark.parametrize("first", range(SEED, SEED + RUNS, 10))
def test_no_seed_breaks_a_promise(first: int):
    for seed in range(first, min(first + 10, SEED + RUNS)):
        try:
            simulate(seed, SIZE)
        except Violation as violation:
            pytest.fail(f"seed {seed}: {violation}\n{shrunk(seed, SIZE, seconds=20)}")


@pytest.mark.timeout(600)
@pytest.mark.parametrize("seed", [7, 10])
def test_a_seed_replays_exactly(seed: int):
    assert simulate(seed).trace == simulate(seed).trace
