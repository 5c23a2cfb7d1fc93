"""``rivet.js``: its own tests, and that Django serves it."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest
from django.contrib.staticfiles import finders


def test_it_is_served_as_a_static_file():
    assert finders.find("rivet_workflows/rivet.js")


def test_a_client_05_a_client_06_a_client_07_a_client_08_its_own_tests():
    node = shutil.which("node")
    if node is None:
        pytest.skip("there is no node to run JavaScript")
    module = Path(str(finders.find("rivet_workflows/rivet.js")))
    tests = Path(__file__).with_name("rivet.test.mjs")
    done = subprocess.run(
        [node, "--test", str(tests)],
        env=os.environ | {"RIVET_JS": str(module)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
