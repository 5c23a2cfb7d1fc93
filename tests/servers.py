"""Which servers and programs are there to test with. Servers have a URL variable each; the defaults are their own."""

from __future__ import annotations

import os
import shutil
import socket
from urllib.parse import urlsplit

POSTGRES_URL = os.environ.get("RIVET_TEST_POSTGRES_URL", "postgres://postgres@127.0.0.1:5432/postgres")
REDIS_URL = os.environ.get("RIVET_TEST_REDIS_URL", "redis://127.0.0.1:6379/0")
MARIADB_URL = os.environ.get("RIVET_TEST_MARIADB_URL", "mysql://root@127.0.0.1:3306/mysql")

URLS = {
    "requires_postgres": (POSTGRES_URL, 5432, "RIVET_TEST_POSTGRES_URL"),
    "requires_redis": (REDIS_URL, 6379, "RIVET_TEST_REDIS_URL"),
    "requires_mariadb": (MARIADB_URL, 3306, "RIVET_TEST_MARIADB_URL"),
}

#: The names a program goes by.
PROGRAMS = {"requires_chromium": ("chromium", "chromium-browser")}
MARKERS = (*URLS, *PROGRAMS)


def program(marker: str) -> str | None:
    """The path of a program."""
    return next(filter(None, map(shutil.which, PROGRAMS[marker])), None)


def missing(marker: str) -> str | None:
    """Why a test with this marker cannot run, or None: nothing accepts connections at the server's URL, or the program
    is not installed."""
    if marker in PROGRAMS:
        return None if program(marker) else f"there is no {PROGRAMS[marker][0]}; install it"
    url, default_port, variable = URLS[marker]
    parts = urlsplit(url)
    host, port = parts.hostname or "127.0.0.1", parts.port or default_port
    try:
        socket.create_connection((host, port), timeout=2).close()
    except OSError as error:
        return f"no server at {host}:{port} ({error}); set {variable} or start it"
    return None
