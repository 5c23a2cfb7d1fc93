"""What a step may cost, counted and not timed: a call more in each step is seen here, on any machine."""

from __future__ import annotations

import pytest

from tests.benchmarks.step_overhead import KINDS, calls

pytest.importorskip("psycopg")

#: Calls per step, of functions written in Python and of others: what was counted when the figures of the documentation
#: were measured (129 + 72, 128 + 71 and 152 + 79; five more on Python 3.11), and a little.
BUDGET = {"async def": (138, 76), "def": (137, 75), "async def, looped": (161, 83)}


@pytest.mark.parametrize("kind", KINDS)
def test_a_step_costs_no_more_calls_than_its_budget(kind: str):
    python, others = calls(KINDS[kind]())
    most_python, most_others = BUDGET[kind]
    assert python <= most_python, f"{python:.1f} calls of Python functions per step"
    assert others <= most_others, f"{others:.1f} calls of other functions per step"
