"""``@action(on_worker=True)`` across processes that die: never twice, and a clear answer."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rivet_workflows import NoWorker, client
from rivet_workflows.models import Call
from tests import sidedb
from tests.processes import LONG, WorkerProcess, declare_actors
from tests.sidedb import SideDatabase
from tests.waiting import until

pytestmark = [pytest.mark.timeout(180), sidedb.each]


#: Seconds that callers wait. Starting a process may take long on a busy machine.
PATIENCE = 90.0


@pytest.fixture(autouse=True)
def _actors(side: SideDatabase, settings: Any) -> None:
    settings.RIVET_WORKFLOWS = {"DATABASE": side.alias, "WORKER_ACTION_TIMEOUT": PATIENCE}
    declare_actors()


@pytest.fixture
def start(start: Callable[..., WorkerProcess]) -> Callable[..., WorkerProcess]:
    def patient(*arguments: str, **options: Any) -> WorkerProcess:
        options["settings"] = {"WORKER_ACTION_TIMEOUT": PATIENCE, "LEASE": 5.0} | options.get("settings", {})
        return start(*arguments, **options)

    return patient


def test_when_its_worker_is_killed_the_caller_is_told_and_nothing_is_stored_or_done_again(
    side: SideDatabase, start: Any, aside: Any, ledger: Path, gate: Path
):
    first, counter = start(), client.create("counter")
    first.wait_ready()
    assert counter.there()[:2] == (1, 1)
    slow = aside(counter.slow if side.store.vendor == "sqlite" else counter.heavy)
    until(lambda: ledger.read_text() == "slow begun\n")
    after = aside(counter.there)
    until(lambda: Call.objects.using(side.alias).count() == 2)
    first.signal(signal.SIGKILL)
    second = start()
    second.wait_ready()
    with pytest.raises(NoWorker, match="went away in the middle") as told:
        slow.result(LONG)
    assert told.value.metadata == {"reason": "worker_died"}
    # The one behind it had not begun: the next worker runs it, with a memory of its own.
    assert after.result(LONG) == (2, 1, second.process.pid)
    gate.unlink()
    assert ledger.read_text() == "slow begun\n"
    assert not Call.objects.using(side.alias).exists()


@pytest.mark.parametrize(("point", "count"), [("call-taken", 0), ("call-run", 1)])
def test_a_worker_that_dies_around_the_commit_has_done_it_once_or_not_at_all(
    side: SideDatabase, start: Any, aside: Any, point: str, count: int
):
    counter = client.create("counter")
    dying = start(crash_at=point)
    call = aside(counter.there)
    assert dying.wait() == -signal.SIGKILL
    start()
    if count:
        assert call.result(LONG)[:2] == (1, 1)
    else:
        with pytest.raises(NoWorker):
            call.result(LONG)
    assert counter.there()[:2] == (count + 1, 1)


def test_a_killed_workers_guests_are_free_for_others_and_their_workflows_stay_over(
    side: SideDatabase, start: Any
):
    process, counter = start(), client.create("counter")
    process.wait_ready()
    counter.cancel()
    assert counter.there()[1] == 1
    process.signal(signal.SIGKILL)
    other = start()
    assert counter.there() == (2, 1, other.process.pid)
    assert str(counter.status()) == "cancelled"
    assert counter.recover()
    until(lambda: str(counter.status()) == "sleeping")
    assert counter.there()[0] == 3
