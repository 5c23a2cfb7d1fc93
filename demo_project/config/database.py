"""``DATABASES["default"]`` from a URL, so that one variable moves the demo to another server."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

_ENGINES = {"postgres": "postgresql", "postgresql": "postgresql", "mysql": "mysql", "mariadb": "mysql"}


def from_url(url: str, default: Path) -> dict[str, Any]:
    """``postgres://user:password@host:port/name``, ``mysql://…`` or ``sqlite:////path``; else SQLite at ``default``."""
    parts = urlsplit(url)
    if parts.scheme in ("", "sqlite"):
        path = Path(unquote(parts.path[1:])) if parts.scheme else default
        path.parent.mkdir(parents=True, exist_ok=True)
        # WAL: readers never wait for the one writer. IMMEDIATE: writers queue up at their first statement;
        # without it one that has read before meets "database is locked" at once, whatever the timeout.
        options = {"transaction_mode": "IMMEDIATE", "timeout": 20, "init_command": "PRAGMA journal_mode=WAL"}
        return {"ENGINE": "django.db.backends.sqlite3", "NAME": str(path), "OPTIONS": options}
    if parts.scheme not in _ENGINES:
        raise ValueError(
            f"DATABASE_URL: the scheme must be sqlite, {', '.join(_ENGINES)}, not {parts.scheme!r}"
        )
    return {
        "ENGINE": f"django.db.backends.{_ENGINES[parts.scheme]}",
        "NAME": unquote(parts.path.lstrip("/")),
        "USER": unquote(parts.username or ""),
        "PASSWORD": unquote(parts.password or ""),
        "HOST": parts.hostname or "",
        "PORT": str(parts.port or ""),
        "OPTIONS": {"charset": "utf8mb4"} if _ENGINES[parts.scheme] == "mysql" else {},
    }
