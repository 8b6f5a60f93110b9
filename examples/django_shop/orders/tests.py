"""The tests of the shop: `manage.py test`. They need no server: the queues are on the embedded server."""

from __future__ import annotations

import os
import tempfile
import unittest
from unittest import mock

from django.core.management import call_command
from django.test import TransactionTestCase

from orders.jobs import app, ship, write_invoice
from orders.models import Order
from orders.tasks import send_receipt
from toril.integrations.django.calls import close_apps
from toril.integrations.django.outbox.models import OutboxJob
from toril.integrations.django.queues import close_queues
from toril.server import EmbeddedServer
from toril.testing import assert_enqueued


def setUpModule() -> None:
    """Starts a server of its own for all tests of this module."""
    folder = unittest.enterModuleContext(tempfile.TemporaryDirectory())
    server = unittest.enterModuleContext(EmbeddedServer(folder))
    unittest.enterModuleContext(mock.patch.dict(os.environ, TORIL_REDIS_URL=server.url))
    unittest.addModuleCleanup(close_queues)
    unittest.addModuleCleanup(close_apps)


class TestOrders(TransactionTestCase):
    """Orders, their jobs, and what the worker does with them."""

    def test_a_task_is_called_as_a_function(self) -> None:
        order = Order.objects.create(product="tea", amount=2)
        assert send_receipt.call(order.pk) == "Dear customer, 2 × tea"

    def test_an_order_enqueues_its_calls(self) -> None:
        with app.testing("capture"):
            number = self.client.post("/orders/", {"product": "tea", "amount": "2"}).json()["number"]
            assert_enqueued(write_invoice, number=number)
        assert [row.name for row in OutboxJob.objects.all()] == [ship.name]

    def test_a_worker_completes_an_order(self) -> None:
        number = self.client.post("/orders/", {"product": "cup", "amount": "3"}).json()["number"]
        call_command("toril_outbox", once=True, verbosity=0)
        call_command("toril_worker", until_idle=True, verbosity=0)
        shown = self.client.get(f"/orders/{number}/").json()
        assert shown["receipt"] == "Dear customer, 3 × cup"
        assert (shown["invoice"], shown["shipped"]) == (f"invoice {number}", True)

    def test_an_order_that_is_refused_leaves_nothing(self) -> None:
        refused = self.client.post("/orders/", {"product": "tea", "amount": "2000"})
        assert refused.status_code == 422
        assert (Order.objects.count(), OutboxJob.objects.count()) == (0, 0)
