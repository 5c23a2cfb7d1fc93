"""The URLs that tests are served at."""

from __future__ import annotations

from django.contrib import admin
from django.urls import include, path

urlpatterns = [
    path("admin/", admin.site.urls),
    path("rivet/", include("rivet_workflows.urls")),
]
