"""Running steps: on threads and on the loop, whatever the user's code does. Waits are for events, never for time."""

from __future__ import annotations

import asyncio
import threading
from contextvars import ContextVar
from functools import partial
from typing import Any

import pytest
from asgiref.sync import sync_to_async

from rivet_workflows.exceptions import CriticalError
from tests.worker.support import LONG, Reports, run, running, start

both = pytest.mark.parametrize("kind", ["def", "async"])


def make(kind: str, body):
    """``body`` as a step of that kind."""
    if kind == "def":
        return body

    async def step(*args):
        return body(*args)

    return step


class NeedsTwo(Exception):
    def __init__(self, a, b):
        super().__init__(f"{a} and {b}")


class Broken(Exception):
    def __str__(self):
        raise RuntimeError("no text")


class VeryBroken(Exception):
    def __str__(self):
        raise SystemExit(3)


class HoldsALock(Exception):
    def __init__(self):
        super().__init__("locked")
        self.lock = threading.Lock()


def deep(n=0):
    return deep(n + 1)


# -- results ---------------------------------------------------------------------------------------------


@both
def test_a_result_is_what_a_replay_returns(kind):
    report = run(make(kind, lambda step: {"a": (1, 2)}))
    assert report.ok
    assert report.value == {"a": (1, 2)}
    assert isinstance(report.output, str)


@both
def test_arguments_arrive_after_the_context(kind):
    assert run(make(kind, lambda step, a, b: [step.attempt, a, b]), 1, 2, attempt=3).value == [3, 1, 2]


@both
def test_the_context_can_be_left_out(kind):
    assert run(make(kind, lambda a: a + 1), 1, context=False).value == 2


def test_partials_and_callables_are_recognised_as_async():
    async def charge(step, n):
        return n

    class Charge:
        async def __call__(self, step, n):
            return n

    assert run(partial(charge, n=7)).value == 7
    assert run(Charge(), 8).value == 8


def test_a_decorator_may_hide_an_async_def():
    async def charge(step):
        await asyncio.sleep(0)
        return threading.current_thread().name

    def decorated(step):
        return charge(step)

    assert run(decorated).value == "rivet-async"


@both
def test_a_result_that_cannot_be_kept_is_a_failure_that_says_so(kind):
    report = run(make(kind, lambda step: threading.Lock()))
    assert not report.ok
    assert report.error.is_a("SerializationError")
    assert "result of step" in report.error.message


@both
def test_a_result_beyond_the_limit_is_refused(kind, settings):
    settings.RIVET_WORKFLOWS = {"MAX_PAYLOAD": 1024}
    report = run(make(kind, lambda step: "x" * 2000))
    assert report.error.is_a("PayloadTooLarge")


# -- failures --------------------------------------------------------------------------------------------


@both
@pytest.mark.parametrize(
    "error",
    [
        ValueError("no"),
        NeedsTwo(1, 2),
        HoldsALock(),
        SystemExit(1),
        KeyboardInterrupt(),
        GeneratorExit(),
        BaseException("base"),
        ExceptionGroup("many", [ValueError("a"), TypeError("b")]),
        CriticalError("stop"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_whatever_is_raised_is_reported_and_the_worker_lives(kind, error):
    def fail(step):
        raise error

    with running(threads=1) as (runner, reports):
        one, two = start(make(kind, fail)), start(make(kind, lambda step: "alive"))
        runner.start([one, two])
        failed, alive = reports.of(one, two)
    assert not failed.ok
    assert failed.error.is_a(type(error).__name__)
    assert str(error) in failed.error.message
    assert "in fail" in failed.error.traceback
    assert alive.value == "alive"


@both
@pytest.mark.parametrize("error", [Broken(), VeryBroken()], ids=lambda error: type(error).__name__)
def test_an_exception_without_a_text_is_reported_by_its_type(kind, error):
    def fail(step):
        raise error

    report = run(make(kind, fail))
    assert report.error.is_a(type(error).__name__)


@both
def test_endless_recursion_is_a_failure(kind):
    assert run(make(kind, lambda step: deep())).error.is_a("RecursionError")


@both
def test_the_cause_is_in_the_traceback(kind):
    def fail(step):
        try:
            raise KeyError("inner")
        except KeyError as error:
            raise ValueError("outer") from error

    report = run(make(kind, fail))
    assert "KeyError: 'inner'" in report.error.traceback
    assert "worker/attempt.py" not in report.error.traceback


async def _exit():
    raise SystemExit(9)


def test_system_exit_in_a_task_of_a_step_does_not_end_the_loop():
    async def spawn(step):
        task = asyncio.ensure_future(_exit())
        await asyncio.sleep(0)
        return task.done()

    with running() as (runner, reports):
        one = start(spawn)
        runner.start([one])
        assert reports.of(one)[0].ok
        two = start(make("async", lambda step: 2))
        runner.start([two])
        assert reports.of(two)[0].value == 2


# -- timeouts, cancels, the end --------------------------------------------------------------------------


def test_a_def_step_that_runs_too_long_is_reported_and_its_late_result_dropped():
    release, ended, seen = threading.Event(), threading.Event(), []

    def slow(step):
        release.wait(LONG)
        seen.append(step.is_cancelled())
        ended.set()
        return "late"

    with running() as (runner, reports):
        order = start(slow, timeout=0.01)
        runner.start([order])
        (report,) = reports.of(order)
        release.set()
        assert ended.wait(LONG)
    assert report.timed_out
    assert not report.ok
    assert report.effects is None
    assert report.error.is_a("TimeoutError")
    assert seen == [True]
    assert len(reports.order) == 1


def test_an_async_step_that_runs_too_long_is_cancelled():
    cancelled = threading.Event()

    async def slow(step):
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.set()
            raise

    assert run(slow, timeout=0.01).timed_out
    assert cancelled.wait(LONG)


def test_an_async_step_that_ignores_its_cancellation_reports_nothing_more():
    async def stubborn(step):
        for _ in range(2):
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                continue
        return "late"

    with running(concurrency=1) as (runner, reports):
        one, two = start(stubborn, timeout=0.01), start(make("async", lambda step: 2))
        runner.start([one, two])
        first, second = reports.of(one, two)
    assert first.timed_out
    assert second.value == 2


def test_stuck_threads_are_replaced_up_to_twice_their_number():
    release, exhausted = threading.Event(), threading.Event()

    def stuck(step):
        release.wait(LONG)

    with running(threads=2, exhausted=exhausted.set) as (runner, reports):
        first = [start(stuck, timeout=0.01) for _ in range(2)]
        runner.start(first)
        reports.of(*first)
        fine = start(lambda step: "fine")
        runner.start([fine])
        assert reports.of(fine)[0].value == "fine"
        assert not exhausted.is_set()
        second = [start(stuck, timeout=0.01) for _ in range(2)]
        runner.start(second)
        reports.of(*second)
        assert exhausted.wait(LONG)
        release.set()


@both
def test_a_cancelled_step_reports_nothing(kind):
    begun, release, over = threading.Event(), threading.Event(), []

    def slow(step):
        begun.set()
        release.wait(LONG)
        over.append(step.is_cancelled())

    async def slow_async(step):
        begun.set()
        await sync_to_async(release.wait)(LONG)

    with running() as (runner, reports):
        order = start(slow if kind == "def" else slow_async)
        runner.start([order])
        assert begun.wait(LONG)
        runner.cancel([order.token])
        assert runner.running == 0
        release.set()
        other = start(lambda step: 1)
        runner.start([other])
        reports.of(other)
    assert order.token not in reports.by_token


def test_cancelling_at_random_instants_costs_no_thread_and_no_report_twice():
    with running(threads=2) as (runner, reports):
        orders = [start(lambda step: None) for _ in range(2000)]
        for order in orders:
            runner.start([order])
            runner.cancel([order.token])
        last = start(lambda step: "last")
        runner.start([last])
        assert reports.of(last)[0].value == "last"
        assert runner.running == 0
        assert runner._threads.count <= 2


def test_abandoning_reports_what_runs_and_what_waits():
    begun, release = threading.Event(), threading.Event()

    def slow(step):
        begun.set()
        release.wait(LONG)

    async def slow_async(step):
        await asyncio.Event().wait()

    with running(threads=1) as (runner, reports):
        orders = [start(slow), start(slow), start(slow_async)]
        runner.start(orders)
        assert begun.wait(LONG)
        runner.abandon()
        assert [report.abandoned for report in reports.of(*orders)] == [True, True, True]
        release.set()


def test_threads_are_few_while_nothing_blocks_and_more_when_it_does():
    with running(threads=8) as (runner, reports):
        orders = [start(lambda step: None) for _ in range(50)]
        runner.start(orders)
        reports.of(*orders)
        few = runner._threads.count
        barrier = threading.Barrier(8)
        blocked = [start(lambda step: barrier.wait(LONG) and None) for _ in range(8)]
        runner.start(blocked)  # passes only when all eight run at the same time
        assert all(report.ok for report in reports.of(*blocked))
        assert runner._threads.count == 8
    assert few < 8


def test_steps_do_not_see_each_others_context_variables():
    variable: ContextVar[str] = ContextVar("variable", default="clean")

    def dirty(step):
        variable.set("dirty")
        return variable.get()

    async def dirty_async(step):
        return dirty(step)

    with running(threads=1) as (runner, reports):
        orders = [start(dirty), start(lambda step: variable.get()), start(dirty_async)]
        runner.start(orders)
        assert [report.value for report in reports.of(*orders)] == ["dirty", "clean", "dirty"]
        after = start(make("async", lambda step: variable.get()))
        runner.start([after])
        assert reports.of(after)[0].value == "clean"


def test_no_more_async_steps_run_at_a_time_than_told():
    running_now, most = 0, 0
    release = threading.Event()

    async def step(step):
        nonlocal running_now, most
        running_now += 1
        most = max(most, running_now)
        await asyncio.sleep(0)
        running_now -= 1

    with running(concurrency=3) as (runner, reports):
        orders = [start(step) for _ in range(20)]
        runner.start(orders)
        reports.of(*orders)
        release.set()
    assert most == 3


def test_an_errand_runs_and_may_fail():
    done = threading.Event()
    with running() as (runner, _):
        runner.errand(lambda: print(1 // 0))
        runner.errand(done.set)
        assert done.wait(LONG)


def test_async_steps_share_few_threads():
    names: list[str] = []

    async def step(step):
        names.append(await sync_to_async(lambda: threading.current_thread().name)())

    with running(concurrency=5) as (runner, reports):
        for _ in range(10):
            orders = [start(step) for _ in range(10)]
            runner.start(orders)
            assert all(report.ok for report in reports.of(*orders))
    assert len(names) == 100
    assert len(set(names)) <= 5


def test_a_runner_that_ran_nothing_stops():
    with running():
        pass


def test_reports_refuses_a_second_report():
    reports: Any = Reports()
    order = start(lambda step: None)
    reports([(order.token, None)])
    with pytest.raises(AssertionError):
        reports([(order.token, None)])
