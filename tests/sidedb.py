"""A database beside the suite's own, for tests with real worker threads or processes.

The suite's own is SQLite in memory by default, where two threads refuse each other; and other processes need a name to
find it by. So these tests get a SQLite file, and a PostgreSQL database where a server is there, under an alias
that the package is told to use; a MariaDB database alone where the suite itself runs on MariaDB. A test module asks for
it by ``pytestmark = sidedb.each`` and the fixture ``side``.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import pytest
from django.conf import settings as django_settings
from django.core.management import call_command
from django.db import connections

from rivet_workflows.store import get_store
from rivet_workflows.store.store import Store
from tests import servers
from tests.cluster.cluster import execute, statements
from tests.databases import TEST_NAME, database_from_url

_SERVERS = {"postgresql": servers.POSTGRES_URL, "mysql": servers.MARIADB_URL}
_MARKS = {"postgresql": [pytest.mark.requires_postgres], "mysql": [pytest.mark.requires_mariadb]}
_HERE = ["mysql"] if connections["default"].vendor == "mysql" else ["sqlite", "postgresql"]


def _on(*vendors: str) -> pytest.MarkDecorator:
    kinds = [pytest.param(v, id=v, marks=_MARKS.get(v, [])) for v in vendors if v in _HERE]
    return pytest.mark.parametrize("side_kind", kinds, scope="session")


each = _on("sqlite", "postgresql", "mysql")
on_servers = _on("postgresql", "mysql")
sqlite_only = _on("sqlite")


@dataclass(frozen=True)
class SideDatabase:
    """What a test gets: the store on it, and how another process reaches it."""

    alias: str
    url: str

    @property
    def store(self) -> Store:
        return get_store(self.alias)

    def environment(self) -> dict[str, str]:
        """For ``tests.sidesettings`` in a child process."""
        return {"RIVET_TEST_DATABASE_URL": self.url, "DJANGO_SETTINGS_MODULE": "tests.sidesettings"}


def name() -> str:
    """Of the database on a server: one per checkout and test process."""
    return f"{TEST_NAME}_side_{os.environ.get('PYTEST_XDIST_WORKER', 'main')}"


@contextmanager
def alias_for(alias: str, url: str) -> Iterator[None]:
    """An alias that exists for a while."""
    configured = connections.configure_settings(
        {"default": database_from_url(""), alias: database_from_url(url)}
    )
    django_settings.DATABASES[alias] = configured[alias]
    connections.settings[alias] = configured[alias]
    try:
        yield
    finally:
        connections[alias].close()
        del connections[alias]
        del django_settings.DATABASES[alias]
        connections.settings.pop(alias, None)


@contextmanager
def server_database(server: str) -> Iterator[str]:
    """A fresh database on the server, and its URL."""
    create, drop = statements(server, name())
    execute(server, drop, create)
    try:
        yield urlunsplit(urlsplit(server)._replace(path=f"/{name()}"))
    finally:
        execute(server, drop)


def migrate(alias: str) -> None:
    call_command("migrate", database=alias, verbosity=0, interactive=False)


def empty(alias: str) -> None:
    """Remove all rows of ours."""
    from django.apps import apps

    tables = [model._meta.db_table for model in apps.get_app_config("rivet_workflows").get_models()]
    with connections[alias].cursor() as cursor:
        if connections[alias].vendor == "postgresql":
            cursor.execute(f"TRUNCATE {', '.join(tables)} RESTART IDENTITY CASCADE")
            return
        for table in tables:
            cursor.execute(f"DELETE FROM {table}")


# -- fixtures, for conftest modules to take over ---------------------------------------------------------


@pytest.fixture(scope="session")
def side_source(side_kind: str, tmp_path_factory: Any, django_db_blocker: Any) -> Iterator[str]:
    """Made once: the URL of the database on a server, or the path of a SQLite file to copy."""
    with django_db_blocker.unblock():
        if side_kind == "sqlite":
            path = tmp_path_factory.mktemp("side") / "migrated.sqlite3"
            with alias_for("side_source", f"sqlite:///{path}"):
                migrate("side_source")
                with connections["side_source"].cursor() as cursor:
                    cursor.execute("PRAGMA wal_checkpoint(TRUNCATE)")
            yield str(path)
        else:
            with server_database(_SERVERS[side_kind]) as url:
                with alias_for("side_source", url):
                    migrate("side_source")
                yield url


@pytest.fixture
def side(
    side_kind: str, side_source: str, tmp_path: Path, settings: Any, django_db_blocker: Any
) -> Iterator[SideDatabase]:
    """The database, empty; the package works on it for this test."""
    alias = f"side_{side_kind}"
    url = side_source
    if side_kind == "sqlite":
        url = f"sqlite:///{shutil.copy(side_source, tmp_path / 'side.sqlite3')}"
    with django_db_blocker.unblock(), alias_for(alias, url):
        if side_kind != "sqlite":
            empty(alias)
        settings.RIVET_WORKFLOWS = {"DATABASE": alias}
        yield SideDatabase(alias, url)
