"""A worker that stops, and workers that die: what runs is finished or handed back, and others go on."""

from __future__ import annotations

from typing import Any

from rivet_workflows import Actor, client
from rivet_workflows.worker.core import CoreLimits
from rivet_workflows.worker.shell import Worker, WorkerOptions
from tests import sidedb
from tests.waiting import until
from tests.worker.fleet import Faulty, Workers, owned, worker_rows
from tests.worker.support import LONG


@sidedb.each
def test_a_stop_lets_running_steps_finish_and_hands_the_rest_back(workers: Workers, slow: Any):
    handle = client.create(slow, "s")
    worker = workers.start()
    assert slow.inside.wait(LONG)
    worker.stop("told to")
    slow.go.set()
    assert worker.wait(LONG) == 0
    assert handle.status().state == "completed"
    assert worker_rows() == 0
    assert owned() == 0


@sidedb.each
def test_at_the_end_of_the_grace_a_step_is_handed_back_and_not_counted(workers: Workers, slow: Any):
    handle = client.create(slow, "s")
    worker = workers.start()
    assert slow.inside.wait(LONG)
    worker.stop(grace=0)
    until(lambda: worker_rows() == 0)
    assert owned() == 0
    slow.go.set()
    assert worker.wait(LONG) == 0
    workers.run_dry()
    assert handle.status().state == "completed"
    assert slow.attempts == [1, 1]


@sidedb.each
def test_a_stop_before_the_start_is_heeded(workers: Workers):
    told = WorkerOptions.from_settings()
    worker = Worker(told, workers.side.store)
    worker.stop("early")
    worker.start()
    assert worker.wait(LONG) == 0
    assert worker_rows() == 0


@sidedb.each
def test_burst_leaves_timers_and_until_idle_waits_for_them(workers: Workers):
    class Timed(Actor):
        async def run(self, ctx):
            await ctx.sleep("rest", ctx.input)

    late = client.create(Timed, "late", input=3600)
    worker = workers.start(habits={"burst": True})
    assert worker.wait(LONG) == 0
    assert late.status().state == "sleeping"
    late.destroy()
    soon = client.create(Timed, "soon", input=0.3)
    workers.run_dry()
    assert soon.status().state == "completed"


@sidedb.each
def test_the_actors_of_a_dead_worker_are_taken_over(workers: Workers):
    class Left(Actor):
        async def run(self, ctx):
            return await ctx.step("work", self.work)

        def work(self, step):
            return step.attempt

    handle = client.create(Left, "l")
    store = workers.side.store
    dead = store.register_worker("gone", 1, {})
    codes = {"left": "other"}
    assert len(store.claim(dead, codes, 10)[0]) == 1
    from rivet_workflows.models import Worker as Row

    Row.objects.using(store.alias).filter(id=dead).update(heartbeat_at=0)
    workers.start(habits={"lease": LONG})
    assert handle.result(timeout=LONG) == 1
    until(lambda: worker_rows() == 1)


@sidedb.each
def test_more_than_there_is_room_for_is_taken_over_as_room_comes_and_not_at_the_next_heartbeat(
    workers: Workers,
):
    class Left(Actor):
        async def run(self, ctx):
            return await ctx.step("work", self.work)

        def work(self, step):
            return step.attempt

    handles = [client.create(Left, str(n)) for n in range(12)]
    store = Faulty(workers.side.store)
    dead = store.register_worker("gone", 1, {})
    assert len(store.claim(dead, {"left": "other"}, 20)[0]) == len(handles)
    from rivet_workflows.models import Worker as Row

    Row.objects.using(store.alias).filter(id=dead).update(heartbeat_at=0)
    workers.start(store, habits={"lease": LONG, "heartbeat": 2.0}, limits=CoreLimits(max_active=2))
    assert [handle.result(timeout=LONG) for handle in handles] == [1] * 12
    first, last = (calls.index("take_over") for calls in (store.calls, store.calls[::-1]))
    between = store.calls[first : len(store.calls) - last]
    assert between.count("take_over") >= len(handles) / 2
    assert between.count("heartbeat") < len(handles) / 2 - 1
