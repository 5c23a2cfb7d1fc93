"""``@action(on_worker=True)`` across processes: through the database and its bell, never twice, also when they die."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from django.db import connections

from rivet_workflows import NoWorker, client
from rivet_workflows.models import Call, Run
from rivet_workflows.registry import registry
from tests import sidedb
from tests.processes import LONG, WorkerProcess
from tests.sidedb import SideDatabase

pytestmark = [pytest.mark.timeout(180), sidedb.both]


#: Seconds that callers wait. Starting a process may take long on a busy machine.
PATIENCE = 90.0


@pytest.fixture(autouse=True)
def _actors(side: SideDatabase, settings: Any) -> None:
    """The actors of the processes, known here too."""
    import importlib

    settings.RIVET_WORKFLOWS = {"DATABASE": side.alias, "WORKER_ACTION_TIMEOUT": PATIENCE}

    from tests.sideapp import actors

    if registry.find("counter") is None:
        importlib.reload(actors)


@pytest.fixture
def ledger(tmp_path: Path) -> Path:
    path = tmp_path / "ledger"
    path.touch()
    return path


@pytest.fixture
def gate(tmp_path: Path) -> Path:
    """``slow`` runs while it exists."""
    path = tmp_path / "gate"
    path.touch()
    return path


@pytest.fixture
def start(side: SideDatabase, ledger: Path, gate: Path) -> Iterator[Callable[..., WorkerProcess]]:
    started: list[WorkerProcess] = []

    def start(*arguments: str, **options: Any) -> WorkerProcess:
        options["settings"] = {"WORKER_ACTION_TIMEOUT": PATIENCE} | options.get("settings", {})
        started.append(WorkerProcess(side, *arguments, ledger=ledger, gate=gate, **options))
        return started[-1]

    yield start
    for process in started:
        process.kill()


@pytest.fixture
def aside() -> Iterator[Callable[..., Future[Any]]]:
    """Calls in threads of their own, so that the test can do something meanwhile."""

    def run(call: Callable[..., Any], args: tuple[Any, ...]) -> Any:
        try:
            return call(*args)
        finally:
            connections.close_all()

    with ThreadPoolExecutor(8) as pool:
        yield lambda call, *args: pool.submit(run, call, args)


def until(happened: Callable[[], Any]) -> Any:
    end = time.monotonic() + LONG
    while not (value := happened()):
        assert time.monotonic() < end, "it has not happened"
        time.sleep(0.02)
    return value


def test_calls_from_many_threads_run_one_at_a_time_in_the_one_process_that_holds_the_actor(
    side: SideDatabase, start: Any, aside: Any
):
    for worker in [start(), start()]:
        worker.wait_ready()
    for name, handle in [("counter", client.create("counter")), ("plain", client.create("plain"))]:
        results = [call.result(LONG) for call in [aside(handle.there) for _ in range(24)]]
        assert sorted(r[-2] for r in results) == list(range(1, 25)), name
        assert len({r[-1] for r in results}) == 1, name
    assert not Call.objects.using(side.alias).exists()


def test_they_and_ordinary_actions_are_serialised_on_the_state(side: SideDatabase, start: Any, aside: Any):
    start().wait_ready()
    counter = client.create("counter")
    calls = [aside(call) for _ in range(12) for call in (counter.here, counter.there)]
    seen = [result if isinstance(result, int) else result[0] for result in (c.result(LONG) for c in calls)]
    assert sorted(seen) == list(range(1, 25))


def test_a_call_that_was_made_before_the_worker_starts_is_waited_for(
    side: SideDatabase, start: Any, aside: Any
):
    counter = client.create("counter")
    plain = client.create("plain")
    calls = [aside(counter.there), aside(plain.there)]
    until(lambda: Call.objects.using(side.alias).count() == 2)
    start()
    assert calls[0].result(LONG)[:2] == (1, 1)
    assert calls[1].result(LONG)[0] == 1


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


def test_a_call_whose_caller_gave_up_is_rolled_back_at_its_end(
    side: SideDatabase, start: Any, ledger: Path, gate: Path, settings: Any, monkeypatch: pytest.MonkeyPatch
):
    process, counter = start(), client.create("counter")
    process.wait_ready()
    monkeypatch.setattr("rivet_workflows.client.workercalls.call_timeout", lambda _: 1.5)
    if side.store.vendor == "sqlite":
        connections[side.alias].settings_dict["OPTIONS"]["timeout"] = 0.5
        connections[side.alias].close()
    with pytest.raises(NoWorker, match="did not end within") as told:
        counter.heavy()
    assert told.value.metadata == {"reason": "not_ended"}
    gate.unlink()
    until(lambda: ledger.read_text() == "slow begun\nslow ended\n")
    process.wait_for("still runs after|was withdrawn")
    assert until(lambda: counter.here()) == 1  # once the state is free: nothing of it was stored
    assert counter.there()[:2] == (2, 1)


def test_a_worker_that_stops_ends_what_runs_and_leaves_the_rest_to_others(
    side: SideDatabase, start: Any, aside: Any, ledger: Path, gate: Path
):
    first, counter = start(), client.create("counter")
    first.wait_ready()
    slow = aside(counter.slow)
    until(lambda: ledger.read_text() == "slow begun\n")
    behind = aside(counter.there)
    until(lambda: Call.objects.using(side.alias).count() == 2)
    first.signal(signal.SIGTERM)
    first.wait_for("Letting 1 running steps finish")
    gate.unlink()
    assert slow.result(LONG) == first.process.pid
    assert first.wait() == 0
    second = start()
    assert behind.result(LONG) == (1, 1, second.process.pid)


def test_a_guest_is_given_back_with_its_worker(side: SideDatabase, start: Any):
    process, plain = start(), client.create("plain")
    process.wait_ready()
    assert plain.there()[0] == 1
    assert Run.objects.using(side.alias).filter(owner_id__isnull=False).count() == 1
    process.signal(signal.SIGTERM)
    assert process.wait() == 0
    assert not Run.objects.using(side.alias).filter(owner_id__isnull=False).exists()


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


def test_the_bell_brings_the_call_and_the_answer(side: SideDatabase, start: Any):
    """Polling alone would take a minute each way."""
    process = start(settings={"POLL_INTERVAL": 60.0, "LEASE": 120.0, "HEARTBEAT": 60.0})
    process.wait_ready()
    handles = [client.create("counter"), client.create("plain")]
    began = time.monotonic()
    for handle in handles:
        for number in (1, 2, 3):
            assert handle.there()[-2] == number
    assert time.monotonic() - began < 30


def test_in_one_process_with_the_server_it_works_as_well(side: SideDatabase):
    """As under ``rivet_dev``."""
    from rivet_workflows.worker.shell import Worker, WorkerOptions

    worker = Worker(WorkerOptions.from_settings(grace=LONG), side.store)
    worker.start()
    try:
        counter = client.create("counter")
        ids = {counter.there()[1:] for _ in range(3)}
        assert {n for n, _ in ids} == {1, 2, 3}
        assert threading.active_count() > 1
    finally:
        worker.stop()
        assert worker.wait(LONG) == 0
