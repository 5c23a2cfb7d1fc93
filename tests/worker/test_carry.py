"""What the core orders is carried out in an order in which nobody waits for somebody who waits for them."""

from __future__ import annotations

from typing import Any
from unittest.mock import MagicMock
from uuid import uuid4

from rivet_workflows.records import CommitItem, Look
from rivet_workflows.worker.carry import Carrier
from rivet_workflows.worker.orders import Orders, StepToken

NAMES = ("store", "runner", "inbox", "env", "vars", "hooks", "patience", "failures", "now", "ring", "sleep")


class Hands:
    """A carrier whose deeds are noted in order."""

    def __init__(self) -> None:
        self.done: list[str] = []
        self.parts: Any = MagicMock()
        self.parts.store.vendor = "sqlite"
        self.parts.now.return_value = 1_000_000
        self.parts.core.take_starts.return_value = []
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
