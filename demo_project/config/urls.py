"""The shop at the root, REST under ``/api/``, Django's admin with the inspector under ``/admin/``."""

from __future__ import annotations

from django.contrib import admin
from django.urls import include, path

urlpatterns = [
    path("", include("shop.urls")),
    path("api/", include("rivet_workflows.urls")),
    path("admin/", admin.site.urls),
]
