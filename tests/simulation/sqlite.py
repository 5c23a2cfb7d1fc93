"""The product's store on a real SQLite database in memory, for one simulated world after the other."""

from __future__ import annotations

import itertools
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

from django.apps import apps
from django.db import connections

from rivet_workflows.store import get_store
from tests.databases import database_from_url

ALIAS = "simulation"


@contextmanager
def sqlite_store(clock: Any) -> Iterator[Any]:
    """Empty, by ``clock``, and giving out ids that are the same each time."""
    if ALIAS not in connections.settings:
        given = {"default": database_from_url("")}
        connections.settings[ALIAS] = connections.configure_settings(given)["default"]
    connection = connections[ALIAS]
    models = list(apps.get_app_config("rivet_workflows").get_models())
    if not connection.introspection.table_names():
        with connection.schema_editor() as editor:
            for model in models:
                editor.create_model(model)
    with connection.cursor() as cursor:
        for table in [*(model._meta.db_table for model in models), "sqlite_sequence"]:
            cursor.execute(f"DELETE FROM {table}")
    store, ids = get_store(ALIAS), itertools.count(1)
    store.clock = clock
    with patch("rivet_workflows.store.actors.uuid7", lambda: uuid.UUID(int=next(ids))):
        yield store
