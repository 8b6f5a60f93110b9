"""The same shop with an `App`: typed arguments and results, and all options of toril."""

from __future__ import annotations

from orders.models import Order
from toril import App
from toril.integrations.django.calls import with_old_connections_closed

app = App(name="django-shop")


@app.task(queue="parcels", attempts=10)
@with_old_connections_closed
def ship(number: int) -> None:
    """Ships an order. Its job is written with the order: each committed order is shipped."""
    Order.objects.filter(pk=number).update(shipped=True)


@app.task(queue="invoices", attempts=5, job_timeout=30)
@with_old_connections_closed
def write_invoice(number: int) -> int:
    """Writes the invoice of an order."""
    written: int = Order.objects.filter(pk=number).update(invoice=f"invoice {number}")
    return written
