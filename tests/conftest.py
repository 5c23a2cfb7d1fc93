"""Fixtures and marks for all tests.

``@pytest.mark.requires_postgres`` (``_redis``, ``_mariadb``, ``_chromium``): the test is skipped, with the reason in
the summary, where that server or program is missing. With ``RIVET_REQUIRE_SERVERS=1``, as in CI, it fails instead.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from functools import cache

import pytest

from rivet_workflows.registry import registry
from rivet_workflows.testing import plugin
from tests import servers


def pytest_configure(config: pytest.Config) -> None:
    """The package's own plugin, where no entry point loads it: these tests also run from a checkout alone."""
    if not config.pluginmanager.has_plugin("rivet_workflows"):
        config.pluginmanager.register(plugin, "rivet_workflows")


@cache
def _missing(marker: str) -> str | None:
    return servers.missing(marker)


@pytest.fixture(autouse=True)
def actors_of_the_test_alone(request: pytest.FixtureRequest) -> Iterator[None]:
    """A test sees the actors of installed apps, of its own module and of its own folder; what it declares is
    forgotten after it."""
    before = registry.snapshot()
    registry.restore({name: t for name, t in before.items() if _seen_from(t.cls.__module__, request)})
    yield
    registry.restore(before)


def _seen_from(module: str, request: pytest.FixtureRequest) -> bool:
    if not module.startswith("tests."):
        return True
    own = request.node.path.relative_to(request.config.rootpath).with_suffix("").parts
    return module.split(".")[:2] == list(own[:2])


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Files that take minutes first, so that no process has one of them left when the others are through."""
    lengthy = ("tests/faults/", "tests/benchmarks/")
    items.sort(key=lambda item: not item.nodeid.startswith(lengthy))


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    for marker in servers.MARKERS:
        if item.get_closest_marker(marker) is None:
            continue
        reason = _missing(marker)
        if reason is None:
            continue
        if os.environ.get("RIVET_REQUIRE_SERVERS") == "1":
            pytest.fail(f"RIVET_REQUIRE_SERVERS=1, but {reason}", pytrace=False)
        pytest.skip(reason)
