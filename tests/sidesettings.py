"""Settings of the worker processes that tests start: the suite's, with the actors of ``tests.sideapp``."""

from __future__ import annotations

import json
import os

from tests.settings import *  # noqa: F403
from tests.settings import INSTALLED_APPS as _APPS

INSTALLED_APPS = [*_APPS, "tests.sideapp"]
RIVET_WORKFLOWS = json.loads(os.environ.get("RIVET_TEST_SETTINGS", "{}"))
