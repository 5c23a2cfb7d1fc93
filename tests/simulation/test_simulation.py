"""A bounded number of simulated worlds; ``SIMULATION_RUNS`` sets more, ``SIMULATION_SEED`` where to begin."""

from __future__ import annotations

import os

from .simulate import simulate

RUNS = int(os.environ.get("SIMULATION_RUNS", "60"))
SEED = int(os.environ.get("SIMULATION_SEED", "1"))


def test_no_seed_breaks_a_promise():
    for seed in range(SEED, SEED + RUNS):
        simulate(seed)


def test_a_seed_replays_exactly():
    assert simulate(7).trace == simulate(7).trace
