"""``@action(on_worker=True)`` with whole workers on a real database: who holds, who waits, what is serialised."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
from django.db import connections

from rivet_workflows import Actor, NoWorker, Queue, action, client
from rivet_workflows.models import Call, Run
from rivet_workflows.models import Worker as WorkerRow
from rivet_workflows.worker.shell import Worker, WorkerOptions
from tests import sidedb
from tests.sidedb import SideDatabase
from tests.waiting import until

pytestmark = [pytest.mark.timeout(180), sidedb.each]

#: Seconds after which a test that waits has failed.
LONG = 60


@pytest.fixture(autouse=True)
def _patience(side: SideDatabase, settings: Any) -> None:
    settings.RIVET_WORKFLOWS = {
        "DATABASE": side.alias,
        "WORKER_ACTION_TIMEOUT": LONG,
        "LEASE": 60.0,
        "HEARTBEAT": 0.2,
    }


@pytest.fixture
def start(side: SideDatabase) -> Iterator[Callable[..., Worker]]:
    started: list[Worker] = []

    def start(**habits: Any) -> Worker:
        options = WorkerOptions.from_settings(grace=LONG)
        started.append(Worker(replace(options, habits=replace(options.habits, **habits)), side.store))
        started[-1].start()
        assert started[-1].wait_ready(LONG)
        return started[-1]

    yield start
    for worker in started:
        worker.stop()
    for worker in started:
        assert worker.wait(LONG) == 0


@pytest.fixture
def gate() -> Iterator[threading.Event]:
    event = threading.Event()
    yield event
    event.set()


def declare(gate: threading.Event | None = None, *, workflow: bool = True) -> Any:
    begun = threading.Event()

    class Counter(Actor, name="counter" if workflow else "plain"):
        """Counts in its state, and in the memory of the worker that holds it."""

        state = {"n": 0}
        vars = {"n": 0}
        work = Queue(int)
        slow_begun = begun

        if workflow:

            async def run(self, ctx):
                while (await ctx.queue.next("next", names=[Counter.work])).body:
                    pass

        @action
        def here(self, c) -> int:
            c.state["n"] += 1
            return int(c.state["n"])

        @action(on_worker=True)
        def there(self, c) -> tuple[int, int]:
            c.vars["n"] += 1
            c.state["n"] += 1
            return c.state["n"], c.vars["n"]

        @action(on_worker=True, read_only=True)
        def slow(self, c) -> int:
            c.vars["n"] += 100
            begun.set()
            assert gate is not None
            assert gate.wait(LONG)
            return int(c.vars["n"])

        @action(on_worker=True)
        def late(self, c) -> None:
            c.state["n"] += 1_000
            self.slow(c)

    return Counter


@pytest.mark.parametrize("workflow", [True, False])
def test_calls_from_many_threads_meet_one_memory_and_run_one_at_a_time(start, aside, side, workflow):
    counter = client.create(declare(workflow=workflow))
    start(), start()
    calls = [aside(call) for _ in range(12) for call in (counter.here, counter.there)]
    results = [call.result(LONG) for call in calls]
    assert sorted(r[1] for r in results if isinstance(r, tuple)) == list(range(1, 13))
    # Serialised with ordinary actions on the state.
    assert sorted(r if isinstance(r, int) else r[0] for r in results) == list(range(1, 25))
    assert not Call.objects.using(side.alias).exists()


@pytest.mark.parametrize("workflow", [True, False])
def test_a_call_that_was_made_before_the_worker_starts_is_waited_for(start, aside, side, workflow):
    counter = client.create(declare(workflow=workflow))
    call = aside(counter.there)
    until(lambda: Call.objects.using(side.alias).exists())
    start()
    assert call.result(LONG) == (1, 1)


def test_the_bell_brings_the_call_and_the_answer(start, side):
    """Polling alone would take ten minutes each way."""
    handles = [client.create(declare(workflow=workflow)) for workflow in (True, False)]
    start(poll=600.0, heartbeat=600.0)
    for handle in handles:
        assert [handle.there() for _ in range(3)] == [(1, 1), (2, 2), (3, 3)]


def test_one_actors_call_does_not_hold_up_another_nor_its_workflow(start, aside, gate):
    Counter = declare(gate)
    busy, other = client.create(Counter, "busy"), client.create(Counter, "other")
    start()
    slow = aside(busy.slow)
    assert Counter.slow_begun.wait(LONG)
    assert other.there() == (1, 1)
    assert busy.here() == 1
    busy.send("work", 0)
    assert busy.result(timeout=LONG) is None
    gate.set()
    assert slow.result(LONG) == 100


def test_a_workflow_that_ends_leaves_its_callers_to_be_served(start, aside, gate, side):
    Counter = declare(gate)
    counter = client.create(Counter)
    start()
    slow = aside(counter.slow)
    assert Counter.slow_begun.wait(LONG)
    behind = aside(counter.there)
    until(lambda: Call.objects.using(side.alias).count() == 2)
    counter.send("work", 0)
    assert counter.result(timeout=LONG) is None
    gate.set()
    assert slow.result(LONG) == 100
    assert behind.result(LONG)[0] == 1


def test_a_call_whose_caller_gave_up_is_rolled_back_at_its_end(start, side, gate, monkeypatch):
    Counter = declare(gate)
    counter = client.create(Counter)
    start()
    assert counter.there() == (1, 1)
    monkeypatch.setattr("rivet_workflows.client.workercalls.call_timeout", lambda _: 6.0)
    if side.store.vendor == "sqlite":
        connections[side.alias].settings_dict["OPTIONS"]["timeout"] = 0.5
        connections[side.alias].close()
    with pytest.raises(NoWorker, match="did not end within") as told:
        counter.late()
    assert told.value.metadata == {"reason": "not_ended"}
    gate.set()
    monkeypatch.undo()
    # As soon as the action has let go of the state: nothing of it was stored, its memory is as it left it.
    assert until(lambda: aside_here(counter)) == 2
    assert counter.there() == (3, 102)


def aside_here(counter: Any) -> Any:
    from django.db import OperationalError

    from rivet_workflows import ActorBusy

    try:
        return counter.here()
    except (OperationalError, ActorBusy):
        return None


def test_a_worker_that_stops_ends_what_runs_and_leaves_the_rest_to_others(start, aside, gate, side):
    Counter = declare(gate)
    counter = client.create(Counter)
    first = start()
    slow = aside(counter.slow)
    assert Counter.slow_begun.wait(LONG)
    behind = aside(counter.there)
    until(lambda: Call.objects.using(side.alias).count() == 2)
    first.stop()
    until(lambda: WorkerRow.objects.using(side.alias).filter(draining=True).exists())
    gate.set()
    assert slow.result(LONG) == 100
    assert first.wait(LONG) == 0
    start()
    assert behind.result(LONG) == (1, 1)


def test_a_guest_is_given_back_with_its_worker(start, side):
    plain = client.create(declare(workflow=False))
    worker = start()
    assert plain.there() == (1, 1)
    assert Run.objects.using(side.alias).filter(owner_id__isnull=False).count() == 1
    worker.stop()
    assert worker.wait(LONG) == 0
    assert not Run.objects.using(side.alias).filter(owner_id__isnull=False).exists()
    start()
    assert plain.there() == (2, 1)


def test_a_cancelled_workflow_is_served_and_recovers_from_a_guest(start, side):
    counter = client.create(declare())
    start()
    assert counter.cancel()
    assert counter.there() == (1, 1)
    assert str(counter.status()) == "cancelled"
    assert counter.recover()
    until(lambda: str(counter.status()) == "sleeping")
    assert counter.there()[0] == 2
