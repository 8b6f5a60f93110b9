"""What the admin lists: a link to the dashboard of the queues. It has no table."""

from __future__ import annotations

from typing import ClassVar

from toril.protocol.extras import needed

with needed("django"):
    from django.db import models


class QueueLink(models.Model):
    """The entry "Queues" of the admin; users need the permission to view it."""

    class Meta:
        """Django creates no table for it."""

        managed = False
        default_permissions: ClassVar[tuple[str, ...]] = ("view",)
        verbose_name = "queue"
        verbose_name_plural = "queues"
