"""The application for `INSTALLED_APPS`."""

from __future__ import annotations

from toril.protocol.extras import needed

with needed("django"):
    from django.apps import AppConfig


class TorilConfig(AppConfig):
    """Provides `manage.py toril_worker` and the link in the admin."""

    name = "toril.integrations.django"
    label = "toril"
    verbose_name = "Jobs"
    default_auto_field = "django.db.models.BigAutoField"
