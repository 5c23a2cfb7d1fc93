"""Servers, networks, clocks and disks that fail, and random deaths among them: the ledger is exact."""

from __future__ import annotations

import os

import pytest

from tests.faults.scenario import EVERY, ON_SERVERS, own_server, scenario


@pytest.mark.timeout(900)
@EVERY
def test_a_long_transaction_or_a_bad_row_delays_its_own_actor_alone(database):
    scenario("isolation", "--database", database)


@pytest.mark.timeout(3600)
@EVERY
def test_a_counter_is_exact_and_what_ran_more_than_once_is_in_the_history(database):
    """``RIVET_COUNTER=10000`` for the full size."""
    size = os.environ.get("RIVET_COUNTER", "120")
    (found,) = scenario("counter", "--database", database, "--increments", size, timeout=3600)
    assert (found["actions"], found["steps"]) == (int(size) // 2, int(size) - int(size) // 2)


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
@own_server
def test_all_go_on_after_the_server_is_back():
    scenario("recovery", "--fault", "restart", "--actors", "50")


@pytest.mark.timeout(900)
@pytest.mark.requires_postgres
def test_br_147_a_rolling_deploy_under_load_loses_nothing_and_answers_on():
    (found,) = scenario("deploys", "--rounds", "1")
    assert found["asked"]
