"""The cluster project with the product's own settings, and the benchmarks' actors.

``RIVET_BENCH_SETTINGS`` is a JSON object that changes some for one worker.
"""

import json
import os

from tests.cluster.settings import *  # noqa: F403
from tests.cluster.settings import INSTALLED_APPS

INSTALLED_APPS = [*INSTALLED_APPS, "tests.benchmarks"]
RIVET_WORKFLOWS = json.loads(os.environ.get("RIVET_BENCH_SETTINGS", "{}"))
ROOT_URLCONF = "rivet_workflows.urls"
ALLOWED_HOSTS = ["*"]
