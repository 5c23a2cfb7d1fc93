"""The shop as a Django app. Its ``actors.py`` needs no mention: it is found as ``admin.py`` is."""

from __future__ import annotations

from django.apps import AppConfig


class ShopConfig(AppConfig):
    name = "shop"
    default_auto_field = "django.db.models.BigAutoField"
