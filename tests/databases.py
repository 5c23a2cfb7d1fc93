"""Database settings from a URL, for the tests: one variable chooses the server that the whole suite runs on.

Several checkouts may test at the same time on one server, so the name of the test database carries a hash of
the checkout's path.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

CHECKOUT = Path(__file__).resolve().parent.parent
CHECKOUT_HASH = hashlib.sha256(str(CHECKOUT).encode()).hexdigest()[:8]
TEST_NAME = f"test_rivet_{CHECKOUT_HASH}"

SQLITE_OPTIONS = {
    "transaction_mode": "IMMEDIATE",
    "timeout": 20,
    "init_command": "PRAGMA journal_mode=WAL; PRAGMA synchronous=NORMAL;",
}
#: As most databases have it, blind to case and accents: whatever of ours must see them has to say so itself.
MYSQL_COLLATION = "utf8mb4_general_ci"
_ENGINES = {
    "postgres": "django.db.backends.postgresql",
    "postgresql": "django.db.backends.postgresql",
    "mysql": "django.db.backends.mysql",
    "mariadb": "django.db.backends.mysql",
}


def database_from_url(url: str) -> dict[str, Any]:
    """One value of ``DATABASES``. ``""``: SQLite in memory; ``sqlite:///path``: a file; else a server's URL.

    Raises ``ValueError`` for a scheme that is none of ``sqlite postgres postgresql mysql mariadb``.
    """
    if url in ("", "sqlite://"):
        return _sqlite(":memory:", None)
    parts = urlsplit(url)
    if parts.scheme == "sqlite":
        path = unquote(parts.path[1:] if parts.path.startswith("//") else parts.path)
        return _sqlite(path, path)
    if parts.scheme not in _ENGINES:
        raise ValueError(f"{url!r}: the scheme must be one of sqlite, {', '.join(_ENGINES)}")
    config: dict[str, Any] = {
        "ENGINE": _ENGINES[parts.scheme],
        "NAME": unquote(parts.path.lstrip("/")),
        "USER": unquote(parts.username or ""),
        "PASSWORD": unquote(parts.password or ""),
        "HOST": parts.hostname or "",
        "PORT": str(parts.port or ""),
        "TEST": {"NAME": TEST_NAME},
    }
    if "mysql" in config["ENGINE"]:
        config["OPTIONS"] = {"charset": "utf8mb4"}
        config["TEST"] |= {"CHARSET": "utf8mb4", "COLLATION": MYSQL_COLLATION}
    return config


def _sqlite(name: str, test_name: str | None) -> dict[str, Any]:
    return {
        "ENGINE": "django.db.backends.sqlite3",
        "NAME": name,
        "OPTIONS": dict(SQLITE_OPTIONS),
        "TEST": {"NAME": test_name},
    }
