"""The first tables of the outbox."""

from __future__ import annotations

from typing import ClassVar

from django.db import migrations, models


class Migration(migrations.Migration):
    """Creates them."""

    initial = True

    dependencies: ClassVar[list[tuple[str, str]]] = []

    operations: ClassVar = [
        migrations.CreateModel(
            name="OutboxRelayLock",
            fields=[
                ("id", models.IntegerField(primary_key=True, serialize=False)),
                ("outbox", models.CharField(max_length=36)),
            ],
        ),
        migrations.CreateModel(
            name="OutboxJob",
            fields=[
                ("position", models.BigAutoField(primary_key=True, serialize=False)),
                ("id", models.CharField(max_length=36, unique=True)),
                ("queue", models.TextField()),
                ("name", models.TextField()),
                ("data", models.TextField()),
                ("options", models.TextField()),
                ("key", models.TextField(null=True)),
                ("created_at", models.DateTimeField(auto_now_add=True)),
                ("sent_at", models.DateTimeField(db_index=True, null=True)),
                ("error", models.TextField(null=True)),
            ],
            options={
                "indexes": [
                    models.Index(
                        condition=models.Q(("sent_at__isnull", True)),
                        fields=["position"],
                        name="toril_outbox_unsent",
                    )
                ],
            },
        ),
    ]
