"""Workers that are killed, at every point of their work: nothing is lost, no finished step runs again."""

from __future__ import annotations

import re

import pytest

from rivet_workflows.crashpoints import POINTS
from tests.faults.kill_points import KILLED_AT
from tests.faults.scenario import EVERY, ROOT, SERVERS, WHOLE, scenario, whole_only


def test_the_list_of_crash_points_is_complete():
    called: set[str] = set()
    for path in (ROOT / "rivet_workflows").rglob("*.py"):
        called |= set(re.findall(r'\bcrashpoint\(\s*"([^"]+)"', path.read_text()))
    assert called == set(POINTS)


@pytest.mark.timeout(900)
@EVERY
def test_a_worker_killed_at_any_point_loses_nothing_and_repeats_no_completed_step(database):
    points = KILLED_AT if WHOLE else KILLED_AT[database == "postgres" :: 2]
    kills = scenario("kill_points", "--database", database, "--points", ",".join(points))
    assert {kill["point"] for kill in kills} == set(points)


@pytest.mark.timeout(900)
@pytest.mark.requires_postgres
def test_one_owner_per_epoch_no_gap_in_commit_numbers_and_a_stopped_worker_commits_nothing():
    (found,) = scenario("audit")
    assert found["commits"]


@pytest.mark.timeout(900)
@EVERY
def test_a_step_that_kills_its_process_is_set_aside_alone(database):
    (found,) = scenario("poison", "--database", database)
    assert found["killer"] == "set_aside"


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    "database",
    ["sqlite", *(pytest.param(*server.values, marks=[*server.marks, whole_only]) for server in SERVERS)],
)
def test_every_pattern_killed_in_its_middle_comes_to_what_it_came_to_undisturbed(database):
    (undisturbed,) = scenario("patterns", "--database", database, "--story", "undisturbed")
    (killed,) = scenario("patterns", "--database", database, "--story", "killed")
    assert killed["outcome"] == undisturbed


@pytest.mark.timeout(900)
@pytest.mark.requires_postgres
def test_all_that_a_killed_worker_held_goes_on_with_another():
    scenario("recovery", "--fault", "kill", "--actors", "50", "--lease", "2")
