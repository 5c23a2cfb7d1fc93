"""The index ``tests/known_failures.md`` is true; and what users of other engines met of whole projects."""

from __future__ import annotations

import ast
import json
import os
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from rivet_workflows.worker import maintenance

ROOT = Path(__file__).resolve().parent.parent
INDEX = (ROOT / "tests/known_failures.md").read_text(encoding="utf-8")


def functions(file: str) -> set[str]:
    tree = ast.parse((ROOT / file).read_text(encoding="utf-8"))
    return {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}


def test_every_test_that_the_index_names_is_there():
    named = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", INDEX)
    assert len(named) > 100
    assert [f"{file}::{test}" for file, test in named if test not in functions(file)] == []


def test_every_failure_stands_in_the_index_once_with_a_test_or_a_reason():
    lines = re.findall(r"^\| (BR-\d{3}) \| (.+) \|$", INDEX, re.MULTILINE)
    assert [case for case, times in Counter(case for case, _ in lines).items() if times > 1] == []
    covered, _, apart = INDEX.partition("## Cannot happen here")
    assert all("`tests/" in rest for case, rest in lines if f"| {case} |" in covered)
    assert all("`tests/" not in rest for case, rest in lines if f"| {case} |" in apart)


def test_a_test_that_is_named_after_a_failure_names_one_of_the_index():
    known = set(re.findall(r"^\| BR-(\d{3}) ", INDEX, re.MULTILINE))
    named = {
        number
        for path in (ROOT / "tests").rglob("test_*.py")
        for name in re.findall(r"def (test_\w+)", path.read_text(encoding="utf-8"))
        for number in re.findall(r"br_?(\d{3})", name)
    }
    assert named <= known


def run(code: list[str], **environment: str) -> str:
    """What a process of this project prints. Fails with what it says when it does not exit 0."""
    ended = subprocess.run(
        [sys.executable, *code], cwd=ROOT, env={**os.environ, **environment}, capture_output=True, text=True
    )
    assert ended.returncode == 0, ended.stderr[-4000:] + ended.stdout[-2000:]
    return ended.stdout


@pytest.mark.timeout(300)
def test_br_093_other_commands_start_no_threads(tmp_path):
    code = (
        "import django, threading; django.setup()\n"
        "from django.core.management import call_command\n"
        "for name in ('migrate', 'check', 'showmigrations'): call_command(name)\n"
        "from rivet_workflows.models import Worker\n"
        "print('rows', Worker.objects.count(), 'threads', threading.active_count())"
    )
    said = run(
        ["-c", code],
        DJANGO_SETTINGS_MODULE="tests.settings",
        RIVET_TEST_DATABASE_URL=f"sqlite:///{tmp_path}/db.sqlite3",
    )
    assert said.splitlines()[-1] == "rows 0 threads 1"


@pytest.mark.timeout(300)
def test_br_119_a_project_without_a_default_database_and_with_a_replica(tmp_path):
    said = run(
        ["-m", "tests.elsewhere"],
        DJANGO_SETTINGS_MODULE="tests.elsewheresettings",
        RIVET_ELSEWHERE=str(tmp_path),
        RIVET_TEST_LEDGER=str(tmp_path / "ledger"),
    )
    found = json.loads(said.splitlines()[-1])
    assert found == {"result": 6, "put": 200, "entries": 4, "pages": [200, 200, 200]}


@pytest.mark.timeout(600)
def test_br_155_without_time_zones_and_in_another_one():
    """All of the schedules' tests but those with processes of their own, in a project that keeps naive local times."""
    tests = [f"tests/schedules/{name}.py" for name in ("test_one_shots", "test_cron", "test_lifecycle")]
    run(
        [
            "-m",
            "pytest",
            "-q",
            "-p",
            "no:cacheprovider",
            "-p",
            "no:xdist",
            *tests,
            "tests/client/test_history.py",
        ],
        RIVET_TEST_USE_TZ="0",
        RIVET_TEST_TIME_ZONE="America/New_York",
        RIVET_TEST_DATABASE_URL="",
    )


@pytest.mark.django_db
@pytest.mark.parametrize(("retention", "kept"), [(0, False), (None, True), (3600, True)])
def test_br_153_a_retention_of_nothing_keeps_nothing(rivet, settings, retention, kept):
    from rivet_workflows import Actor
    from rivet_workflows.models import History
    from rivet_workflows.store import get_store

    class Short(Actor):
        async def run(self, ctx):
            await ctx.step("one", nothing)

    settings.RIVET_WORKFLOWS = {"RETENTION": retention}
    rivet.client.create(Short)
    rivet.run_until_idle()
    rivet.advance(seconds=1)
    maintenance.run_once(get_store())
    assert History.objects.exists() is kept


def nothing(step: object) -> None:
    return None
