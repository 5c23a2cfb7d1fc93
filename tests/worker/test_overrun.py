"""Code of ``run`` that computes for ever: its actor is set aside, and all others of its worker go on."""

from __future__ import annotations

import sys
import threading
from typing import Any

import pytest

from rivet_workflows import Actor, Queue, client
from rivet_workflows.worker.overrun import RunWatch
from tests import sidedb
from tests.sidedb import SideDatabase
from tests.waiting import until
from tests.worker.fleet import Workers
from tests.worker.support import LONG


def plus(step: Any, n: int) -> int:
    return n + 1


def compute() -> None:
    while True:
        sum(range(100))


@pytest.fixture
def short(side: SideDatabase, settings: Any) -> None:
    settings.RIVET_WORKFLOWS |= {"RUN_TIMEOUT": 0.2}


@sidedb.each
@pytest.mark.usefixtures("short")
def test_a_workflow_that_computes_for_ever_is_set_aside_alone(workers: Workers, caplog: Any):
    fixed: list[bool] = []

    class Endless(Actor):
        work = Queue(int)

        async def run(self, ctx: Any) -> int:
            first = await ctx.step("first", plus, 1)
            await ctx.queue.next("work")
            if not fixed:
                compute()
            return int(await ctx.step("then", plus, first))

    class Other(Actor):
        work = Queue(int)

        async def run(self, ctx: Any) -> int:
            message = await ctx.queue.next("work")
            return int(await ctx.step("then", plus, message.body))

    endless, other = client.create(Endless, "1"), client.create(Other, "1")
    workers.start()
    until(lambda: str(endless.status()) == "sleeping")
    endless.send("work", 1)
    until(lambda: str(endless.status()) == "set_aside")
    status = endless.status()
    assert status.reason == "poisoned"
    assert "awaited nothing" in str(status.error)
    assert f"run of Endless {endless.actor_id}" in caplog.text
    assert "compute()" in caplog.text, "the log shows where"
    other.send("work", 1)
    assert other.result(timeout=60) == 2

    fixed.append(True)
    endless.recover()
    assert endless.result(timeout=60) == 3
    assert [entry.name for entry in endless.history() if entry.kind == "step"] == ["first", "then"]


@sidedb.each
@pytest.mark.usefixtures("short")
def test_code_that_catches_whatever_ends_it_is_ended_again(workers: Workers):
    class Stubborn(Actor):
        async def run(self, ctx: Any) -> None:
            try:
                compute()
            except BaseException:
                compute()

    handle = client.create(Stubborn, "1")
    workers.start()
    until(lambda: str(handle.status()) == "set_aside")
    assert handle.status().reason == "poisoned"


def test_code_that_a_debugger_steps_through_takes_its_time(monkeypatch: pytest.MonkeyPatch):
    watch, looked = RunWatch(0.01), threading.Event()
    end = watch._end

    def note(since: float, limit: float) -> None:
        end(since, limit)
        looked.set()

    monkeypatch.setattr(watch, "_end", note)

    def stepped_through(_: None) -> str:
        sys._getframe().f_trace = lambda *_: None
        assert looked.wait(LONG)
        return "to its end"

    watch.start()
    try:
        assert watch(stepped_through, None) == "to its end"
    finally:
        watch.stop()


def test_what_an_earlier_end_left_behind_ends_nobody_else():
    watch = RunWatch(None)
    watch._overran = True  # raised as the call before returned, and out before it was taken note of
    assert watch(len, "ab") == 2
