"""The Django app. ``ready()`` imports every installed app's ``actors`` module, so every actor is known.

No queries and no reading of settings here: both would bind the process before a project has set itself up.
"""

from __future__ import annotations

from django.apps import AppConfig
from django.utils.module_loading import autodiscover_modules
from django.utils.translation import gettext_lazy as _


class RivetWorkflowsConfig(AppConfig):
    name = "rivet_workflows"
    label = "rivet_workflows"
    verbose_name = _("Workflows")
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        from rivet_workflows import checks  # noqa: F401  (importing registers them)

        autodiscover_modules("actors")
