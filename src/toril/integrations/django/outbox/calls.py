"""Writing calls to the outbox.

Guarantee: the row is part of the transaction in which this is called: it is committed or rolled back with it.
"""

from __future__ import annotations

from toril.app import TaskCall
from toril.integrations.django.outbox.models import OutboxJob
from toril.integrations.outbox.rows import row_of


def enqueue(call: TaskCall, *, key: str | None = None, using: str = "default") -> str:
    """Writes a call; returns the id that its job will have."""
    row = row_of(call, key)
    OutboxJob.objects.using(using).create(
        id=row.id, queue=row.queue, name=row.name, data=row.data, options=row.options, key=row.key
    )
    return row.id
