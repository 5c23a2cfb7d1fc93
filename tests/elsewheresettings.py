"""A project without a default database: the actors' tables on one alias, Django's own on another, and a replica for
reads that lags behind for ever, as it is empty. ``RIVET_ELSEWHERE`` is the folder of the three files."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from tests.databases import database_from_url
from tests.settings import *  # noqa: F403
from tests.settings import INSTALLED_APPS as _APPS

_FOLDER = Path(os.environ["RIVET_ELSEWHERE"])

DATABASES = {
    "default": {},
    **{
        name: database_from_url(f"sqlite:///{_FOLDER / name}.sqlite3")
        for name in ("actors", "web", "replica")
    },
}
DATABASE_ROUTERS = ["tests.elsewheresettings.Router"]
INSTALLED_APPS = [*_APPS, "tests.sideapp"]
RIVET_WORKFLOWS = {"DATABASE": "actors", "HEARTBEAT": 0.5, "LEASE": 5}


class Router:
    """Reads of the actors' tables go to the replica, where nobody says otherwise."""

    def db_for_read(self, model: Any, **hints: Any) -> str:
        return "replica" if model._meta.app_label == "rivet_workflows" else "web"

    def db_for_write(self, model: Any, **hints: Any) -> str:
        return "actors" if model._meta.app_label == "rivet_workflows" else "web"

    def allow_migrate(self, db: str, app_label: str, **hints: Any) -> bool:
        return (app_label == "rivet_workflows") == (db != "web")
