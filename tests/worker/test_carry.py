"""What the core orders is carried out in an order in which nobody waits for somebody who waits for them."""

from __future__ import annotations

import socket
from typing import Any
from unittest.mock import MagicMock
from uuid import uuid4

import pytest

from rivet_workflows.records import CommitItem, Look
from rivet_workflows.store.errors import UnknownOutcome
from rivet_workflows.worker.carry import IN_A_ROW, Carrier
from rivet_workflows.worker.orders import Orders, StepReport, StepToken

NAMES = ("store", "runner", "inbox", "env", "vars", "hooks", "patience", "failures", "now", "ring", "sleep")


class Hands:
    """A carrier whose deeds are noted in order."""

    def __init__(self, vendor: str = "sqlite") -> None:
        self.done: list[str] = []
        self.parts: Any = MagicMock()
        self.parts.store.vendor = vendor
        self.parts.store.works_apart = vendor == "postgresql"
        self.parts.now.return_value = 1_000_000
        self.parts.core.take_starts.return_value = []
        self.parts.core.take_commits.return_value = []
        self.parts.patience.side_effect = self.notes("verb")
        self.parts.store.commit_group.side_effect = self.notes("commit")
        self.parts.runner.abort_atomic.side_effect = self.notes("abort")
        self.parts.runner.commit_atomic.side_effect = self.notes("answer")
        self.parts.runner.start.side_effect = lambda starts: self.done.append(f"start {starts[0]}")
        self.parts.ring.side_effect = self.notes("ring")
        self.parts.sleep.side_effect = lambda seconds: self.done.append(f"sleep {seconds:.4f}")
        self.carrier = Carrier(self.parts.core, 1, **{name: getattr(self.parts, name) for name in NAMES})

    def notes(self, what: str) -> Any:
        def do(*_: Any, **__: Any) -> list[Any]:
            self.done.append(what)
            return []

        return do


def item() -> CommitItem:
    return CommitItem(uuid4(), 1, 1, 1, "")


def test_atomic_steps_are_answered_before_anything_is_written():
    """On SQLite they hold the one right to write until then: a commit before the answer waited for a minute."""
    hands = Hands()

    hands.carrier.carry(
        Orders(
            looks=[Look(uuid4(), None, 1, 1)],
            commits=[item()],
            atomics=[(StepToken(uuid4(), 1, 1, 1), item())],
            aborts=[StepToken(uuid4(), 1, 1, 1)],
        )
    )

    assert hands.done == ["answer", "abort", "verb", "commit"]


def test_what_is_durable_waits_for_no_other_commit():
    """Steps run while the next group is committed; they stood behind it, and it behind the reading of queues."""
    hands = Hands()
    hands.parts.core.take_starts.return_value = ["by this commit"]
    earlier: Any = ["by an earlier one"]

    hands.carrier.carry(
        Orders(looks=[Look(uuid4(), None, 1, 1)], commits=[item()], starts=earlier, rings=[item()])
    )

    assert hands.done == ["start by an earlier one", "ring", "verb", "commit", "start by this commit"]


def test_sqlite_is_left_to_others_between_two_groups_and_work_counts_as_pause():
    hands = Hands()
    hands.carrier.carry(Orders(commits=[item()]))
    hands.parts.now.return_value += 500
    hands.carrier.carry(Orders(commits=[item()]))
    hands.parts.now.return_value += 2_000
    hands.carrier.carry(Orders(commits=[item()]))
    assert hands.done == ["commit", "sleep 0.0015", "commit", "commit"]

    hands.parts.now.return_value -= 3_600_000_000
    hands.carrier.carry(Orders(commits=[item()]))
    assert hands.done[-2:] == ["sleep 0.0020", "commit"], "a clock that was set back makes no long pause"


class ApartHands(Hands):
    """One whose store leaves it to something else while a commit is made."""

    def __init__(self, pieces: int = 1) -> None:
        super().__init__("postgresql")
        self.socket = 7
        self.parts.inbox.take_reports.return_value = []
        self.parts.inbox.wait_for_reports.side_effect = self.notes("wait")
        self.parts.core.step_done.side_effect = self.notes("told")

        def commit(items: Any, meanwhile: Any) -> list[Any]:
            self.done.append(f"send {len(items)}")
            for _ in range(pieces):
                meanwhile(self.socket)
            self.done.append("answer")
            return []

        self.parts.store.commit_group.side_effect = commit


def test_steps_start_while_the_server_makes_the_next_commit():
    hands = ApartHands()
    hands.parts.core.take_starts.side_effect = [["by the first"], ["by the second"]]
    hands.parts.core.take_commits.side_effect = [[item(), item()], []]
    earlier: Any = ["by an earlier one"]

    hands.carrier.carry(Orders(commits=[item()], starts=earlier))

    assert hands.done == [
        *("send 1", "start by an earlier one", "answer"),
        *("send 2", "start by the first", "answer", "start by the second"),
    ]


def test_steps_that_have_ended_are_told_of_while_a_commit_is_made_and_then_it_waits():
    hands = ApartHands(pieces=3)
    report = (StepToken(uuid4(), 1, 1, 1), StepReport(ok=True))
    hands.parts.inbox.take_reports.side_effect = [[report, report], [report], []]

    hands.carrier.carry(Orders(commits=[item()]))

    assert hands.done == ["send 1", "told", "told", "told", "wait", "answer"]


def test_a_step_starts_also_where_the_commit_broke_before_it_was_sent():
    hands = ApartHands()
    hands.parts.store.commit_group.side_effect = UnknownOutcome("gone")
    started: Any = ["anyway"]
    hands.carrier.carry(Orders(commits=[item()], starts=started))
    assert hands.done == ["start anyway", "verb"]


def test_other_work_has_its_turn_however_many_groups_there_are():
    hands = ApartHands()
    hands.parts.core.take_commits.return_value = [item()]
    hands.carrier.carry(Orders(commits=[item()]))
    assert hands.done.count("answer") == IN_A_ROW


def test_an_error_of_what_is_done_meanwhile_is_not_taken_for_the_commits():
    hands = ApartHands(pieces=2)
    fault = RuntimeError("can't start new thread")
    hands.parts.runner.start.side_effect = fault
    started: Any = ["never"]
    with socket.socketpair()[0] as near:
        near.shutdown(socket.SHUT_RDWR)  # readable, as a socket with an answer is
        hands.socket = near.fileno()
        hands.carrier.carry(Orders(commits=[item()], starts=started))
    assert hands.done == ["send 1", "answer"]
    assert hands.parts.core.committed.called
    with pytest.raises(RuntimeError) as caught:
        hands.carrier.raise_what_failed()
    assert caught.value is fault
