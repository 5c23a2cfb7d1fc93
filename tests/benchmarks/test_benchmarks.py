"""The benchmarks work, each in a short version: that everything arrives and ends is asserted, no time is."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from tests.benchmarks.__main__ import EXPERIMENTS
from tests.databases import CHECKOUT
from tests.faults.scenario import whole_only


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "database", [pytest.param("postgres", marks=[pytest.mark.requires_postgres, whole_only]), "sqlite"]
)
def test_each_experiment_runs_to_its_end(database):
    command = [sys.executable, "-m", "tests.benchmarks", ",".join(EXPERIMENTS), "--short"]
    ended = subprocess.run(
        [*command, "--databases", database], cwd=CHECKOUT, capture_output=True, text=True, timeout=580
    )
    assert ended.returncode == 0, ended.stderr[-6000:]
    lines = [json.loads(line) for line in ended.stdout.splitlines() if line.startswith("{")]
    by_name = {line["exp"]: line for line in lines}
    assert set(by_name) == {*EXPERIMENTS, "A-before", "C50-before"}
    assert {line["system"] for line in lines} == {f"rivet_workflows-{database}"}
    assert (by_name["E"]["finished"], by_name["E"]["unique"]) == (True, 200)
    assert [line["held"] for line in lines if line["exp"] == "F"] == [10, 0]
    # 60 iterations with up to four entries each: all but those of the last ones are pruned.
    assert by_name["L"]["rows_left"] < 60
