"""The README's first actor works when pasted: into a fresh project, with a worker beside it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
BLOCK = re.compile(r"<!-- readme: (.+?) -->\n```python\n(.*?)```", re.DOTALL)


def blocks() -> dict[str, str]:
    return dict(BLOCK.findall((ROOT / "README.md").read_text()))


def test_the_first_actor_is_short() -> None:
    assert len(blocks()["signups/actors.py"].splitlines()) <= 40


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """``startproject``, ``startapp``, and the README's lines at the ends of the files that they belong to."""
    run(tmp_path, "-m", "django", "startproject", "mysite", ".")
    run(tmp_path, "manage.py", "startapp", "signups")
    pasted = blocks()
    (tmp_path / "signups/actors.py").write_text(pasted["signups/actors.py"])
    for name in ("settings", "urls"):
        with (tmp_path / f"mysite/{name}.py").open("a") as file:
            file.write("\n")
            file.write(pasted[name])
    return tmp_path


def run(folder: Path, *command: str) -> str:
    env = {k: v for k, v in os.environ.items() if k != "DJANGO_SETTINGS_MODULE"} | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, *command], cwd=folder, env=env, capture_output=True, text=True, timeout=50
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.timeout(180)
def test_the_first_actor_works_when_pasted(project: Path) -> None:
    run(project, "manage.py", "migrate", "--verbosity", "0")
    run(project, "manage.py", "check")
    worker = subprocess.Popen(
        [sys.executable, "manage.py", "rivet_worker"],
        cwd=project,
        env=os.environ | {"PYTHONPATH": str(ROOT), "DJANGO_SETTINGS_MODULE": "mysite.settings"},
        stdout=subprocess.DEVNULL,
    )
    try:
        told = run(project, "manage.py", "shell", "-c", blocks()["shell"])
    finally:
        worker.terminate()
        worker.wait(timeout=30)
    assert "confirmed\n" in told
    assert "['ada@example.org: Welcome! Please confirm.', 'ada@example.org: Thank you, Ada.']" in told
