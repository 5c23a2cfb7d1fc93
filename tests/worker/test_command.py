"""``manage.py rivet_worker`` as a process: what it says, what it heeds, what it leaves behind."""

from __future__ import annotations

import os
import re
import signal
import socket
import sqlite3
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from rivet_workflows import client
from rivet_workflows.models import Run
from rivet_workflows.models import Worker as WorkerRow
from tests import sidedb
from tests.processes import LONG, WorkerProcess, declare_actors
from tests.sidedb import SideDatabase
from tests.waiting import until

pytestmark = pytest.mark.timeout(180)


@pytest.fixture(autouse=True)
def _actors() -> None:
    declare_actors()


def lines(ledger: Path) -> list[str]:
    return ledger.read_text().splitlines()


def owners(side: SideDatabase) -> list[Any]:
    rows = Run.objects.using(side.alias).filter(owner_id__isnull=False)
    return list(rows.values_list("owner_id", flat=True))


# -- beginning and end -----------------------------------------------------------------------------------


@sidedb.each
def test_a_burst_does_what_is_due_and_exits_0(start, side: SideDatabase, ledger: Path):
    handles = [client.create("ledgered", str(n)) for n in range(5)]
    process = start("--until-idle")
    assert process.wait() == 0, process.log
    assert [handle.result(timeout=0) for handle in handles] == [6] * 5
    assert Counter(lines(ledger)) == Counter(f"{key} {n}" for key in range(5) for n in (1, 2, 3))
    assert re.search(r"runs .*ledgered, .*on 'default'", process.log)
    assert "nothing is left to do" in process.log


@sidedb.each
def test_only_the_named_actors_are_run(start, side: SideDatabase, ledger: Path):
    client.create("ledgered", "a")
    other = client.create("worked", "b")
    process = start("--until-idle", "--actors", "ledgered")
    assert process.wait() == 0, process.log
    assert len(lines(ledger)) == 3
    assert other.status().state == "pending"


@pytest.mark.parametrize(
    "arguments", [["--actors", "nobody"], ["--concurrency", "0"], ["--grace", "-1"], ["--nonsense"]]
)
@sidedb.sqlite_only
def test_wrong_usage_exits_2(start, side: SideDatabase, arguments: list[str]):
    assert start(*arguments).wait() == 2


@sidedb.sqlite_only
def test_missing_tables_exit_3_and_name_the_mend(start, side: SideDatabase, tmp_path: Path):
    empty = tmp_path / "empty.sqlite3"
    sqlite3.connect(empty).close()
    process = WorkerProcess(SideDatabase("default", f"sqlite:///{empty}"))
    assert process.wait() == 3
    assert "migrate rivet_workflows" in process.log


# -- signals ---------------------------------------------------------------------------------------------


@sidedb.each
def test_sigterm_lets_the_running_step_finish(start, side: SideDatabase, ledger: Path, gate: Path):
    handle = client.create("gated", "g")
    process = start("--grace", str(LONG))
    until(lambda: lines(ledger), lambda: process.log)
    process.signal(signal.SIGTERM)
    process.wait_for("Letting 1 running steps finish")
    gate.unlink()
    assert process.wait() == 0, process.log
    assert lines(ledger) == ["begun g 1", "ended g 1"]
    assert handle.status().state == "completed"
    assert WorkerRow.objects.using(side.alias).count() == 0


@sidedb.each
def test_heartbeats_go_on_through_a_stop_that_is_longer_than_the_lease(
    start, side: SideDatabase, ledger: Path, gate: Path
):
    handle = client.create("gated", "g")
    one = start("--grace", str(LONG))
    until(lambda: lines(ledger), one)
    one.signal(signal.SIGTERM)
    one.wait_for("Letting 1 running steps finish")
    two = start()
    two.wait_ready()
    row = WorkerRow.objects.using(side.alias).order_by("id").first()
    assert row is not None

    def beaten() -> bool:
        """It has lived for two leases more."""
        now = WorkerRow.objects.using(side.alias).get(id=row.id).heartbeat_at
        return now > row.heartbeat_at + 2_000_000

    until(beaten, one)
    gate.unlink()
    assert one.wait() == 0, one.log
    assert lines(ledger) == ["begun g 1", "ended g 1"]
    assert handle.status().state == "completed"


@sidedb.each
def test_after_the_grace_the_step_is_handed_back(start, side: SideDatabase, ledger: Path, gate: Path):
    handle = client.create("gated", "g")
    process = start("--grace", "0.1")
    until(lambda: lines(ledger), lambda: process.log)
    process.signal(signal.SIGTERM)
    assert process.wait() == 0, process.log
    assert owners(side) == []
    assert handle.status().state != "completed"
    gate.unlink()
    assert start("--until-idle").wait() == 0
    assert lines(ledger) == ["begun g 1", "begun g 1", "ended g 1"]


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
@sidedb.each
def test_a_second_signal_leaves_at_once_and_hands_back(
    start, side: SideDatabase, ledger: Path, number: signal.Signals, code: int
):
    client.create("gated", "g")
    process = start("--grace", str(LONG))
    until(lambda: lines(ledger), lambda: process.log)
    process.signal(number)
    process.wait_for("Letting 1 running steps finish")
    process.signal(number)
    assert process.wait() == code, process.log
    assert owners(side) == []


@pytest.mark.parametrize("delay", [0.0, 0.05, 0.1, 0.2, 0.4, 0.8])
@sidedb.sqlite_only
def test_a_signal_soon_after_the_start_ends_it(start, side: SideDatabase, delay: float):
    process = start()
    time.sleep(delay)  # the input, not a wait for something
    process.signal(signal.SIGTERM)
    # Before Python has read our first line, the system's own reaction ends the process.
    assert process.wait() in (0, -signal.SIGTERM), process.log


# -- death and sleep -------------------------------------------------------------------------------------


@sidedb.each
def test_what_a_killed_worker_held_is_finished_by_another(
    start, side: SideDatabase, ledger: Path, gate: Path
):
    handles = [client.create("gated", str(n)) for n in range(4)]
    one = start()
    until(lambda: len(lines(ledger)) == 4, one)
    one.signal(signal.SIGKILL)
    one.wait()
    gate.unlink()
    two = start()
    until(lambda: all(handle.status().state == "completed" for handle in handles), two)
    two.wait_for("Took over 4 actors")
    assert Counter(line.split()[0] for line in lines(ledger)) == {"begun": 8, "ended": 4}
    two.signal(signal.SIGTERM)
    assert two.wait() == 0
    assert WorkerRow.objects.using(side.alias).count() == 0


@sidedb.each
def test_a_worker_that_slept_past_its_lease_commits_nothing(
    start, side: SideDatabase, ledger: Path, gate: Path
):
    handle = client.create("gated", "g")
    one = start()
    until(lambda: lines(ledger), one)
    one.signal(signal.SIGSTOP)
    two = start()
    two.wait_for("Took over 1 actors")
    gate.unlink()
    until(lambda: handle.status().state == "completed", two)
    before = Run.objects.using(side.alias).values_list("epoch", "commit_no").get(actor_id=handle.actor_id)
    one.signal(signal.SIGCONT)
    one.wait_for("lost its lease")
    until(lambda: WorkerRow.objects.using(side.alias).count() == 2, one)
    after = Run.objects.using(side.alias).values_list("epoch", "commit_no").get(actor_id=handle.actor_id)
    assert before == after
    assert len(handle.history()) == 1


# -- several processes -----------------------------------------------------------------------------------


@sidedb.each
def test_a_child_that_dies_is_started_again_and_a_stop_reaches_all(start, side: SideDatabase, ledger: Path):
    process = start("--processes", "2")
    pids = [int(match[1]) for match in process.wait_for(r"Worker process \d of 2: pid (\d+)", 2)]
    process.wait_for(r"Worker \d+ .* runs ", 2)
    os.kill(pids[0], signal.SIGKILL)
    process.wait_for("ended by signal 9; it is started again")
    process.wait_for(r"Worker process \d of 2: pid (\d+)", 3)
    process.wait_for(r"Worker \d+ .* runs ", 3)
    handle = client.create("ledgered", "l")
    assert handle.result(timeout=LONG) == 6
    process.signal(signal.SIGTERM)
    assert process.wait() == 0, process.log
    process.wait_for("told to by SIGTERM", 2)


@sidedb.sqlite_only
def test_children_end_with_their_supervisor(start, side: SideDatabase):
    process = start("--processes", "2")
    process.wait_for(r"Worker \d+ .* runs ", 2)
    process.signal(signal.SIGKILL)
    until(lambda: WorkerRow.objects.using(side.alias).count() == 0, lambda: process.log)


@sidedb.sqlite_only
def test_a_burst_of_several_processes_ends(start, side: SideDatabase):
    assert start("--processes", "2", "--burst").wait() == 0


# -- the development server ------------------------------------------------------------------------------


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@sidedb.sqlite_only
def test_rivet_dev_serves_and_works_and_hands_back(start, side: SideDatabase, ledger: Path):
    process = start(f"127.0.0.1:{free_port()}", "--noreload", command="rivet_dev")
    handle = client.create("ledgered", "l")
    assert handle.result(timeout=LONG) == 6
    process.signal(signal.SIGTERM)
    assert process.wait() == 0, process.log
    assert WorkerRow.objects.using(side.alias).count() == 0


@sidedb.sqlite_only
def test_rivet_dev_begins_anew_when_code_changes(start, side: SideDatabase):
    from tests.sideapp import actors

    process = start(f"127.0.0.1:{free_port()}", command="rivet_dev")
    process.wait_ready()

    def ended() -> bool:
        """The reloader compares with what it saw at its own first look, so once is not enough."""
        os.utime(str(actors.__file__))
        return "has ended: the server ends or reloads" in process.log

    until(ended, lambda: process.log)
    process.wait_for(r"Worker \d+ .* runs ", 2)
    process.signal(signal.SIGTERM)
    process.wait()
