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
from tests.cluster.cluster import NOT_HERE
from tests.cluster.postgres import binaries
from tests.faults.kill_points import KILLED_AT

ROOT = Path(__file__).resolve().parents[2]

SERVERS = [
    pytest.param("postgres", marks=pytest.mark.requires_postgres),
    pytest.param("mariadb", marks=pytest.mark.requires_mariadb),
]
ON_SERVERS = pytest.mark.parametrize("database", SERVERS)
#: Where real processes are hurt. SQLite needs no server.
EVERY = pytest.mark.parametrize("database", ["sqlite", *SERVERS])
own_server = pytest.mark.skipif(
    binaries() is None, reason="no PostgreSQL is installed to start a server of one's own"
)


def scenario(name: str, *args: str, timeout: float = 600) -> list[dict[str, object]]:
    """Run ``tests.faults.<name>``; the JSON lines it prints. Fails with what it wrote when it does not exit 0."""
    if "mariadb" in args:
        pytest.importorskip("MySQLdb", reason="the driver of the extra mariadb is not installed")
    command = [sys.executable, "-m", f"tests.faults.{name}", *args]
    # The settings are the scenario's own, not those of the tests that start it.
    env = {key: value for key, value in os.environ.items() if key != "DJANGO_SETTINGS_MODULE"}
    ended = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=timeout)
    if ended.returncode == NOT_HERE:
        pytest.skip(ended.stderr.strip().splitlines()[-1])
    assert ended.returncode == 0, ended.stderr[-6000:]
    return [json.loads(line) for line in ended.stdout.splitlines()]


def test_the_list_of_crash_points_is_complete():
    called: set[str] = set()
    for path in (ROOT / "rivet_workflows").rglob("*.py"):
        called |= set(re.findall(r'\bcrashpoint\(\s*"([^"]+)"', path.read_text()))
    assert called == set(POINTS)


@pytest.mark.timeout(900)
@EVERY
def test_a_worker_killed_at_any_point_loses_nothing_and_repeats_no_completed_step(database):
    kills = scenario("kill_points", "--database", database)
    assert {kill["point"] for kill in kills} == set(KILLED_AT)


@pytest.mark.timeout(900)
@pytest.mark.requires_postgres
def test_one_owner_per_epoch_no_gap_in_commit_numbers_and_a_stopped_worker_commits_nothing():
    (found,) = scenario("audit")
    assert found["commits"]


@pytest.mark.timeout(900)
@EVERY
def test_a_long_transaction_or_a_bad_row_delays_its_own_actor_alone(database):
    scenario("isolation", "--database", database)


@pytest.mark.timeout(900)
@EVERY
def test_a_step_that_kills_its_process_is_set_aside_alone(database):
    (found,) = scenario("poison", "--database", database)
    assert found["killer"] == "set_aside"


@pytest.mark.timeout(3600)
@EVERY
def test_a_counter_is_exact_and_what_ran_more_than_once_is_in_the_history(database):
    """``RIVET_COUNTER=10000`` for the full size."""
    size = os.environ.get("RIVET_COUNTER", "120")
    (found,) = scenario("counter", "--database", database, "--increments", size, timeout=3600)
    assert (found["actions"], found["steps"]) == (int(size) // 2, int(size) - int(size) // 2)


@pytest.mark.timeout(900)
@EVERY
def test_every_pattern_killed_in_its_middle_comes_to_what_it_came_to_undisturbed(database):
    (undisturbed,) = scenario("patterns", "--database", database, "--story", "undisturbed")
    (killed,) = scenario("patterns", "--database", database, "--story", "killed")
    assert killed["outcome"] == undisturbed


@pytest.mark.timeout(900)
@EVERY
def test_workers_killed_and_stopped_at_random_leave_an_exact_ledger(database):
    (found,) = scenario("chaos", "--database", database, "--seconds", "6")
    assert found["kills"]


@pytest.mark.timeout(900)
@ON_SERVERS
@pytest.mark.parametrize("level", ["repeatable read", "serializable"])
def test_br_029_the_same_where_transactions_are_isolated_more_strictly(database, level):
    scenario("chaos", "--database", database, "--isolation", level, "--seconds", "4")


@pytest.mark.timeout(900)
@own_server
@pytest.mark.parametrize("fault", ["restart", "terminate", "slow"])
def test_br_108_what_befalls_the_server_loses_nothing_and_repeats_nothing(fault):
    scenario("outages", "--fault", fault, "--times", "2")


@pytest.mark.timeout(900)
@own_server
@pytest.mark.parametrize(
    ("fault", "heard"),
    [("read_only", "in a read-only transaction"), ("full", "connection slots are reserved")],
)
def test_a_server_that_takes_nothing_says_so_to_callers_and_workers_go_on_when_it_does(fault, heard):
    (found,) = scenario("outages", "--fault", fault, "--times", "2")
    assert all(heard in text for text in found["heard"]), found  # type: ignore[attr-defined]


@pytest.mark.timeout(900)
@pytest.mark.requires_postgres
def test_commits_whose_answers_are_lost_are_neither_lost_nor_made_twice():
    (found,) = scenario("network", "--fault", "swallow", "--times", "16")
    assert found["groups_swallowed"]
    assert found["ends_swallowed"]


@pytest.mark.timeout(900)
@pytest.mark.requires_postgres
@pytest.mark.parametrize("fault", ["cut", "stall"])
def test_br_141_a_network_that_breaks_loses_nothing(fault):
    (found,) = scenario("network", "--fault", fault, "--times", "4")
    assert fault == "stall" or found["refused"], "a cut that nobody noticed is none"


@pytest.mark.timeout(900)
@pytest.mark.requires_postgres
@pytest.mark.parametrize("listening", [[], ["--listen"]], ids=["looking", "listening"])
def test_workers_and_callers_may_go_through_a_transaction_pooler(listening):
    scenario("pooling", *listening)


@pytest.mark.timeout(900)
@ON_SERVERS
def test_a_worker_whose_clock_jumps_is_neither_early_nor_late_nor_taken_for_dead(database):
    scenario("clocks", "--database", database)


@pytest.mark.timeout(900)
def test_br_120_four_workers_and_web_writers_on_sqlite_never_hear_that_it_is_locked():
    scenario("sqlite_writers", "--seconds", "5")


@pytest.mark.timeout(900)
def test_a_disk_that_is_full_for_a_while_loses_nothing():
    scenario("disk_full", "--times", "2")


@pytest.mark.timeout(900)
@pytest.mark.requires_postgres
def test_all_that_a_killed_worker_held_goes_on_with_another():
    scenario("recovery", "--fault", "kill", "--actors", "50", "--lease", "2")


@pytest.mark.timeout(900)
@own_server
def test_all_go_on_after_the_server_is_back():
    scenario("recovery", "--fault", "restart", "--actors", "50")


@pytest.mark.timeout(900)
@pytest.mark.requires_postgres
def test_br_147_a_rolling_deploy_under_load_loses_nothing_and_answers_on():
    (found,) = scenario("deploys", "--rounds", "1")
    assert found["asked"]
