"""The page, and its table of control operations, cell by cell."""

from __future__ import annotations

import re
from typing import Any

import pytest

from tests.docs.pages import DOCS, run_page

run_page("calling.md", globals())

_ROW = re.compile(r"^\| ([a-z_:, ]+) \| (.+) \| (.+) \| (yes|refused) \|$", re.MULTILINE)
_EFFECTS = {
    (status, operation): cell not in ("nothing", "refused")
    for statuses, *cells in _ROW.findall((DOCS / "calling.md").read_text(encoding="utf-8"))
    for status in re.split(r", (?!poisoned|unreadable)", statuses)
    for operation, cell in zip(("wake", "recover", "replay_from"), cells, strict=True)
    # These two are shown by tests/client/test_control.py and tests/conformance/test_rollback.py.
    if status not in ("running", "rolling_back: rollback_failed")
}


async def other(self, ctx):
    await ctx.step("something-else", ship)  # noqa: F821  of the page


def brought_to(rivet: Any, status: str) -> Any:
    """An order in this status."""
    order = rivet.client.create("order", "order-9")
    if status == "pending":
        return order
    rivet.run_until_idle()
    if status == "sleeping":  # in backoff, so that there is something to recover
        rivet.fail_step("ship")
        order.send("paid", 1)
        rivet.run_until_idle()
    elif status == "paused":
        order.pause()
    elif status == "cancelled":
        order.cancel()
    elif status == "failed":
        rivet.fail_step("ship", times=None)
        order.send("paid", 1)
        rivet.advance(minutes=5)
    elif status == "completed":
        order.send("paid", 1)
        rivet.run_until_idle()
    elif status == "set_aside: diverged":
        order.send("paid", 1)
        rivet.deploy("order", run=other)
        rivet.run_until_idle()
    elif status.startswith("set_aside: poisoned"):
        order.send("paid", 1)
        for _ in range(6):
            rivet.crash_at("ship", "before")
        rivet.advance(minutes=5)
    return order


@pytest.mark.parametrize(("status", "operation"), _EFFECTS)
def test_the_table_of_control_operations(rivet, status, operation):
    order = brought_to(rivet, status)
    expected = status.partition(":")[0]
    assert str(order.status()) == expected
    assert getattr(order, operation)() is _EFFECTS[status, operation]


def test_the_table_is_whole():
    assert len(_EFFECTS) == 24, sorted(_EFFECTS)
