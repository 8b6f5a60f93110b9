"""The tables of the outbox; the same columns as for SQLAlchemy."""

from __future__ import annotations

from typing import ClassVar

from toril.protocol.extras import needed

with needed("django"):
    from django.db import models


class OutboxJob(models.Model):
    """One job to be added. Rows are sent in the order of `position`."""

    position = models.BigAutoField(primary_key=True)
    id = models.CharField(max_length=36, unique=True)
    queue = models.TextField()
    name = models.TextField()
    data = models.TextField()
    options = models.TextField()
    key = models.TextField(null=True)
    created_at = models.DateTimeField(auto_now_add=True)
    sent_at = models.DateTimeField(null=True, db_index=True)
    error = models.TextField(null=True)

    class Meta:
        """The index of the rows that wait."""

        indexes: ClassVar = [
            models.Index(
                fields=["position"], name="toril_outbox_unsent", condition=models.Q(sent_at__isnull=True)
            )
        ]


class OutboxRelayLock(models.Model):
    """One row, which the relay that sends holds locked; the name of the ledger of this table."""

    id = models.IntegerField(primary_key=True)
    outbox = models.CharField(max_length=36)
