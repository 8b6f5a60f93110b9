"""The first table of the shop."""

from __future__ import annotations

from django.db import migrations, models


class Migration(migrations.Migration):
    """Creates the orders."""

    initial = True
    dependencies: list[tuple[str, str]] = []
    operations = [
        migrations.CreateModel(
            name="Order",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("product", models.CharField(max_length=100)),
                ("amount", models.PositiveIntegerField()),
                ("state", models.CharField(default="new", max_length=20)),
                ("invoice", models.TextField(default="")),
                ("shipped", models.BooleanField(default=False)),
                ("receipt_task", models.CharField(default="", max_length=64)),
            ],
        ),
    ]
