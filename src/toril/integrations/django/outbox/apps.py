"""The application for `INSTALLED_APPS`."""

from __future__ import annotations

from toril.protocol.extras import needed

with needed("django"):
    from django.apps import AppConfig


class OutboxConfig(AppConfig):
    """The tables of the outbox, and `manage.py toril_outbox`."""

    name = "toril.integrations.django.outbox"
    label = "toril_outbox"
    verbose_name = "Outbox of jobs"
    default_auto_field = "django.db.models.BigAutoField"
