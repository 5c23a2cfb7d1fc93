"""A fresh database for each demo: a file, or a new database on the server that ``DATABASE_URL`` names."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from secrets import token_hex
from typing import Any
from urllib.parse import urlsplit, urlunsplit

from config import database
from runner.processes import DemoFailed


@contextmanager
def fresh(url: str, var: Path) -> Iterator[tuple[str, str]]:
    """The URL of an empty database, and its name for people. On a server it is dropped afterwards."""
    parts = urlsplit(url)
    if parts.scheme in ("", "sqlite"):
        path = var / "demo.sqlite3"
        yield f"sqlite:///{path}", f"SQLite, {path}"
        return
    name = f"rivet_demo_{token_hex(4)}"
    connection = _connect(url)
    postgres = connection.vendor == "postgresql"
    try:
        _execute(connection, f"CREATE DATABASE {name}" + ("" if postgres else " CHARACTER SET utf8mb4"))
        try:
            yield urlunsplit(parts._replace(path=f"/{name}")), f"{connection.display_name}, database {name}"
        finally:
            _execute(connection, f"DROP DATABASE {name}" + (" WITH (FORCE)" if postgres else ""))
    finally:
        connection.close()


def _connect(url: str) -> Any:
    """Django's own connection, so that the demo needs no driver of its own."""
    import django
    from django.conf import settings
    from django.db.utils import ConnectionHandler

    if not settings.configured:
        settings.configure(USE_TZ=True)
        django.setup()
    return ConnectionHandler({"default": database.from_url(url, Path())})["default"]


def _execute(connection: Any, statement: str) -> None:
    from django.db.utils import Error

    try:
        with connection.cursor() as cursor:
            cursor.execute(statement)
    except Error as error:
        raise DemoFailed(
            f"{statement}: {error}\nDATABASE_URL must name a database server whose account may create databases."
        ) from error
