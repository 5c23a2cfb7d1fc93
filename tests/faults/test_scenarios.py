"""The fault scenarios, each in a process of its own: real workers, real signals, real databases."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from rivet_workflows.crashpoints import POINTS

ROOT = Path(__file__).resolve().parents[2]


def scenario(name: str, *args: str, timeout: float = 600) -> list[dict[str, object]]:
    """Run ``tests.faults.<name>``; the JSON lines it prints. Fails with what it wrote when it does not exit 0."""
    command = [sys.executable, "-m", f"tests.faults.{name}", *args]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=timeout)
    assert ended.returncode == 0, ended.stderr[-6000:]
    return [json.loads(line) for line in ended.stdout.splitlines()]


def test_the_list_of_crash_points_is_complete():
    called: set[str] = set()
    for path in (ROOT / "rivet_workflows").rglob("*.py"):
        called |= set(re.findall(r'\bcrashpoint\(\s*"([^"]+)"', path.read_text()))
    assert called == set(POINTS)


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    "database", ["sqlite", pytest.param("postgres", marks=pytest.mark.requires_postgres)]
)
def test_a_worker_killed_at_any_point_loses_nothing_and_repeats_no_completed_step(database):
    kills = scenario("kill_points", "--database", database)
    assert {kill["point"] for kill in kills} == set(POINTS)


@pytest.mark.timeout(300)
@pytest.mark.requires_postgres
def test_one_owner_per_epoch_no_gap_in_commit_numbers_and_a_stopped_worker_commits_nothing():
    (found,) = scenario("audit")
    assert found["commits"]


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    "database", ["sqlite", pytest.param("postgres", marks=pytest.mark.requires_postgres)]
)
def test_a_long_transaction_or_a_bad_row_delays_its_own_actor_alone(database):
    scenario("isolation", "--database", database)


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    "database", ["sqlite", pytest.param("postgres", marks=pytest.mark.requires_postgres)]
)
def test_a_step_that_kills_its_process_is_set_aside_alone(database):
    (found,) = scenario("poison", "--database", database)
    assert found["killer"] == "set_aside"


@pytest.mark.timeout(3600)
@pytest.mark.parametrize(
    "database", ["sqlite", pytest.param("postgres", marks=pytest.mark.requires_postgres)]
)
def test_a_counter_is_exact_and_what_ran_more_than_once_is_in_the_history(database):
    """``RIVET_COUNTER=10000`` for the full size."""
    size = os.environ.get("RIVET_COUNTER", "120")
    (found,) = scenario("counter", "--database", database, "--increments", size, timeout=3600)
    assert (found["actions"], found["steps"]) == (int(size) // 2, int(size) - int(size) // 2)


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    "database", ["sqlite", pytest.param("postgres", marks=pytest.mark.requires_postgres)]
)
def test_every_pattern_killed_in_its_middle_comes_to_what_it_came_to_undisturbed(database):
    (undisturbed,) = scenario("patterns", "--database", database, "--story", "undisturbed")
    (killed,) = scenario("patterns", "--database", database, "--story", "killed")
    assert killed["outcome"] == undisturbed
