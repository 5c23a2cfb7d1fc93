"""Whole workers in this process on a real database, with faults between them and it where a test wants some."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import pytest

from rivet_workflows import Actor
from rivet_workflows.worker.shell import Worker, WorkerOptions
from tests.sidedb import SideDatabase
from tests.worker.support import LONG


@dataclass
class Total:
    count: int = 0
    label: str = ""


class Faulty:
    """A store whose verbs fail when told to: ``fail["look"] = [error, None, …]``, one item per call."""

    def __init__(self, store: Any) -> None:
        self._store = store
        self.fail: dict[str, list[Any]] = {}
        self.calls: list[str] = []

    def __getattr__(self, name: str) -> Any:
        verb = getattr(self._store, name)
        if not callable(verb) or name == "clock":
            return verb

        def call(*args: Any, **kwargs: Any) -> Any:
            self.calls.append(name)
            plan = self.fail.get(name)
            step = plan.pop(0) if plan else None
            if isinstance(step, BaseException):
                raise step
            if callable(step):
                return step(verb, *args, **kwargs)
            return verb(*args, **kwargs)

        return call


class Workers:
    """Starts workers in this process and sees to it that each of them ends."""

    def __init__(self, side: SideDatabase) -> None:
        self.side = side
        self.all: list[Worker] = []

    def start(self, store: Any = None, *, habits: dict[str, Any] | None = None, **options: Any) -> Worker:
        told = WorkerOptions.from_settings(grace=LONG)
        told = replace(
            told, habits=replace(told.habits, **{"poll": 0.05, "heartbeat": 0.05} | (habits or {}))
        )
        worker = Worker(replace(told, **options), store or self.side.store)
        self.all.append(worker)
        worker.start()
        return worker

    def run_dry(self, store: Any = None, **options: Any) -> None:
        """One worker, until nothing is left to do, timers included."""
        worker = self.start(store, habits={"until_idle": True}, **options)
        assert worker.wait(LONG) == 0

    def end(self) -> None:
        for worker in self.all:
            worker.stop(grace=0)
        for worker in self.all:
            assert worker.wait(LONG) is not None, "a worker does not end"


@pytest.fixture
def workers(side: SideDatabase) -> Iterator[Workers]:
    workers = Workers(side)
    yield workers
    workers.end()


def worker_rows() -> int:
    from rivet_workflows.models import Worker as Row

    return Row.objects.using(sidedb_alias()).count()


def owned() -> int:
    from rivet_workflows.models import Run

    return Run.objects.using(sidedb_alias()).filter(owner_id__isnull=False).count()


def sidedb_alias() -> str:
    from rivet_workflows.conf import settings

    return settings.DATABASE


@pytest.fixture
def slow() -> Iterator[Any]:
    """An actor that holds a worker in a step until the test lets go."""

    class Slow(Actor):
        inside = threading.Event()
        go = threading.Event()
        attempts: list[int] = []

        async def run(self, ctx):
            await ctx.step("slow", self.slow)

        def slow(self, step):
            self.attempts.append(step.attempt)
            self.inside.set()
            assert self.go.wait(LONG)

    yield Slow
    Slow.go.set()


@pytest.fixture
def chain() -> Any:
    """An actor of five steps that note that they ran."""

    class Chain(Actor):
        ran: list[int] = []

        async def run(self, ctx):
            for n in range(5):
                await ctx.step("mark", self.mark, n)
            return "done"

        def mark(self, step, n):
            self.ran.append(n)

    return Chain
