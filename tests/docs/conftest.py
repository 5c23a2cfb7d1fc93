"""Examples are run in both modes of the testing kit, with the actors of their own page alone."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from rivet_workflows.registry import registry


@pytest.fixture(params=["replay", "parked"])
def rivet_mode(request: pytest.FixtureRequest) -> object:
    return request.param


@pytest.fixture(autouse=True)
def actors_of_the_page(actors_of_the_test_alone: None, request: pytest.FixtureRequest) -> Iterator[None]:
    before = registry.snapshot()
    for kind in getattr(request.module, "actors_declared", ()):
        registry.add(kind)
    yield
    registry.restore(before)
