"""Settings of the demo. What a project needs for ``rivet_workflows`` is marked with an arrow (<-)."""

from __future__ import annotations

import os
from datetime import timedelta
from pathlib import Path

from config import database

BASE_DIR = Path(__file__).resolve().parent.parent
VAR_DIR = Path(os.environ.get("DEMO_VAR") or BASE_DIR.parent / "var")

# A demo that listens on this machine alone; a real project reads both from its environment.
SECRET_KEY = os.environ.get("SECRET_KEY", "not a secret: the demo listens on this machine alone")
DEBUG = os.environ.get("DEBUG", "1") == "1"
ALLOWED_HOSTS = ["127.0.0.1", "localhost", "[::1]"]

INSTALLED_APPS = [
    # demo.py starts daphne itself; "daphne" as the first app here would give runserver WebSockets, too.
    "django.contrib.admin",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.sessions",
    "django.contrib.messages",
    "django.contrib.staticfiles",
    "rest_framework",  # <- for REST
    "channels",  # <- for WebSockets
    "rivet_workflows",  # <-
    "shop",
    "patterns",
]

DATABASES = {"default": database.from_url(os.environ.get("DATABASE_URL", ""), VAR_DIR / "demo.sqlite3")}

# <- Every key is optional. Here a worker that was killed shall be missed at once, and steps mostly wait for the
#    payment service, so more of them may run at a time.
RIVET_WORKFLOWS = {
    "LEASE": timedelta(seconds=2),
    "HEARTBEAT": timedelta(seconds=0.5),
    "STEP_THREADS": 16,
}

# <- For consumers of your own. Events of actors come through the database and need no layer.
REDIS_URL = os.environ.get("REDIS_URL")
CHANNEL_LAYERS = {
    "default": (
        {"BACKEND": "channels_redis.core.RedisChannelLayer", "CONFIG": {"hosts": [REDIS_URL]}}
        if REDIS_URL
        else {"BACKEND": "channels.layers.InMemoryChannelLayer"}
    )
}

SILENCED_SYSTEM_CHECKS = [] if REDIS_URL else ["rivet_workflows.W004"]

MIDDLEWARE = [
    "django.middleware.security.SecurityMiddleware",
    "config.middleware.content_security_policy",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
    "django.middleware.clickjacking.XFrameOptionsMiddleware",
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

ROOT_URLCONF = "config.urls"
ASGI_APPLICATION = "config.asgi.application"
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
STATIC_URL = "/static/"
USE_TZ = True
TIME_ZONE = "UTC"
LOGIN_URL = "login"
LOGIN_REDIRECT_URL = "shop"
LOGOUT_REDIRECT_URL = "login"

# Demos on one machine run on several ports, and cookies do not tell ports apart: each demo names its own.
SESSION_COOKIE_NAME = os.environ.get("DEMO_SESSION_COOKIE", "sessionid")

PAYMENTS_URL = os.environ.get("PAYMENTS_URL", "http://127.0.0.1:9000")

# Set by demo.py: the file that holds the worker's process id. With it the page offers to kill the worker.
DEMO_WORKER_PID_FILE = os.environ.get("DEMO_WORKER_PID_FILE", "")

LOGGING = {
    "version": 1,
    "disable_existing_loggers": False,
    "formatters": {"plain": {"format": "%(asctime)s %(levelname)-7s %(name)s  %(message)s"}},
    "handlers": {"console": {"class": "logging.StreamHandler", "formatter": "plain"}},
    "loggers": {"rivet_workflows": {"handlers": ["console"], "level": "INFO"}},
}
