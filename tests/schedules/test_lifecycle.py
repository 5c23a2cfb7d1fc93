"""A-LIFE: the hooks of taking up and letting go, with the testing kit and in a whole worker."""

from __future__ import annotations

import logging
import threading
from dataclasses import replace
from typing import Any

import pytest

from rivet_workflows import Actor, Queue, action, client
from rivet_workflows.models import Run
from rivet_workflows.registry import registry
from rivet_workflows.worker.hookjobs import HookJob
from rivet_workflows.worker.shell import Worker, WorkerOptions
from tests import sidedb
from tests.sidedb import SideDatabase
from tests.worker.support import LONG


def declare(seen: list[str], **hooks: Any) -> Any:
    """An actor whose hooks write down that they were called; ``hooks`` takes the place of some."""

    class Keeper(Actor):
        state = list
        work = Queue(str)

        def create_vars(self, c):
            seen.append("create_vars")
            return {"open": True}

        def on_create(self, c, given):
            seen.append("on_create")

        async def on_wake(self, c):
            seen.append(f"on_wake {c.vars}")
            c.vars["woken"] = True
            c.state.append("woke")

        def on_sleep(self, c):
            seen.append(f"on_sleep {sorted(c.vars)}")
            c.state.append("slept")

        def on_destroy(self, c):
            seen.append("on_destroy")

        def on_error(self, c, event):
            seen.append(f"on_error {event.source}: {event.error.message}")

        async def run(self, ctx):
            async for turn in ctx.loop("work"):
                message = await turn.queue.next("next")
                await turn.step("do", self.do, message.body)

        def do(self, step, text):
            seen.append(f"do {text} {sorted(step.vars)}")
            if text == "destroy":
                step.destroy()

        @action(read_only=True)
        def get(self, c):
            return c.state

    for name, hook in hooks.items():
        setattr(Keeper, name, hook)
    kind = registry.get(Keeper)
    object.__setattr__(kind, "hooks", {**kind.hooks, **hooks})
    return Keeper


def test_a_life_01_a_life_02_the_order_of_hooks(rivet):
    seen: list[str] = []
    keeper = rivet.client.get_or_create(declare(seen), "k")
    rivet.run_until_idle()
    assert seen == ["on_create", "create_vars", "on_wake {'open': True}"]
    keeper.send("work", "one")
    rivet.run_until_idle()
    rivet.evict()
    assert seen[3:] == ["do one ['open', 'woken']", "on_sleep ['open', 'woken']"]
    assert keeper.get() == ["woke", "slept"]


def test_a_life_04_vars_and_on_wake_at_every_taking_up_and_no_on_sleep_after_a_crash(rivet):
    seen: list[str] = []
    keeper = rivet.client.get_or_create(declare(seen), "k")
    rivet.run_until_idle()
    rivet.crash()
    keeper.send("work", "two")
    rivet.run_until_idle()
    assert seen == [
        "on_create",
        *(["create_vars", "on_wake {'open': True}"] * 2),
        "do two ['open', 'woken']",
    ]


def test_a_life_04_nothing_is_called_for_a_destroyed_actor_but_on_destroy(rivet):
    seen: list[str] = []
    keeper = rivet.client.get_or_create(declare(seen), "k")
    rivet.run_until_idle()
    keeper.destroy()
    rivet.run_until_idle()
    rivet.evict()
    assert seen[-1] == "on_destroy"


def test_a_life_05_a_hook_that_raises_is_logged_and_told_and_the_actor_runs(rivet, caplog):
    seen: list[str] = []

    def broken(self, c):
        c.state.append("not kept")
        raise ConnectionError("no line")

    keeper = rivet.client.get_or_create(declare(seen, on_wake=broken, on_sleep=broken), "k")
    keeper.send("work", "one")
    with caplog.at_level(logging.ERROR):
        rivet.run_until_idle()
        rivet.evict()
    assert "do one ['open']" in seen
    assert [text for text in seen if text.startswith("on_error")] == [
        "on_error on_wake: no line",
        "on_error on_sleep: no line",
    ]
    assert keeper.get() == []
    told = [record.getMessage() for record in caplog.records]
    assert any("on_wake failed" in text for text in told)
    assert any("on_sleep failed" in text for text in told)


def test_a_life_05_create_vars_that_raises_is_the_failure_of_who_needs_them(rivet):
    seen: list[str] = []

    def broken(self, c):
        raise ConnectionError("no line")

    def wake(self, c):
        seen.append("on_wake")

    def sleep(self, c):
        c.vars.close()

    keeper = rivet.client.get_or_create(declare(seen, create_vars=broken, on_wake=wake, on_sleep=sleep), "k")
    keeper.send("work", "one")
    rivet.run_until_idle()
    rivet.advance(minutes=10)
    assert seen[0] == "on_create"
    assert {"on_wake", "on_error create_vars: no line"} <= set(seen)
    assert str(keeper.status()) == "failed"


def test_a_life_08_vars_of_a_class_are_there_in_hooks_too(rivet):
    seen: list[Any] = []

    class Counting(Actor):
        vars = dict

        def on_wake(self, c):
            c.vars["n"] = 1

        async def run(self, ctx):
            await ctx.step("see", self.see)

        def see(self, step):
            seen.append(step.vars)

    rivet.client.get_or_create(Counting, "c")
    rivet.run_until_idle()
    assert seen == [{"n": 1}]


@sidedb.each
def test_a_life_04_a_worker_calls_them_and_hands_back_after_on_sleep(side: SideDatabase):
    seen: list[str] = []
    begun, go = threading.Event(), threading.Event()

    def wake(self, c):
        if self.key == "slow":
            begun.set()
            assert go.wait(LONG)
        seen.append(f"on_wake {self.key}")

    def do(self, step, text):
        seen.append(f"do {text} {sorted(step.vars)}")
        (go if text == "one" else done).set()

    done = threading.Event()
    Keeper = declare(seen, on_wake=wake)
    Keeper.do = do
    slow, quick = client.get_or_create(Keeper, "slow"), client.get_or_create(Keeper, "quick")
    slow.send("work", "two")
    options = WorkerOptions.from_settings(grace=LONG)
    worker = Worker(replace(options, habits=replace(options.habits, heartbeat=0.2)), side.store)
    worker.start()
    try:
        # While a hook of one actor does not end, the worker runs another.
        assert begun.wait(LONG)
        quick.send("work", "one")
        assert done.wait(LONG)
    finally:
        go.set()
        worker.stop()
        assert worker.wait(LONG) == 0
    assert seen.index("do one ['open']") < seen.index("on_wake slow") < seen.index("do two ['open']")
    assert slow.get() == quick.get() == ["slept"]
    assert not Run.objects.using(side.alias).filter(owner_id__isnull=False).exists()


@sidedb.each
def test_a_life_05_hooks_that_never_end_are_told_and_keep_nobody_from_theirs(
    side: SideDatabase, settings: Any, caplog: Any
):
    seen: list[str] = []
    never, served = threading.Event(), threading.Event()
    settings.RIVET_WORKFLOWS = {"DATABASE": side.alias, "HOOK_TIMEOUT": 1.0}

    def wake(self, c):
        seen.append(f"on_wake {self.key}")
        if self.key != "good":
            assert never.wait(LONG)
            c.state.append("late")

    def do(self, step, text):
        seen.append(f"do {self.key}")
        if self.key == "good":
            served.set()

    Keeper = declare(seen, on_wake=wake)
    Keeper.do = do
    # As many as there are threads for hooks.
    stuck = [client.get_or_create(Keeper, str(n)) for n in range(4)]
    options = WorkerOptions.from_settings(grace=LONG)
    worker = Worker(replace(options, habits=replace(options.habits, heartbeat=0.2)), side.store)
    worker.start()
    try:
        for handle in stuck:
            handle.send("work", "x")
        client.get_or_create(Keeper, "good").send("work", "x")
        assert served.wait(LONG)
        for handle in stuck:  # they run without what their hook would have done
            while not [entry for entry in handle.history() if entry.kind == "step" and entry.done_at]:
                assert never.wait(0.05) is False
    finally:
        never.set()
        worker.stop()
        assert worker.wait(LONG) == 0
    assert not any("late" in handle.get() for handle in stuck)
    told = [
        text for r in caplog.records if "HOOK_TIMEOUT" in (text := r.getMessage()) and "on_error" not in text
    ]
    assert len({text.split(":")[0] for text in told}) >= 4


@pytest.mark.parametrize("late", [False, True])
def test_a_life_05_a_hook_ends_once_whether_it_or_its_time_comes_first(late):
    happened: list[Any] = []

    def work(wanted):
        if late:
            job.time_out()
        happened.append(f"wanted {wanted()}")

    job = HookJob(work, lambda: happened.append("ended"), lambda: happened.append("late"))
    job.run()
    job.time_out()
    assert happened == (["late", "ended", "wanted False"] if late else ["wanted True", "ended"])
