"""The door into the core's thread, and the estimate of the database's time."""

from __future__ import annotations

import socket
import threading
from uuid import uuid4

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rivet_workflows.records import Commit, CommitResult
from rivet_workflows.worker.dbtime import DatabaseTime
from rivet_workflows.worker.inbox import Inbox
from rivet_workflows.worker.orders import StateChange, StepReport
from tests.worker.support import LONG, start

SECOND = 1_000_000


def test_all_that_came_is_taken_at_once_and_only_once():
    inbox, order, actor = Inbox(), start(lambda step: None), uuid4()
    report = StepReport(ok=True)
    inbox.report(order.token, report)
    change = StateChange(None, None, None)
    inbox.remerged(actor, change, None)
    inbox.ring([actor])
    inbox.poll()
    inbox.sweep()
    mail = inbox.take(None)
    assert mail.reports == [(order.token, report)]
    assert mail.remerged == [(actor, change, None)]
    assert mail.rung == {actor}
    assert (mail.poll, mail.sweep) == (True, True)
    again = inbox.take(0)
    assert (again.reports, again.rung, again.poll) == ([], set(), False)


def test_what_comes_before_the_wait_ends_it():
    inbox = Inbox()
    inbox.wake()
    inbox.take(None)  # would wait for ever


def test_a_sleeper_is_roused():
    inbox, taken = Inbox(), []
    thread = threading.Thread(target=lambda: taken.append(inbox.take(LONG)))
    thread.start()
    inbox.poll()
    thread.join(LONG)
    assert taken[0].poll


def test_reports_are_taken_some_at_a_time_and_those_of_atomic_steps_stay():
    inbox = Inbox()
    told = [(start(lambda step: None).token, StepReport(ok=True, atomic=n == 1)) for n in range(4)]
    for token, report in told:
        inbox.report(token, report)
    assert inbox.take_reports(2) == [told[0], told[2]]
    assert inbox.take_reports(2) == [told[3]]
    assert inbox.take_reports(2) == []
    assert inbox.take(None).reports == [told[1]]


def test_reports_behind_many_of_atomic_steps_are_taken():
    inbox = Inbox()
    told = [(start(lambda step: None).token, StepReport(ok=True, atomic=n < 9)) for n in range(11)]
    inbox.reports(told)
    assert inbox.take_reports(8) == told[9:]
    assert inbox.take(None).reports == told[:9]


def test_no_report_overtakes_the_outcome_of_an_atomic_step():
    inbox, order = Inbox(), start(lambda step: None)
    inbox.committed(order.token, CommitResult(uuid4(), Commit.OK))
    inbox.report(order.token, StepReport(ok=True))
    assert inbox.take_reports(8) == []
    mail = inbox.take(None)
    assert (len(mail.committed), len(mail.reports)) == (1, 1)


def test_a_wait_for_a_socket_ends_with_a_report():
    inbox, order, (near, far) = Inbox(), start(lambda step: None), socket.socketpair()
    with near, far:
        far.send(b"x")
        inbox.wait_for_reports(near.fileno())
        near.recv(1)
        thread = threading.Thread(target=inbox.wait_for_reports, args=[near.fileno()])
        thread.start()
        inbox.reports([(order.token, StepReport(ok=True))])
        thread.join(LONG)
        assert not thread.is_alive()
        inbox.wait_for_reports(near.fileno())  # would wait for ever
    assert len(inbox.take_reports(8)) == 1


class Clocks:
    """A monotonic clock and a database's, moved by hand."""

    def __init__(self) -> None:
        self.monotonic = 1000.0
        self.set_back = 0
        self.time = DatabaseTime(lambda: self.monotonic)

    @property
    def database(self) -> int:
        return 1_700_000_000 * SECOND + int(self.monotonic * SECOND) - self.set_back

    def move(self, seconds: float) -> None:
        self.monotonic += seconds

    def ask(self, before: float, after: float) -> None:
        def question() -> int:
            self.move(before)
            now = self.database
            self.move(after)
            return now

        self.time.read(question)


durations = st.floats(min_value=0, max_value=100)


@given(st.lists(st.tuples(durations, durations, durations), min_size=1, max_size=10), durations)
def test_the_estimate_is_never_ahead(readings: list[tuple[float, float, float]], later: float):
    clocks = Clocks()
    for before, after, between in readings:
        clocks.ask(before, after)
        assert clocks.time.now() <= clocks.database
        clocks.move(between)
        assert clocks.time.now() <= clocks.database
    clocks.move(later)
    assert clocks.time.now() <= clocks.database


def test_it_follows_and_a_quick_answer_improves_it():
    clocks = Clocks()
    clocks.ask(0, 2)
    assert clocks.time.now() == clocks.database - 2 * SECOND
    clocks.ask(0, 0)
    assert clocks.time.now() == clocks.database
    clocks.ask(0, 2)
    assert clocks.database - clocks.time.now() < 1000


def test_a_clock_that_is_set_back_is_followed():
    clocks = Clocks()
    clocks.ask(0, 0)
    clocks.set_back = 60 * SECOND
    clocks.ask(0, 0.1)
    assert clocks.time.now() <= clocks.database


def test_before_the_first_reading_there_is_no_time():
    with pytest.raises(RuntimeError):
        DatabaseTime().now()
