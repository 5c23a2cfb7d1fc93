"""The pytest plugin: fixtures ``rivet`` and ``rivet_mode``, and the histories below a test that failed.

Loaded in every pytest run of a project that has the package installed, so it imports nothing but pytest until a test
asks for it, and needs no Django settings to be there.
"""

from __future__ import annotations

import inspect
from collections.abc import Generator, Iterator
from functools import wraps
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from rivet_workflows.testing.harness import Harness

_DECLARED = pytest.StashKey[Any]()
_HARNESS = pytest.StashKey["Harness"]()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Before any fixture of a test that uses the kit: what is declared from here on is dropped after it."""
    if "rivet" in getattr(item, "fixturenames", ()):
        from rivet_workflows.registry import registry

        item.stash[_DECLARED] = registry.snapshot()


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item: pytest.Item) -> None:
    """After all fixtures."""
    declared = item.stash.get(_DECLARED, None)
    if declared is not None:
        from rivet_workflows.registry import registry

        registry.restore(declared)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """A test that failed shows the histories of its actors."""
    report = yield
    harness = item.stash.get(_HARNESS, None)
    if harness is not None and call.when == "call" and report.failed:
        report.sections.append(("rivet histories", harness.report()))
    return report


@pytest.fixture
def rivet_mode() -> str:
    """``"replay"`` or ``"parked"``; override it, or parametrise it, to run tests in the other mode or in both."""
    return "replay"


@pytest.fixture
def rivet(request: pytest.FixtureRequest, db: None, rivet_mode: Any) -> Iterator[Harness]:
    """Drives actors in the test's own thread and transaction, with a virtual clock."""
    from rivet_workflows.testing.harness import Harness

    item = request.node
    harness = Harness(rivet_mode, declared=item.stash.get(_DECLARED, None))
    item.stash[_HARNESS] = harness
    if inspect.iscoroutinefunction(getattr(item, "obj", None)):
        item.obj = _with_queries_here(item.obj)
    try:
        yield harness
    finally:
        del item.stash[_HARNESS]
        harness.close()


def _with_queries_here(test: Any) -> Any:
    """An async test whose queries are made in its own thread, whose connection holds the test's transaction.

    By default they go to a thread of asgiref's, with a connection of its own that sees nothing of it.
    """
    from rivet_workflows.testing.here import queries_here

    @wraps(test)
    async def wrapped(*args: Any, **kwargs: Any) -> Any:
        return await queries_here(test(*args, **kwargs))

    return wrapped
