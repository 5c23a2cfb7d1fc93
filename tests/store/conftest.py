"""What the store's tests share: the store on the suite's database, actors, and items to commit."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from django.db import connections

from rivet_workflows.records import Claimed, CommitItem, Entry, EntryStatus, Kind
from rivet_workflows.store import get_store
from rivet_workflows.store.store import Store

TYPES = {"order": "code-1"}
_keys = itertools.count()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """All tests here commit for real; afterwards our own tables alone are flushed."""
    for test in items:
        if Path(__file__).parent in test.path.parents:
            test.add_marker(pytest.mark.django_db(transaction=True, available_apps=["rivet_workflows"]))


@pytest.fixture
def store(db: None) -> Store:
    return get_store("default")


@pytest.fixture
def worker(store: Store) -> int:
    return store.register_worker("host", 1, TYPES)


@pytest.fixture
def make(store: Store) -> Callable[..., Any]:
    """Makes an actor; its row."""

    def create(name: str = "order", **more: Any) -> Any:
        actor, created = store.create_actor(name, f'["{next(_keys)}"]', **more)
        assert created
        return actor

    return create


@pytest.fixture
def claimed(store: Store, worker: int, make: Callable[..., Any]) -> Callable[..., list[Claimed]]:
    """Makes and claims some actors, in the order of their ids."""

    def claim(count: int = 1, **more: Any) -> list[Claimed]:
        ids = {make(**more).id for _ in range(count)}
        got, _ = store.claim(worker, TYPES, 1_000)
        return sorted((c for c in got if c.actor_id in ids), key=lambda c: c.actor_id)

    return claim


def item(c: Claimed, **more: Any) -> CommitItem:
    """The next commit of a claimed actor, which moves on with it."""
    made = CommitItem(
        c.actor_id, c.epoch, c.commit_no, more.pop("next_seq", c.next_seq), more.pop("inflight", ""), **more
    )
    c.commit_no += 1
    return made


def row(seq: int, **more: Any) -> Entry:
    """A finished step."""
    values: dict[str, Any] = {
        "scope": "", "name": f"step-{seq}", "kind": Kind.STEP, "status": EntryStatus.COMPLETED, "started_at": 1,
        "done_seq": seq, "done_at": 2, "input": "[]", "input_hash": "ab", "output": "null",
    }  # fmt: skip
    return Entry(seq=seq, **(values | more))


@contextmanager
def thread(target: Callable[[], Any]) -> Iterator[list[Any]]:
    """Run ``target`` in a thread with a connection of its own; its result is in the list after the block."""
    result: list[Any] = []

    def run() -> None:
        try:
            result.append(target())
        except BaseException as error:
            result.append(error)
        finally:
            connections.close_all()

    worker = Thread(target=run)
    worker.start()
    yield result
    worker.join(30)
    assert not worker.is_alive()
