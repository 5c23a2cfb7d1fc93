"""Keeps workflow code to pure Python and ``ctx`` calls: in ``run`` the ORM is refused at once (NotReplaySafe).

The engine drives coroutines by hand, with no running event loop, so Django's own protection (it refuses the ORM
where a loop runs) does not see them. A thread-local flag says "workflow code runs in this thread", and a wrapper
around every statement of every connection looks at it; what a query costs more is one attribute look-up.

While the flag is set, a loop that runs in this thread (async tests drive the core from one) is hidden, so that
``asyncio.sleep(1)``, ``timeout()`` and ``create_task`` in ``run`` fail with "no running event loop" instead of taking
hold of somebody else's loop and task.
"""

from __future__ import annotations

import asyncio.events
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from django.db import connections
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.backends.signals import connection_created

from rivet_workflows.engine.source import line_of_call
from rivet_workflows.exceptions import NotReplaySafe

MESSAGE = (
    "The database was used in `run` itself ({line}). Its code is run again from the top after every restart, so it "
    "must not read or write anything: move the query into a step "
    '(`await ctx.step("name", function)`), whose result is kept.'
)


class _Here(threading.local):
    running = False


_here = _Here()


class workflow_code:
    """While this is entered, code of ``run`` may run in this thread: no database, no event loop.

    A class: the core's thread enters it several times per commit, and a generator takes three times as long.
    """

    __slots__ = ("_before", "_loop")

    def __enter__(self) -> None:
        self._loop = loop = asyncio.events._get_running_loop()
        self._before = _here.running
        _here.running = True
        if loop is not None:
            asyncio.events._set_running_loop(None)

    def __exit__(self, *_: object) -> None:
        _here.running = self._before
        if self._loop is not None:
            asyncio.events._set_running_loop(self._loop)


@contextmanager
def outside_the_loop() -> Iterator[None]:
    """Hides the loop that runs in this thread, for a short blocking query that its code asked for.

    Django refuses the ORM where a loop runs, rightly as a rule. The first touch of ``step.state`` in an ``async def``
    step is the exception: one indexed look-up, and no ``await`` can be put into an attribute.
    """
    loop = asyncio.events._get_running_loop()
    asyncio.events._set_running_loop(None)
    try:
        yield
    finally:
        asyncio.events._set_running_loop(loop)


def in_workflow_code() -> bool:
    return _here.running


def _refuse(execute: Callable[..., Any], sql: str, params: Any, many: bool, context: Any) -> Any:
    if _here.running:
        raise NotReplaySafe(MESSAGE.format(line=line_of_call() or "unknown line"))
    return execute(sql, params, many, context)


def _watch(connection: BaseDatabaseWrapper, **_: object) -> None:
    if _refuse not in connection.execute_wrappers:
        connection.execute_wrappers.append(_refuse)


def install() -> None:
    """Watch the connections that this process has, and all that it will open. Calling it again does nothing."""
    connection_created.connect(_watch, dispatch_uid="rivet_workflows.worker.guard", weak=False)
    for connection in connections.all(initialized_only=True):
        _watch(connection)


def uninstall() -> None:
    """The reverse of :func:`install`, for the calling thread's connections and for new ones."""
    connection_created.disconnect(dispatch_uid="rivet_workflows.worker.guard")
    for connection in connections.all(initialized_only=True):
        if _refuse in connection.execute_wrappers:
            connection.execute_wrappers.remove(_refuse)
