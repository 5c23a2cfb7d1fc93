"""A small project whose workers are real processes: for the fault tests and the benchmarks.

``RIVET_CLUSTER_DB`` is the database (a path or URL of its own, never a test database of the suite).
"""

import os
from typing import Any

from tests.databases import database_from_url

SECRET_KEY = "only for tests"
DEBUG = False
USE_TZ = True
INSTALLED_APPS = [
    "django.contrib.contenttypes",
    "django.contrib.auth",
    "rest_framework",
    "channels",
    "rivet_workflows",
    "tests.cluster",
]
DATABASES = {"default": database_from_url(os.environ["RIVET_CLUSTER_DB"])}
if "RIVET_CLUSTER_ISOLATION" in os.environ and DATABASES["default"]["ENGINE"].endswith("mysql"):
    DATABASES["default"]["OPTIONS"]["isolation_level"] = os.environ["RIVET_CLUSTER_ISOLATION"]
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
RIVET_WORKFLOWS: dict[str, Any] = {
    "LEASE": float(os.environ.get("RIVET_CLUSTER_LEASE", "2")),
    "HEARTBEAT": float(os.environ.get("RIVET_CLUSTER_HEARTBEAT", "0.5")),
    "POLL_INTERVAL": float(os.environ.get("RIVET_CLUSTER_POLL", "1")),
}
if "RIVET_CLUSTER_LISTEN_DSN" in os.environ:
    RIVET_WORKFLOWS["LISTEN_DSN"] = os.environ["RIVET_CLUSTER_LISTEN_DSN"]
if "RIVET_CLUSTER_POOLED" in os.environ:
    # As Django's documentation asks for with a transaction pooler.
    DATABASES["default"]["DISABLE_SERVER_SIDE_CURSORS"] = True
if "RIVET_CLUSTER_EVICT" in os.environ:
    RIVET_WORKFLOWS |= {"EVICT_AFTER": float(os.environ["RIVET_CLUSTER_EVICT"]), "MAX_PARKED": 0}
LOGGING = {
    "version": 1,
    "formatters": {"plain": {"format": "%(created).6f %(process)d %(levelname)s %(message)s"}},
    "handlers": {"console": {"class": "logging.StreamHandler", "formatter": "plain"}},
    "root": {"handlers": ["console"], "level": os.environ.get("RIVET_CLUSTER_LOG", "INFO")},
}
