"""The plugin in pytest runs of other projects: as good as not there without Django, and with xdist."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

WITHOUT_DJANGO = """
def test_nothing_of_django_is_loaded():
    import sys
    assert not any(name.split(".")[0] == "django" for name in sys.modules)
    assert "rivet_workflows.testing.harness" not in sys.modules
"""

FAILING = """
import random

import pytest
from django.test import TestCase

from rivet_workflows import Actor
from rivet_workflows.testing import RivetTestMixin


def pay(step, *args):
    pass


def declare():
    class Order(Actor):
        async def run(self, ctx):
            await ctx.step("pay", pay)
            await ctx.sleep("rest", 60)
    return Order


def test_shows_histories(rivet):
    rivet.client.create(declare(), "o-1")
    rivet.fail_step("misspelt")
    rivet.run_until_idle()
    assert 0


class Cases(RivetTestMixin, TestCase):
    def test_shows_histories(self):
        self.rivet.client.create(declare(), "o-2")
        self.rivet.run_until_idle()
        assert 0


@pytest.mark.parametrize("number", range(6))
def test_passes(rivet, number):
    rivet.client.create(declare(), "o-3")
    rivet.advance(60)
    assert [str(handle.status()) for handle in rivet.client.list()] == ["completed"]


@pytest.mark.parametrize("rivet_mode", ["parked", "replay"])
def test_modes(rivet, rivet_mode):
    assert rivet.mode == rivet_mode


def test_default_mode(rivet):
    assert rivet.mode == "replay"


def test_a_mode_that_is_none(rivet_mode):
    assert rivet_mode == "replay"
"""


def run(folder, *arguments, **environment):
    settings = {"PYTHONPATH": str(ROOT), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", **environment}
    env = {name: value for name, value in os.environ.items() if name != "DJANGO_SETTINGS_MODULE"} | settings
    command = [sys.executable, "-m", "pytest", "-q", "-c", "/dev/null", "--rootdir", str(folder)]
    command += ["-p", "no:cacheprovider", "-p", "rivet_workflows.testing.plugin", *arguments, str(folder)]
    return subprocess.run(
        command, env=env, capture_output=True, text=True, timeout=50, cwd=folder, check=False
    )


def test_without_django(tmp_path):
    (tmp_path / "test_it.py").write_text(WITHOUT_DJANGO)
    done = run(tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr


def test_failures_show_the_histories(tmp_path):
    (tmp_path / "test_it.py").write_text(FAILING)
    plugins = ("-p", "pytest_django.plugin", "-p", "xdist.plugin", "-n", "2")
    # In memory: this run has a database of the very names that its processes would take.
    where = {"DJANGO_SETTINGS_MODULE": "tests.settings", "RIVET_TEST_DATABASE_URL": ""}
    done = run(tmp_path, *plugins, **where)
    assert "2 failed, 10 passed" in done.stdout, done.stdout + done.stderr
    assert len(re.findall(r"^(-+ |E +)rivet histories", done.stdout, re.MULTILINE)) == 2
    for key in ("o-1", "o-2"):
        assert f'order "{key}": sleeping' in done.stdout
    assert 'never came true: fail of step "misspelt"' in done.stdout
