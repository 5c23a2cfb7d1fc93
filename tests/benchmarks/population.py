"""Actors by the million: copies of a real one's rows, under ids and keys of their own, by COPY."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from uuid import UUID

from django.db import connection, models

from rivet_workflows import keys
from rivet_workflows.models import Actor, History, Run, State, Timer, uuid7
from rivet_workflows.store.rows import live_hash

#: Rows of one COPY.
BATCH = 100_000


class Template:
    """The rows of one actor, as they are now."""

    def __init__(self, actor_id: UUID) -> None:
        self.tables: list[tuple[type[models.Model], list[str], list[tuple[Any, ...]]]] = []
        for model in (Actor, Run, State, Timer, History):
            columns = [
                field.column
                for field in model._meta.local_fields
                if field.column and not isinstance(field, models.AutoField)
            ]
            rows = list(model.objects.filter(**{_owner(model): actor_id}).values_list(*columns))
            self.tables.append((model, columns, rows))

    def copy(self, count: int, prefix: str) -> list[UUID]:
        """Make so many copies; their ids."""
        ids: list[UUID] = []
        while len(ids) < count:
            some = [uuid7() for _ in range(min(BATCH, count - len(ids)))]
            for model, columns, rows in self.tables:
                _insert(model._meta.db_table, columns, _copies(model, columns, rows, some, prefix))
            ids += some
        return ids


def _owner(model: type[models.Model]) -> str:
    return "id" if model is Actor else "actor_id"


def _copies(
    model: type[models.Model], columns: list[str], rows: list[tuple[Any, ...]], ids: list[UUID], prefix: str
) -> Iterator[list[Any]]:
    place = columns.index(_owner(model))
    native = connection.features.has_native_uuid_field
    for row in rows:
        copied = list(row)
        for actor_id in ids:
            copied[place] = actor_id if native else actor_id.hex
            if model is Actor:
                key = keys.encode(f"{prefix}-{actor_id.hex}")
                copied[columns.index("key")] = key
                copied[columns.index("live_hash")] = live_hash(copied[columns.index("name")], key)
            yield copied


def _insert(table: str, columns: list[str], rows: Iterator[list[Any]]) -> None:
    names = ", ".join(columns)
    with connection.cursor() as cursor:
        if connection.vendor != "postgresql":
            marks = ", ".join(["%s"] * len(columns))
            cursor.executemany(
                f"INSERT INTO {table} ({names}) VALUES ({marks})", [tuple(row) for row in rows]
            )
            return
        with cursor.copy(f"COPY {table} ({names}) FROM STDIN") as copy:
            for row in rows:
                copy.write_row(row)
