"""What the shop stores."""

from __future__ import annotations

from django.db import models


class Order(models.Model):
    """An order; its tasks change `state`."""

    product = models.CharField(max_length=100)
    amount = models.PositiveIntegerField()
    state = models.CharField(max_length=20, default="new")
    invoice = models.TextField(default="")
    shipped = models.BooleanField(default=False)
    receipt_task = models.CharField(max_length=64, default="")
