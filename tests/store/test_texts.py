"""Names are told apart by their bytes, whatever the database's own idea of equal texts is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from uuid import uuid4

import pytest
from django.apps import apps

from rivet_workflows.records import Look, Outgoing, ScheduleKind, ScheduleWrite
from rivet_workflows.store.store import Store

#: Case, accent, blanks at the end, width, composition, and what sorts as nothing.
ALIKE = [
    "work",
    "Work",
    "wörk",
    "work ",
    "work  ",
    "\uff57ork",
    "wo\u0308rk",
    "work\u200b",
    "ẘork",
    "strasse",
    "straße",
]


def test_queues_whose_names_are_alike_are_different_queues(store: Store, claimed: Callable[..., Any]) -> None:
    (one,) = claimed()
    for name in ALIKE:
        store.send([Outgoing(one.actor_id, name, f'"{name}"')])
    for name in ALIKE:
        (looked,) = store.look([Look(one.actor_id, (name,))])
        assert [(m.queue, m.body) for m in looked.messages] == [(name, f'"{name}"')]
    (everything,) = store.look([Look(one.actor_id, None)])
    assert [m.queue for m in everything.messages] == ALIKE


def test_cron_jobs_whose_names_are_alike_are_different_jobs(store: Store, make: Callable[..., Any]) -> None:
    actor = make()
    for n, name in enumerate(ALIKE):
        rule = ScheduleWrite(
            id=uuid4(), actor_name="order", name=name, kind=ScheduleKind.CRON, action=f"action-{n}", args="",
            rule="* * * * *", timezone="UTC", next_at=n,
        )  # fmt: skip
        with store.changing():
            store.set_schedules(actor.id, [rule])
    assert [s.name for s in store.schedules(actor.id, recurring=True)] == ALIKE
    for n, name in enumerate(ALIKE):
        found = store.schedule(actor.id, name=name)
        assert found is not None and found.action == f"action-{n}"


def test_every_column_for_texts_compares_by_bytes_and_holds_any_of_them(store: Store) -> None:
    if store.vendor != "mysql":
        pytest.skip("has one way to compare texts, by their bytes")
    tables = [model._meta.db_table for model in apps.get_app_config("rivet_workflows").get_models()]
    found = store.query(
        "SELECT table_name, column_name, collation_name FROM information_schema.columns"
        " WHERE table_schema = database() AND table_name LIKE 'rivet\\_%%' AND collation_name IS NOT NULL"
    )
    assert {table for table, _, _ in found} <= set(tables)
    assert {collation for _, _, collation in found} == {"utf8mb4_nopad_bin"}, found
