"""Whole workers, their threads and a real database: one slot, one run; what is set wakes who sleeps."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest

from rivet_workflows import Actor, ScheduledFire, action, client
from rivet_workflows.client.moments import from_micros
from rivet_workflows.models import Fire, Schedule
from rivet_workflows.models import Worker as WorkerRow
from rivet_workflows.records import FireResult
from rivet_workflows.store import get_store
from rivet_workflows.worker.shell import Worker, WorkerOptions
from tests import sidedb
from tests.sidedb import SideDatabase
from tests.waiting import until
from tests.worker.support import LONG


@pytest.fixture
def start(side: SideDatabase) -> Iterator[Callable[..., Worker]]:
    """Starts workers that poll rarely: what they notice in a test, they were told, or knew would come."""
    started: list[Worker] = []

    def start(**habits: Any) -> Worker:
        options = WorkerOptions.from_settings(grace=LONG)
        habits = {"poll": 600.0, "heartbeat": 0.2} | habits
        worker = Worker(replace(options, habits=replace(options.habits, **habits)), side.store)
        started.append(worker)
        worker.start()
        assert worker.wait_ready(LONG)
        return worker

    yield start
    for worker in started:
        worker.stop(grace=0)
    for worker in started:
        assert worker.wait(LONG) is not None


def declare() -> Any:
    class Ticker(Actor):
        state = list

        @action
        def tick(self, c, text: str, fire: ScheduledFire) -> None:
            c.state.append(text)

        @action
        def soon(self, c, delay: float, text: str) -> None:
            c.schedule.after(delay, "tick", text)

        @action
        def regularly(self, c, name: str) -> None:
            c.cron.every(name=name, interval=3600, action="tick", args=[name])

        @action(read_only=True)
        def get(self, c):
            return c.state

    return Ticker


@sidedb.each
def test_a_sched_03_a_sleeping_worker_hears_of_a_schedule_and_wakes_for_it(start, side: SideDatabase):
    ticker = client.get_or_create(declare(), "a")
    start()
    ticker.soon(0, "now")
    until(lambda: ticker.get() == ["now"])
    ticker.soon(0.2, "then")
    until(lambda: ticker.get() == ["now", "then"])
    assert not Schedule.objects.using(side.alias).exists()


@sidedb.each
def test_a_cron_09_two_workers_and_one_slot_are_one_run(start, side: SideDatabase):
    Ticker = declare()
    tickers = [client.get_or_create(Ticker, f"t{n}") for n in range(8)]
    for ticker in tickers:
        ticker.regularly("job")
        ticker.soon(3600, "once")
    # All at once, in the past: every worker finds the same slots.
    Schedule.objects.using(side.alias).update(next_at=side.store.clock.now() - 1)
    for _ in range(2):
        start()
    rows = Fire.objects.using(side.alias)
    until(lambda: rows.filter(result=int(FireResult.OK)).count() == len(tickers))
    until(lambda: all(sorted(ticker.get()) == ["job", "once"] for ticker in tickers))
    assert rows.count() == len(tickers)
    assert [sorted(ticker.get()) for ticker in tickers] == [["job", "once"]] * len(tickers)


@sidedb.each
def test_a_cron_10_d_23_fires_of_a_worker_that_is_gone_are_interrupted(start, side: SideDatabase):
    Ticker = declare()
    ticker = client.get_or_create(Ticker, "a")
    ticker.regularly("job")
    store = side.store
    Schedule.objects.using(side.alias).update(next_at=store.clock.now() - 1)
    gone = store.register_worker("elsewhere", 1, {})
    (due,) = store.due_schedules(["ticker"], 5)
    taken = store.take_recurring(due, gone)
    assert taken is not None
    WorkerRow.objects.using(side.alias).filter(id=gone).update(heartbeat_at=1)
    start()
    fire = until(lambda: Fire.objects.using(side.alias).filter(result=int(FireResult.ERROR)).first())
    assert "ScheduleInterrupted" in fire.error
    # It comes back after all: what it did must not be committed.
    assert store.finish_fire(taken, None) is False
    assert ticker.get() == []
    assert from_micros(taken.fired_at) < from_micros(get_store(side.alias).clock.now())


@sidedb.each
def test_a_sched_06_until_idle_waits_for_one_shots_and_not_for_jobs(start, side: SideDatabase):
    ticker = client.get_or_create(declare(), "a")
    ticker.regularly("job")
    ticker.soon(0.3, "once")
    worker = start(until_idle=True)
    assert worker.wait(LONG) == 0
    assert ticker.get() == ["once"]
