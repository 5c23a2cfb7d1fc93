"""Sessions on a database server: which one is ours, which wait for us, and how one of them is hung up on."""

from __future__ import annotations

import time
from contextlib import suppress
from typing import Any
from urllib.parse import urlsplit

from tests.cluster.cluster import execute

_OWN = {"postgresql": "SELECT pg_backend_pid()", "mysql": "SELECT connection_id()"}
_WAITING = {
    "postgresql": "SELECT pid FROM pg_locks WHERE NOT granted AND pg_backend_pid() = ANY(pg_blocking_pids(pid))",
    "mysql": (
        "SELECT waits.trx_mysql_thread_id FROM information_schema.innodb_lock_waits w"
        " JOIN information_schema.innodb_trx waits ON waits.trx_id = w.requesting_trx_id"
        " JOIN information_schema.innodb_trx holds ON holds.trx_id = w.blocking_trx_id"
        " WHERE holds.trx_mysql_thread_id = connection_id()"
    ),
}
_ALL = {
    "postgresql": "SELECT pid FROM pg_stat_activity WHERE datname = '{0}' AND pid <> pg_backend_pid()",
    "mysql": "SELECT id FROM information_schema.processlist WHERE db = '{0}' AND id <> connection_id()",
}
_END = {"postgresql": "SELECT pg_terminate_backend(%s)", "mysql": "KILL %s"}


def own(connection: Any) -> int:
    """The server's number for this connection."""
    ((number,),) = _query(connection, _OWN[connection.vendor])
    return int(number)


def waiting_for(connection: Any) -> list[int]:
    """Those that wait for a lock of this connection's. Made to be asked again and again."""
    if connection.vendor == "mysql":
        # What these tables show is made anew only after nobody has read them for a tenth of a second.
        time.sleep(0.15)
    return [int(row[0]) for row in _query(connection, _WAITING[connection.vendor])]


def end(connection: Any, number: int) -> None:
    """Have the server hang up on another one."""
    with connection.cursor() as cursor:
        cursor.execute(_END[connection.vendor], [number])


def cut(url: str, *numbers: int) -> None:
    """Have the server hang up on these, else on all that are connected to the database of ``url``; told over a
    connection of its own."""
    vendor = "postgresql" if url.startswith("postgres") else "mysql"
    for number in numbers or [row[0] for row in execute(url, _ALL[vendor].format(urlsplit(url).path[1:]))]:
        with suppress(Exception):  # it may have gone by itself
            execute(url, _END[vendor] % number)


def _query(connection: Any, sql: str) -> list[tuple[Any, ...]]:
    with connection.cursor() as cursor:
        cursor.execute(sql)
        return list(cursor.fetchall())
