"""What the store's tests share: the store on the suite's database, actors, and items to commit."""

from __future__ import annotations

import itertools
import tempfile
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier
from typing import Any, cast

import pytest
from django.db import connections

from rivet_workflows.records import Claimed, CommitItem, Entry, EntryStatus, Kind
from rivet_workflows.store import get_store
from rivet_workflows.store.store import Store
from tests.databases import database_from_url

TYPES = {"order": "code-1"}
_keys = itertools.count()


#: Two connections to one database. In memory SQLite does not lock as it does in production, so there it is a file.
LEFT = "left" if connections["default"].vendor == "sqlite" else "default"
RIGHT = "right"


def _add_aliases() -> None:
    config = dict(connections.settings["default"])
    if LEFT == "left":
        config = database_from_url(f"sqlite:///{Path(tempfile.mkdtemp()) / 'rivet.sqlite3'}")
        connections.settings[LEFT] = _complete(config)
    connections.settings[RIGHT] = _complete(config) | {"TEST": {"MIRROR": LEFT}}


def _complete(config: dict[str, Any]) -> dict[str, Any]:
    return cast(dict[str, Any], connections.configure_settings({"default": dict(config)})["default"])


_add_aliases()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """All tests here commit for real; afterwards our own tables alone are flushed."""
    for test in items:
        if Path(__file__).parent in test.path.parents:
            databases = (
                {"default", LEFT, RIGHT} if "pair" in getattr(test, "fixturenames", ()) else {"default"}
            )
            test.add_marker(
                pytest.mark.django_db(
                    transaction=True, databases=databases, available_apps=["rivet_workflows"]
                )
            )


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Empty the tables by DELETE: on PostgreSQL a TRUNCATE of ours takes half a second, for a handful of rows."""
    operations = connections["default"].ops

    def delete(style: Any, tables: list[str], **options: Any) -> list[str]:
        return [f"DELETE FROM {operations.quote_name(table)}" for table in tables]

    with pytest.MonkeyPatch.context() as patch:
        if connections["default"].vendor == "postgresql" and "plans" not in item.path.name:
            patch.setattr(operations, "sql_flush", delete)
        return (yield)


@pytest.fixture
def store(db: None) -> Store:
    return get_store("default")


@pytest.fixture
def postgres(store: Store) -> Iterator[Any]:
    """The store on PostgreSQL, through a connection that nobody has tuned or planned on before; and nothing is known
    of the tables from other tests, whose statistics outlive their rows."""
    if store.vendor != "postgresql":
        pytest.skip("plans of PostgreSQL")
    store.execute("DELETE FROM pg_statistic WHERE starelid::regclass::text LIKE 'rivet_%%'")
    connections["default"].close()
    yield store
    connections["default"].close()


@pytest.fixture
def pair(db: None) -> tuple[Store, Store]:
    """The store through two connections, to be stepped by hand in one thread."""
    return get_store(LEFT), get_store(RIGHT)


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


def in_threads(*targets: Callable[[], Any]) -> list[Any]:
    """Run all at once, each on a connection of its own; their results, an exception among them raised."""
    barrier = Barrier(len(targets))

    def run(target: Callable[[], Any]) -> Any:
        try:
            barrier.wait(30)
            return target()
        finally:
            connections.close_all()

    with ThreadPoolExecutor(len(targets)) as pool:
        return [future.result(60) for future in [pool.submit(run, target) for target in targets]]
