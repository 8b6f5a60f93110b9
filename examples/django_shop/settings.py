"""The settings of the shop. SHOP_DATABASE is the file of its database, TORIL_REDIS_URL the server of its queues."""

from __future__ import annotations

import os
from pathlib import Path

BASE_DIR = Path(__file__).parent
SECRET_KEY = os.environ.get("SHOP_SECRET_KEY", "only-for-the-example")
DEBUG = True
ALLOWED_HOSTS = ["127.0.0.1", "localhost", "testserver"]
ROOT_URLCONF = "urls"
USE_TZ = True
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
STATIC_URL = "static/"

INSTALLED_APPS = [
    "django.contrib.admin",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.sessions",
    "django.contrib.messages",
    "django_tasks",
    "toril.integrations.django",
    "toril.integrations.django.outbox",
    "orders",
]
MIDDLEWARE = [
    "django.contrib.sessions.middleware.SessionMiddleware",
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
DATABASES = {
    "default": {
        "ENGINE": "django.db.backends.sqlite3",
        "NAME": os.environ.get("SHOP_DATABASE", str(BASE_DIR / "shop.sqlite3")),
        "OPTIONS": {"timeout": 20},
    }
}

TASKS = {
    "default": {
        "BACKEND": "toril.integrations.django.backend.TorilBackend",
        "QUEUES": ["default", "reports"],
        "OPTIONS": {"attempts": 3, "backoff": 0.1},
    }
}
TORIL_APP = "orders.jobs.app"
TORIL_DASHBOARD_URL = "http://127.0.0.1:8400/"
