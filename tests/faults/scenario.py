"""Runs a fault scenario from a test, in a process of its own: real workers, real signals, real databases."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cluster.cluster import NOT_HERE
from tests.cluster.postgres import binaries

ROOT = Path(__file__).resolve().parents[2]

#: ``RIVET_SUITE=whole``, as in continuous integration: every scenario on every database, in its full length.
WHOLE = os.environ.get("RIVET_SUITE") == "whole"
whole_only = pytest.mark.skipif(not WHOLE, reason="lengthy: RIVET_SUITE is not whole")

SERVERS = [
    pytest.param("postgres", marks=pytest.mark.requires_postgres),
    pytest.param("mariadb", marks=[pytest.mark.requires_mariadb, whole_only]),
]
ON_SERVERS = pytest.mark.parametrize("database", SERVERS)
#: Where real processes are hurt. SQLite needs no server.
EVERY = pytest.mark.parametrize("database", ["sqlite", *SERVERS])
own_server = pytest.mark.skipif(
    binaries() is None, reason="no PostgreSQL is installed to start a server of one's own"
)


def scenario(name: str, *args: str, timeout: float = 600) -> list[dict[str, object]]:
    """Run ``tests.faults.<name>``; the JSON lines it prints. Fails with what it wrote when it does not exit 0."""
    if "mariadb" in args:
        pytest.importorskip("MySQLdb", reason="the driver of the extra mariadb is not installed")
    command = [sys.executable, "-m", f"tests.faults.{name}", *args]
    # The settings are the scenario's own, not those of the tests that start it.
    env = {key: value for key, value in os.environ.items() if key != "DJANGO_SETTINGS_MODULE"}
    ended = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=timeout)
    if ended.returncode == NOT_HERE:
        pytest.skip(ended.stderr.strip().splitlines()[-1])
    assert ended.returncode == 0, ended.stderr[-6000:]
    return [json.loads(line) for line in ended.stdout.splitlines()]
