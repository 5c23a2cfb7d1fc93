"""What the core orders is carried out in an order in which nobody waits for somebody who waits for them."""

from __future__ import annotations

from typing import Any
from unittest.mock import MagicMock
from uuid import uuid4

from rivet_workflows.records import CommitItem, Look
from rivet_workflows.worker.carry import Carrier
from rivet_workflows.worker.orders import Orders, StepToken


def test_atomic_steps_are_answered_before_anything_is_written():
    """On SQLite they hold the one right to write until then: a commit before the answer waited for a minute."""
    done: list[str] = []
    parts: Any = MagicMock()
    parts.store.vendor = "sqlite"

    def does(what: str) -> Any:
        def do(*_: Any) -> list[Any]:
            done.append(what)
            return []

        return do

    parts.patience.side_effect = does("verb")
    parts.store.commit_group.side_effect = does("commit")
    parts.runner.abort_atomic.side_effect = does("abort")
    parts.runner.commit_atomic.side_effect = does("answer")
    names = ("store", "runner", "inbox", "env", "vars", "hooks", "patience", "failures", "now", "ring")
    carrier = Carrier(parts.core, 1, **{name: getattr(parts, name) for name in names})
    item = CommitItem(uuid4(), 1, 1, 1, "")

    carrier.carry(
        Orders(
            looks=[Look(uuid4(), None, 1, 1)],
            commits=[item],
            atomics=[(StepToken(uuid4(), 1, 1, 1), item)],
            aborts=[StepToken(uuid4(), 1, 1, 1)],
        )
    )

    assert done == ["answer", "abort", "verb", "commit"]
