"""The settings of the shop.

SHOP_POSTGRES=localhost:5432/shop is its database (default: SQLite in the file SHOP_DATABASE), TORIL_REDIS_URL the
server of its queues (default: the embedded server).
"""

from __future__ import annotations

import os
from pathlib import Path

import django

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
    # Django 6 has tasks of its own.
    *(["django_tasks"] if django.VERSION < (6,) else []),
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
SQLITE = {
    "ENGINE": "django.db.backends.sqlite3",
    "NAME": os.environ.get("SHOP_DATABASE", str(BASE_DIR / "shop.sqlite3")),
    "OPTIONS": {"timeout": 20, "transaction_mode": "IMMEDIATE"},
    "TEST": {"NAME": os.environ.get("SHOP_DATABASE", str(BASE_DIR / "test.sqlite3"))},
}


def postgres(address: str) -> dict[str, object]:
    """The database at host:port/name."""
    server, _, name = address.partition("/")
    host, _, port = server.partition(":")
    user = os.environ.get("SHOP_POSTGRES_USER", "postgres")
    return {
        "ENGINE": "django.db.backends.postgresql",
        "HOST": host,
        "PORT": port or "5432",
        "NAME": name,
        "USER": user,
        "PASSWORD": os.environ.get("SHOP_POSTGRES_PASSWORD", ""),
        "CONN_HEALTH_CHECKS": True,
    }


ADDRESS = os.environ.get("SHOP_POSTGRES")
DATABASES = {"default": SQLITE if ADDRESS is None else postgres(ADDRESS)}

TASKS = {
    "default": {
        "BACKEND": "toril.integrations.django.backend.TorilBackend",
        "QUEUES": ["default", "reports"],
        "OPTIONS": {"attempts": 3, "backoff": 0.1},
    }
}
TORIL_APP = "orders.jobs.app"
TORIL_DASHBOARD_URL = "http://127.0.0.1:8400/"
