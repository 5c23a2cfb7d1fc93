"""Steps and actions that change one state, and atomic steps: every change is there, once."""

from __future__ import annotations

import json
from typing import Any
from unittest.mock import Mock

import pytest

from rivet_workflows import codec
from tests.worker.world import World, bump, count, plus


@pytest.mark.parametrize("step", [count, bump])
def test_state_changes_of_parallel_steps_are_all_there(step):
    async def run(ctx: Any) -> None:
        async def branch(b: Any) -> None:
            await b.step("count", step, max_retries=50, retry_backoff_base=0)

        await ctx.join("all", {f"b{n}": branch for n in range(10)})

    world = World(run)
    actor = world.actor(state='{"n":0}')
    worker = world.worker()
    worker.claim()
    worker.settle()
    world.finish_all(worker)
    world.output(actor)
    assert world.state(actor) == {"n": 10}


def test_a_change_that_others_make_too_is_compared_before_anything_runs_ahead_on_it(
    monkeypatch: pytest.MonkeyPatch,
):
    """A lost change throws away what ran ahead, and has the whole history read again: once, not each time."""

    async def run(ctx: Any) -> None:
        await ctx.step("count", count, max_retries=100, retry_backoff_base=0)

    world = World(run)
    actor = world.actor(state='{"n":0}')
    worker = world.worker()
    load = Mock(wraps=world.store.load)
    monkeypatch.setattr(world.store, "load", load)
    worker.claim()
    worker.settle()
    for _ in range(10):
        (start,) = worker.attempts
        report = worker.run(start)
        row = world.store.rows[actor]
        row.state, row.state_version = codec.dumps({"n": row.state_version * 10}), row.state_version + 1
        worker.attempts.remove(start)
        worker.core.step_done(start.token, report, world.time)
        worker.settle()
    assert load.call_count == 1
    world.finish_all(worker)
    world.output(actor)
    state = world.store.rows[actor].state
    assert state is not None
    assert codec.loads(state) == {"n": 101}
    (entry,) = world.store.rows[actor].history.values()
    assert entry.attempts is not None
    assert len(json.loads(entry.attempts)) == 11


async def atomic_beside(ctx: Any) -> None:
    """One atomic step, and a branch that changes the state again and again."""

    async def atomic(b: Any) -> None:
        await b.step("atomic", count, atomic=True)

    async def busy(b: Any) -> None:
        for _ in range(30):
            await b.step("busy", count, max_retries=100, retry_backoff_base=0)

    await ctx.join("all", {"atomic": atomic, "busy": busy})


def test_an_atomic_step_beside_a_busy_branch_comes_through():
    world = World(atomic_beside)
    actor = world.actor(state='{"n":0}')
    worker = world.worker()
    worker.claim()
    worker.settle()
    runs = 0
    while any(start.name == "atomic" for start in worker.attempts) or worker.settle():
        # The other is always a little faster.
        for start in sorted(worker.attempts, key=lambda start: start.name == "atomic"):
            runs += start.name == "atomic"
            worker.finish(start)
        worker.settle()
        world.pass_time(0.001)
        assert runs <= 7, "it runs again and again"
    assert [name for _, name in worker.calls].count("busy") < 30
    world.finish_all(worker)
    world.output(actor)
    assert world.state(actor) == {"n": 31}


def test_two_atomic_steps_and_a_busy_branch_come_through():
    async def run(ctx: Any) -> None:
        async def atomic(b: Any) -> None:
            for _ in range(3):
                await b.step("atomic", count, atomic=True)

        async def busy(b: Any) -> None:
            for _ in range(30):
                await b.step("busy", count, max_retries=100, retry_backoff_base=0)

        await ctx.join("all", {"one": atomic, "two": atomic, "busy": busy})

    world = World(run)
    actor = world.actor(state='{"n":0}')
    worker = world.worker()
    worker.claim()
    worker.settle()
    for _ in range(500):
        for start in sorted(worker.attempts, key=lambda start: start.name == "atomic"):
            if start in worker.attempts:
                worker.finish(start)
        worker.settle()
        world.pass_time(0.001)
    world.output(actor)
    assert world.state(actor) == {"n": 36}


def test_a_step_that_is_recorded_and_not_begun_by_a_worker_that_stops_counts_no_try():
    world = World(atomic_beside)
    actor = world.actor(state='{"n":0}')
    worker = world.worker()
    worker.claim()
    worker.settle()
    busy, atomic = sorted(worker.attempts, key=lambda start: start.name == "atomic")
    worker.finish(busy, error=ValueError("once"))
    worker.core.stop(world.time)
    worker.settle()
    for _ in range(5):
        # While the worker waits for its last step, that step loses the state to an action, and runs again.
        report = worker.run(atomic)
        row = world.store.rows[actor]
        row.state, row.state_version = '{"n":10}', row.state_version + 1
        worker.attempts.remove(atomic)
        worker.core.step_done(atomic.token, report, world.time)
        worker.settle()
        (atomic,) = worker.attempts
    worker.finish(atomic)
    worker.settle()
    assert worker.core.held == 0
    world.worker().until_idle()
    world.output(actor)
    assert world.state(actor) == {"n": 41}


def test_an_action_that_changes_the_same_field_while_a_step_runs_is_not_overwritten():
    async def run(ctx: Any) -> None:
        await ctx.step("count", count, retry_backoff_base=0)

    world = World(run)
    actor = world.actor(state='{"n":0}')
    worker = world.worker()
    worker.claim()
    worker.settle()
    start = worker.attempts[0]
    report = worker.run(start)
    row = world.store.rows[actor]
    row.state, row.state_version = '{"n":10}', row.state_version + 1
    worker.attempts.remove(start)
    worker.core.step_done(start.token, report, world.time)
    worker.settle()
    assert worker.errors[0].error.is_a("rivet_workflows.exceptions.StateConflict")
    worker.until_idle()
    world.output(actor)
    assert world.state(actor) == {"n": 11}


def test_a_merge_that_is_answered_late_is_not_taken_for_the_answer_to_the_next():
    """Two merges are ordered for one change, as another step's commit came in between; the second is slow."""

    def one(step: Any) -> None:
        step.update(lambda state: {**state, "n": state["n"] + 1})

    def ten(step: Any) -> None:
        step.update(lambda state: {**state, "n": state["n"] + 10})

    async def run(ctx: Any) -> None:
        await ctx.join(
            "all",
            one=lambda b: b.step("one", one),
            ten=lambda b: b.step("ten", ten),
            other=lambda b: b.step("plus", plus, 1),
        )

    world = World(run)
    actor = world.actor(state='{"n":0}')
    worker = world.worker()
    worker.claim()
    worker.settle()
    row, (first, second, other) = world.store.rows[actor], worker.attempts
    worker.finish(first)
    worker.core.tick(world.time)
    (merge,) = worker.core.orders().remerges
    worker.merges.append(merge)
    worker.merge()
    row.state, row.state_version = '{"n":100}', row.state_version + 1  # an action
    worker.slow_merges = True
    worker.settle()
    worker.finish(other)
    worker.settle()
    worker.finish(second)
    worker.settle()
    while worker.merges:
        worker.merge()
        worker.settle()
    worker.settle()
    world.output(actor)
    assert world.state(actor) == {"n": 111}


def test_what_a_cancelled_step_wanted_to_change_is_not_written():
    """It had ended, and its change waited for another's, when the race that it was in was decided."""

    def change(step: Any, name: str) -> None:
        step.update(lambda state: {**state, "n": [*state["n"], name]})

    async def run(ctx: Any) -> Any:
        async def late(b: Any) -> None:
            await b.step("change", change, "late")

        async def quick(b: Any) -> None:
            await b.step("plus", plus, 1)

        async def race(b: Any) -> str:
            return (await b.race("first", late=late, quick=quick)).winner  # type: ignore[no-any-return]

        return await ctx.join(
            "all",
            race=race,
            first=lambda b: b.step("change", change, "first"),
            more=lambda b: b.step("plus", plus, 2),
        )

    world = World(run)
    actor = world.actor(state='{"n":[]}')
    worker = world.worker()
    worker.claim()
    worker.settle()
    attempts = {start.args[0]: start for start in worker.attempts}
    worker.slow_merges = True
    worker.finish(attempts["first"])
    worker.settle()
    worker.finish(attempts["late"])
    worker.finish(attempts[1])
    worker.settle()
    while worker.merges:
        worker.merge()
        worker.settle()
    worker.finish(attempts[2])
    worker.settle()
    assert world.output(actor)["race"] == "quick"
    assert world.state(actor) == {"n": ["first"]}
