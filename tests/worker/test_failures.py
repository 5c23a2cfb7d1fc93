"""The log lines of failures."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest

from rivet_workflows.exceptions import ErrorInfo
from rivet_workflows.worker.failures import what_happened
from rivet_workflows.worker.orders import ErrorEvent


@pytest.mark.parametrize(
    ("source", "given", "text"),
    [
        ("workflow", {}, "the workflow failed"),
        ("workflow", {"set_aside": "diverged"}, "set aside"),
        ("workflow", {"set_aside": "poisoned"}, "set aside"),
        ("workflow", {"set_aside": "rollback_failed"}, "its rollback is stuck"),
        ("step", {"step_name": "pay", "attempt": 4}, 'step "pay" failed, attempt 4, the last'),
        (
            "step",
            {"step_name": "pay", "attempt": 1, "will_retry": True, "retry_delay": 0.1},
            'step "pay" failed, attempt 1; next in 0.1 s',
        ),
        ("rollback", {"step_name": "pay"}, 'the rollback of step "pay" failed'),
        ("on_wake", {}, "on_wake failed"),
    ],
)
def test_it_says_what_failed_and_what_comes_next(source: str, given: dict[str, Any], text: str) -> None:
    error = ErrorInfo.from_exception(OSError("net down"))
    assert what_happened(ErrorEvent(UUID(int=1), "order", '["o-1"]', source, error, **given)) == text
