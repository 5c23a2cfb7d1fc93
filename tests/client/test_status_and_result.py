"""What callers see of a workflow: its status, its result."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from django.db import transaction

from rivet_workflows import (
    ActorNotFound,
    ErrorInfo,
    JoinError,
    QueueTimeout,
    ResultTimeout,
    RivetError,
    StepExhausted,
    WorkflowCancelled,
    WorkflowFailed,
    client,
)
from rivet_workflows.client import ActorState, waiting
from tests.client import worker_side
from tests.client.shop import Cart, Order
from tests.client.worker_side import AT, Blocked, Kind

pytestmark = pytest.mark.django_db

WHEN = datetime(2023, 11, 14, 22, 13, 20, tzinfo=UTC)


@pytest.fixture
def order():
    return client.create(Order, "o-1")


def step(seq=1, **values):
    return {"s": seq, "p": "", "n": f"step-{seq}", "k": Kind.STEP, "t": AT, "a": 1} | values


def sleep(seq=1, **values):
    return {"s": seq, "p": "", "n": f"sleep-{seq}", "k": Kind.SLEEP, "t": AT, "d": AT + 60_000_000} | values


def message(seq=1, **values):
    return {"s": seq, "p": "", "n": f"wait-{seq}", "k": Kind.MESSAGE, "t": AT, "q": ["orders"]} | values


def test_an_actor_without_workflow_is_idle():
    status = client.create(Cart, 1).status()
    assert status.state is ActorState.IDLE
    assert str(status) == "idle"


def test_a_workflow_that_no_worker_has_taken_up_is_pending(order):
    assert str(order.status()) == "pending"
    assert order.status().since is not None


def test_a_running_step_is_running(order):
    worker_side.open_entries(order, step(), owner=7)
    assert order.status() == client.ActorStatus(ActorState.RUNNING, since=WHEN)


def test_a_timer_sleeps_until_it_is_due(order):
    worker_side.open_entries(order, sleep())
    status = order.status()
    assert (str(status), status.since, status.wake_at) == ("sleeping", WHEN, WHEN + timedelta(minutes=1))
    assert status.waiting_for is None


def test_a_wait_for_messages_says_for_which(order):
    worker_side.open_entries(order, message(1), message(2, q=["control", "orders"], d=AT + 1_000_000))
    status = order.status()
    assert (str(status), status.waiting_for) == ("sleeping", ("orders", "control"))
    assert status.wake_at == WHEN + timedelta(seconds=1)
    worker_side.open_entries(order, message(1), message(2, q=None))
    assert order.status().waiting_for == ()


def test_a_step_in_backoff_sleeps_until_its_next_attempt(order):
    worker_side.open_entries(order, step(b=AT + 5_000_000))
    assert str(order.status()) == "sleeping"
    assert order.status().wake_at == WHEN + timedelta(seconds=5)


def test_one_running_branch_is_enough_to_be_running(order):
    join = {"s": 1, "p": "", "n": "j", "k": Kind.JOIN, "t": AT, "bn": ["a", "b"]}
    worker_side.open_entries(order, join, sleep(2), step(3))
    assert str(order.status()) == "running"


def test_nothing_but_open_structure_with_nobody_at_work_is_pending(order):
    worker_side.open_entries(order, {"s": 1, "p": "", "n": "l", "k": Kind.LOOP, "t": AT, "i": 0})
    assert str(order.status()) == "pending"


def test_rolling_back(order):
    worker_side.open_entries(order, rb={"at": 1}, owner=1)
    assert str(order.status()) == "rolling_back"


@pytest.mark.parametrize(
    ("blocked", "state", "reason"),
    [
        (Blocked.PAUSED, "paused", None),
        (Blocked.DIVERGED, "set_aside", "diverged"),
        (Blocked.POISONED, "set_aside", "poisoned"),
        (Blocked.UNREADABLE, "set_aside", "unreadable"),
        (Blocked.ROLLBACK_FAILED, "rolling_back", "rollback_failed"),
    ],
)
def test_blocked(order, blocked, state, reason):
    worker_side.block(order, blocked)
    assert (str(order.status()), order.status().reason) == (state, reason)


def test_the_end_of_a_run_in_its_status(order):
    worker_side.finish(order, 5)
    assert (str(order.status()), order.status().since, order.status().error) == ("completed", WHEN, None)
    worker_side.fail(order, ValueError("broken"))
    status = order.status()
    assert str(status) == "failed"
    assert status.error is not None
    assert status.error.is_a("ValueError")
    assert status.error.message == "broken"
    worker_side.cancelled(order)
    assert str(order.status()) == "cancelled"


def test_a_destroyed_actor_has_no_status(order):
    order.destroy()
    for ask in (order.status, order.history, order.result):
        with pytest.raises(ActorNotFound):
            ask()


class TestResult:
    def test_a_completed_workflow_gives_what_it_returned(self, order):
        worker_side.finish(order, {"paid": (1, 2), "at": WHEN})
        assert order.result() == {"paid": (1, 2), "at": WHEN}

    def test_a_failed_one_raises_with_the_record_of_what_failed(self, order):
        worker_side.fail(order, ValueError("broken"))
        with pytest.raises(WorkflowFailed) as caught:
            order.result()
        assert caught.value.error is not None
        assert caught.value.error.is_a("ValueError")
        assert "broken" in str(caught.value)

    def test_our_own_errors_come_back_as_they_were(self, order):
        info = ErrorInfo.from_exception(OSError("net down"))
        worker_side.fail(order, StepExhausted("gone", step_name="charge", attempts=4, error=info))
        with pytest.raises(StepExhausted) as caught:
            order.result()
        assert (caught.value.step_name, caught.value.attempts, caught.value.kind) == (
            "charge",
            4,
            "exhausted",
        )
        assert caught.value.error is not None
        assert caught.value.error.is_a("OSError")
        worker_side.fail(order, JoinError("two", errors={"a": info, 1: info}))
        with pytest.raises(JoinError) as caught_join:
            order.result()
        assert list(caught_join.value.errors) == ["a", 1]
        worker_side.fail(order, QueueTimeout("late"))
        with pytest.raises(QueueTimeout):
            order.result()

    def test_a_cancelled_one_raises(self, order):
        worker_side.cancelled(order)
        with pytest.raises(WorkflowCancelled):
            order.result()

    def test_it_waits_until_the_timeout(self, order):
        with pytest.raises(ResultTimeout, match=r"0\.05 seconds; it goes on"):
            order.result(timeout=0.05)
        with pytest.raises(TimeoutError):
            order.result(timeout=timedelta(0))

    def test_it_waits_for_the_end(self, order):
        def drive(look, timeout):
            assert look() is None
            worker_side.finish(order, 7)
            return look()

        waiting.set_driver(drive)
        try:
            assert order.result(timeout=3) == 7
        finally:
            waiting.set_driver(None)

    def test_a_set_aside_actor_has_no_result_yet(self, order):
        worker_side.block(order, Blocked.POISONED)
        with pytest.raises(ResultTimeout, match=r"it is set aside \(poisoned\)$"):
            order.result(timeout=0)
        worker_side.block(order, Blocked.ROLLBACK_FAILED)
        with pytest.raises(ResultTimeout, match=r"it is stuck in its rollback \(rollback_failed\)$"):
            order.result(timeout=0)
        worker_side.block(order, Blocked.PAUSED)
        with pytest.raises(ResultTimeout, match=r"it is paused$"):
            order.result(timeout=0)

    def test_d_24_inside_a_transaction_it_is_refused(self, order):
        worker_side.finish(order, 1)
        with transaction.atomic(), pytest.raises(RuntimeError, match=r"result\(\)"):
            order.result(timeout=1)

    def test_an_actor_without_workflow_has_none(self):
        with pytest.raises(RivetError, match="no run method"):
            client.create(Cart, 1).result(timeout=1)
