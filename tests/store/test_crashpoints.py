"""The registry of crash points is complete, and a process does die at one."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from rivet_workflows import crashpoints

PACKAGE = Path(crashpoints.__file__).parent
OURS = ["claim", "take-over", "commit", "look", "release", "prune"]


def test_every_call_is_registered_and_the_stores_boundaries_are_there() -> None:
    used: set[str] = set()
    for path in PACKAGE.rglob("*.py"):
        used |= set(re.findall(r'crashpoint\("([^"]+)"\)', path.read_text()))
    assert used <= set(crashpoints.POINTS)
    assert len(set(crashpoints.POINTS)) == len(crashpoints.POINTS)
    assert {f"{when}-{verb}" for verb in OURS for when in ("before", "after")} <= used


def test_hooks_see_the_points_they_pass() -> None:
    seen: list[str] = []
    with crashpoints.hooked(seen.append):
        crashpoints.crashpoint("before-claim")
        with crashpoints.hooked(lambda name: None):
            crashpoints.crashpoint("after-claim")
    crashpoints.crashpoint("before-commit")
    assert seen == ["before-claim"]


def test_an_unknown_point_is_refused() -> None:
    with pytest.raises(ValueError, match="there is no crash point 'nowhere'"):
        crashpoints.kill_at("nowhere")


def test_the_process_dies_the_nth_time() -> None:
    code = (
        "from rivet_workflows.crashpoints import crashpoint\n"
        "for n in range(9): print(n, flush=True); crashpoint('after-commit')"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={"RIVET_CRASH_AT": "after-commit:3", "PYTHONPATH": str(PACKAGE.parent)},
        capture_output=True,
        text=True,
        timeout=50,
    )
    assert done.returncode == -signal.SIGKILL
    assert done.stdout.split() == ["0", "1", "2"]
