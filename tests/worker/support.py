"""What the tests of the worker's parts share: actors of their own, steps without a core, a place reports go to."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any
from uuid import UUID, uuid4

from rivet_workflows import codec
from rivet_workflows.engine.options import DEFAULTS
from rivet_workflows.registry import registry
from rivet_workflows.worker.context import StepEnvironment
from rivet_workflows.worker.orders import StepReport, StepStart, StepToken
from rivet_workflows.worker.runner import StepRunner
from rivet_workflows.worker.stepclient import StepClient
from rivet_workflows.worker.vars import VarsTable

#: Seconds after which a test that waits for another thread has failed. Nothing waits that long when all is well.
LONG = 20


@dataclass
class States:
    """Stored states, without a database."""

    rows: dict[UUID, tuple[int, str | None]] = field(default_factory=dict)
    loads: int = 0

    def put(self, actor_id: UUID, value: Any, version: int = 1) -> None:
        self.rows[actor_id] = (version, codec.dumps(value))

    def load(self, actor_id: UUID) -> tuple[int, str | None]:
        self.loads += 1
        return self.rows[actor_id]


def environment(states: States | None = None, **more: Any) -> StepEnvironment:
    given: dict[str, Any] = {
        "catalog": registry.get,
        "load_state": (states or States()).load,
        "lock_state": (states or States()).load,
        "now": lambda: 1_700_000_000_000_000,
        "vars": VarsTable(),
        "client": StepClient,
    } | more
    return StepEnvironment(**given)


def start(
    function: Callable[..., Any],
    *args: Any,
    actor: str = "probe",
    actor_id: UUID | None = None,
    **options: Any,
) -> StepStart:
    """An order to run ``function`` as a step of its own name."""
    name = getattr(function, "__name__", "step")
    token = StepToken(actor_id or uuid4(), 1, 1, options.pop("attempt", 1))
    return StepStart(
        token=token,
        actor_name=actor,
        key='["k"]',
        name=name,
        function=function,
        args=args,
        kwargs={},
        options=replace(DEFAULTS, **options),
        idempotency_key="key-1",
        input=None,
    )


class Reports:
    """Collects what a runner delivers; tests wait for it here instead of sleeping."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self.by_token: dict[StepToken, Any] = {}
        self.order: list[StepToken] = []

    def __call__(self, told: list[tuple[StepToken, StepReport]]) -> None:
        with self._changed:
            for token, report in told:
                assert token not in self.by_token, "reported twice"
                self.by_token[token] = report
                self.order.append(token)
            self._changed.notify_all()

    def of(self, *starts: StepStart) -> list[Any]:
        """The reports of these, waited for."""
        with self._changed:
            done = self._changed.wait_for(lambda: all(s.token in self.by_token for s in starts), LONG)
        assert done, "a step has not reported"
        return [self.by_token[s.token] for s in starts]


@contextmanager
def running(env: StepEnvironment | None = None, **options: Any) -> Iterator[tuple[StepRunner, Reports]]:
    """A runner, and the place its reports go to. All its threads have ended afterwards."""
    reports = Reports()
    sizes = {"threads": 4, "concurrency": 10} | options
    runner = StepRunner(env or environment(), reports, **sizes)
    try:
        yield runner, reports
    finally:
        assert runner.stop(LONG), "threads are left over"


def run(function: Callable[..., Any], *args: Any, env: StepEnvironment | None = None, **options: Any) -> Any:
    """The report of one step."""
    with running(env) as (runner, reports):
        order = start(function, *args, **options)
        runner.start([order])
        (report,) = reports.of(order)
    return report
