"""``self.rivet`` for Django's test cases, with or without pytest."""

from __future__ import annotations

from functools import cached_property, wraps
from typing import TYPE_CHECKING, Any

from rivet_workflows.registry import registry
from rivet_workflows.testing.harness import Harness, Mode

if TYPE_CHECKING:
    from unittest import TestCase as _Base
else:
    _Base = object

__all__ = ["RivetTestMixin"]


class RivetTestMixin(_Base):
    """Put it before ``TestCase`` or ``TransactionTestCase``: ``class CheckoutTests(RivetTestMixin, TestCase)``.

    ``self.rivet`` is there in ``setUp``, the test and ``tearDown``; actors that these declare are dropped after the
    test, and a test that fails shows the histories. ``rivet_mode = "parked"`` on the class chooses the other mode.
    """

    rivet_mode: Mode = "replay"

    @cached_property
    def rivet(self) -> Harness:
        """The harness of this test, made at first use."""
        harness = Harness(self.rivet_mode, declared=self.__dict__.get("_rivet_declared"))
        self.addCleanup(harness.close)
        return harness

    def run(self, result: Any = None) -> Any:
        """Run the test, and drop what it declared."""
        declared = self.__dict__["_rivet_declared"] = registry.snapshot()
        test = getattr(self, self._testMethodName)
        # Set on the instance, as Django does for async tests, which are sync by now.
        self.__dict__[self._testMethodName] = self._reporting(test)
        try:
            return super().run(result)
        finally:
            self.__dict__.pop("rivet", None)
            self.__dict__[self._testMethodName] = test
            registry.restore(declared)

    def _reporting(self, test: Any) -> Any:
        @wraps(test)
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            try:
                return test(*args, **kwargs)
            except BaseException as error:
                harness = self.__dict__.get("rivet")
                if harness is not None and isinstance(error, Exception):
                    error.add_note(f"rivet histories:\n{harness.report()}")
                raise

        return wrapped
