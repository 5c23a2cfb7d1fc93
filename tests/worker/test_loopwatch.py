"""A step that blocks the loop of async steps: others go on, and it is told where it hangs."""

from __future__ import annotations

import logging
import threading

import pytest

from rivet_workflows.worker.aioloop import StepLoop
from rivet_workflows.worker.attempt import Attempt
from rivet_workflows.worker.connections import Outages
from rivet_workflows.worker.loopwatch import WatchedLoop
from rivet_workflows.worker.orders import StepReport
from tests.worker.support import LONG, environment, start


class Ends:
    """What became of attempts."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self.done: dict[str, StepReport] = {}
        self.late: list[str] = []

    def ended(self, told: list[tuple[Attempt, StepReport]]) -> None:
        with self._changed:
            self.done |= {attempt.start.name: report for attempt, report in told}
            self._changed.notify_all()

    def timed_out(self, attempt: Attempt) -> None:
        with self._changed:
            if attempt.start.name not in self.late:
                self.late.append(attempt.start.name)
            self._changed.notify_all()

    def wait(self, name: str) -> None:
        with self._changed:
            assert self._changed.wait_for(lambda: name in self.done or name in self.late, LONG), name


def test_a_blocked_loop_is_told_of_and_replaced(caplog: pytest.LogCaptureFixture):
    caplog.set_level(logging.ERROR, "rivet_workflows.worker")
    ends, release, env = Ends(), threading.Event(), environment()
    loop = WatchedLoop(
        lambda: StepLoop(1, Outages(), ends.ended, ends.timed_out),
        ends.timed_out,
        every=0.01,
        blocked=0.03,
        replaced=0.1,
    )

    async def blocking(step):
        release.wait(LONG)

    async def fine(step):
        return 1

    async def later(step):
        return 2

    loop.submit([(Attempt(start(blocking, timeout=0.02), env), None), (Attempt(start(fine), env), None)])
    ends.wait("blocking")
    ends.wait("fine")
    loop.submit([(Attempt(start(later), env), None)])
    ends.wait("later")
    assert ends.late == ["blocking"]
    assert ends.done["fine"].value == 1
    assert "release.wait(LONG)" in caplog.text
    release.set()
    loop.stop(LONG)


def test_a_step_that_has_ended_is_heard_of_though_the_next_blocks_the_loop():
    """All that end in one turn of the loop are told of together, and this turn does not end."""
    ends, release, env = Ends(), threading.Event(), environment()
    loop = WatchedLoop(
        lambda: StepLoop(2, Outages(), ends.ended, ends.timed_out),
        ends.timed_out,
        every=0.01,
        blocked=LONG,
        replaced=LONG,
    )

    async def fine(step):
        return 1

    async def blocking(step):
        release.wait(LONG)

    loop.submit([(Attempt(start(fine), env), None), (Attempt(start(blocking), env), None)])
    ends.wait("fine")
    assert "blocking" not in ends.done
    release.set()
    ends.wait("blocking")
    loop.stop(LONG)
