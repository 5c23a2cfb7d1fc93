"""The cluster's settings with the demo's gallery of patterns, whose steps are counted and can be held."""

import sys

from tests.cluster.settings import *  # noqa: F403
from tests.cluster.settings import INSTALLED_APPS, RIVET_WORKFLOWS
from tests.databases import CHECKOUT

sys.path.insert(0, str(CHECKOUT / "demo_project"))
INSTALLED_APPS = [*INSTALLED_APPS[:-1], "patterns", "tests.faults.gallery.Gallery"]
# A thread for every step that is held, and no timeout while it is.
RIVET_WORKFLOWS |= {"STEP_THREADS": 64, "STEP_DEFAULTS": {"timeout": 300}}  # type: ignore[dict-item]
