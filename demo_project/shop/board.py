"""What the shop's page shows: one actor that all orders report to, so that a page needs one WebSocket.

Imported by ``actors.py``, which is how it is found.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from rivet_workflows import Actor, Event, Queue, action

#: Rows that are kept; the orders themselves stay.
ROWS = 100


@dataclass
class Row:
    """One line of the table. The card is not in it: whoever may see the board need not see cards."""

    order: str
    sku: str
    quantity: int
    total: int
    status: str
    reminders: int
    actor: str


@dataclass
class BoardState:
    """The rows by order, oldest first."""

    rows: dict[str, Row] = field(default_factory=dict)


class OrderBoard(Actor):
    """The latest orders. A loop that takes what has come in meanwhile, many at a time."""

    state = BoardState
    changes = Queue(Row)
    order_changed = Event(Row)

    async def run(self, ctx: Any) -> None:
        async for turn in ctx.loop("board"):
            messages = await turn.queue.next_batch("wait-changes", names=[OrderBoard.changes], count=50)
            await turn.step(show_changes, [message.body for message in messages])

    @action(read_only=True)
    def get_rows(self, c: Any) -> list[Row]:
        return list(c.state.rows.values())


def show_changes(step: Any, changes: list[Row]) -> None:
    """Harmless when repeated: a row is set, not counted."""
    rows = step.state.rows
    for row in changes:
        rows[row.order] = row
        step.broadcast("order_changed", row)
    for order in list(rows)[:-ROWS]:
        del rows[order]
