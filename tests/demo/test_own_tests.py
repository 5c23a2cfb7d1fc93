"""The demo project's own tests, run as the demo project runs them: with its settings, in a pytest of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.metadata import entry_points
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.timeout(300)
@pytest.mark.parametrize("app", ["shop", "patterns"])
def test_the_demo_projects_own_tests_pass(app: str) -> None:
    env = {k: v for k, v in os.environ.items() if not k.startswith(("DJANGO_", "PYTEST_", "RIVET_"))}
    # In a checkout that is not installed, the kit's plugin has no entry point to be found by.
    known = "rivet_workflows" in entry_points(group="pytest11").names
    plugin = [] if known else ["-p", "rivet_workflows.testing.plugin"]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", *plugin, app],
        cwd=ROOT / "demo_project",
        env=env | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
