"""Workflow code has neither a database nor an event loop."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator

import pytest
from django.contrib.auth.models import User
from django.db import connection

from rivet_workflows.exceptions import NotReplaySafe
from rivet_workflows.worker import guard


@pytest.fixture(autouse=True)
def installed() -> Iterator[None]:
    guard.install()
    yield
    guard.uninstall()


@pytest.mark.django_db
def test_the_orm_is_refused_at_once_and_says_what_to_do():
    with guard.workflow_code(), pytest.raises(NotReplaySafe, match=r"ctx\.step"):
        User.objects.count()
    assert User.objects.count() == 0


@pytest.mark.django_db
def test_raw_cursors_and_many_are_refused_too():
    with guard.workflow_code(), connection.cursor() as cursor:
        with pytest.raises(NotReplaySafe):
            cursor.execute("SELECT 1")
        with pytest.raises(NotReplaySafe):
            cursor.executemany("SELECT %s", [(1,)])


@pytest.mark.django_db
def test_other_threads_are_left_alone():
    # What the wrapper looks at belongs to the thread: no query is needed to see that.
    seen: list[bool] = []
    with guard.workflow_code():
        thread = threading.Thread(target=lambda: seen.append(guard.in_workflow_code()))
        thread.start()
        thread.join()
        assert guard.in_workflow_code()
    assert seen == [False]
    assert not guard.in_workflow_code()


@pytest.mark.django_db
def test_installing_twice_watches_once():
    guard.install()
    assert connection.execute_wrappers.count(guard._refuse) == 1


async def test_a_running_loop_is_hidden_and_comes_back():
    loop = asyncio.get_running_loop()
    with guard.workflow_code():
        with pytest.raises(RuntimeError, match="no running event loop"):
            asyncio.get_running_loop()
        with pytest.raises(RuntimeError):
            asyncio.current_task()
    assert asyncio.get_running_loop() is loop


async def test_the_loop_comes_back_after_an_error_too():
    loop = asyncio.get_running_loop()
    with pytest.raises(ValueError, match="x"), guard.workflow_code():
        raise ValueError("x")
    assert asyncio.get_running_loop() is loop
