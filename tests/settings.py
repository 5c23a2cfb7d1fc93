"""Settings of the test suite. ``RIVET_TEST_DATABASE_URL`` chooses the database, else SQLite in memory;
``RIVET_TEST_USE_TZ=0`` and ``RIVET_TEST_TIME_ZONE`` how Django keeps times."""

from __future__ import annotations

import os

from tests.databases import database_from_url

SECRET_KEY = "for tests only"
DEBUG = False
ALLOWED_HOSTS = ["*"]
USE_TZ = os.environ.get("RIVET_TEST_USE_TZ", "1") == "1"
TIME_ZONE = os.environ.get("RIVET_TEST_TIME_ZONE", "UTC")
ROOT_URLCONF = "tests.urls"
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"

DATABASES = {"default": database_from_url(os.environ.get("RIVET_TEST_DATABASE_URL", ""))}

INSTALLED_APPS = [
    "django.contrib.admin",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.sessions",
    "django.contrib.messages",
    "django.contrib.staticfiles",
    "rest_framework",
    "channels",
    "rivet_workflows",
]
MIDDLEWARE = [
    "django.middleware.security.SecurityMiddleware",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
]
TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
            ]
        },
    }
]
STATIC_URL = "/static/"
PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]
CHANNEL_LAYERS = {"default": {"BACKEND": "channels.layers.InMemoryChannelLayer"}}
