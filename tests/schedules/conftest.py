"""An actor and its schedules, under the testing kit."""

from __future__ import annotations

from typing import Any

import pytest

from rivet_workflows.registry import registry
from tests.schedules.actors import Clockwork, Setter
from tests.sidedb import side, side_source

__all__ = ["side", "side_source"]


@pytest.fixture
def clockwork(rivet: Any) -> Any:
    assert registry.get(Clockwork)
    return rivet.client.get_or_create(Clockwork, "one")


@pytest.fixture
def schedule(clockwork: Any) -> Any:
    return Setter(clockwork, "schedule")


@pytest.fixture
def cron(clockwork: Any) -> Any:
    return Setter(clockwork, "cron")
