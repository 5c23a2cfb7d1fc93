"""``make demo ARGS=--check``, as a test. It takes a minute, so it runs only when RIVET_TEST_DEMO=1 asks for it."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests import servers

ROOT = Path(__file__).resolve().parents[2]
asked_for = pytest.mark.skipif(os.environ.get("RIVET_TEST_DEMO") != "1", reason="RIVET_TEST_DEMO is not 1")


def start_check(var: Path, database_url: str = "", *arguments: str) -> subprocess.Popen[str]:
    env = {k: v for k, v in os.environ.items() if k != "DJANGO_SETTINGS_MODULE"}
    env |= {"PYTHONPATH": str(ROOT), "DATABASE_URL": database_url, "DEMO_VAR": str(var)}
    return subprocess.Popen(
        [sys.executable, str(ROOT / "demo_project/demo.py"), "--check", *arguments],
        env=env,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def passes(check: subprocess.Popen[str]) -> str:
    told, _ = check.communicate(timeout=120)
    assert check.returncode == 0, told
    assert "charged twice: none        lost: none" in told
    return told


@asked_for
@pytest.mark.timeout(150)
def test_the_demo_keeps_its_promise_twice_at_the_same_time(tmp_path: Path) -> None:
    started = time.monotonic()
    both = [start_check(tmp_path / "one"), start_check(tmp_path / "two", "", "--seed", "2")]
    for check in both:
        passes(check)
    assert time.monotonic() - started < 90
    assert list(tmp_path.glob("*/demo-*")) == []


@asked_for
@pytest.mark.requires_postgres
@pytest.mark.timeout(150)
def test_the_demo_keeps_its_promise_on_postgresql(tmp_path: Path) -> None:
    assert "PostgreSQL" in passes(start_check(tmp_path, servers.POSTGRES_URL))


@asked_for
@pytest.mark.timeout(60)
def test_a_demo_that_is_told_to_stop_takes_its_children_along(tmp_path: Path) -> None:
    check = start_check(tmp_path)
    assert check.stdout is not None
    for line in check.stdout:
        if line.startswith("Payments:"):
            break
    check.terminate()
    check.communicate(timeout=40)
    assert check.returncode == 130
    (folder,) = tmp_path.glob("demo-*")
    commands = [path.read_bytes() for path in Path("/proc").glob("[0-9]*/environ") if _readable(path)]
    assert not [command for command in commands if str(folder).encode() in command]


def _readable(path: Path) -> bool:
    try:
        path.read_bytes()
    except OSError:
        return False
    return True
