"""Tasks of `django.tasks`: `manage.py toril_worker` runs them."""

from __future__ import annotations

from orders.models import Order
from toril.integrations.django.task import task


@task(attempts=5)
def send_receipt(number: int, *, polite: bool = True) -> str:
    """Sends the receipt of an order. The order is there: the job is added when the order is committed."""
    order = Order.objects.get(pk=number)
    order.state = "paid"
    order.save(update_fields=["state"])
    return f"{'Dear customer, ' if polite else ''}{order.amount} × {order.product}"


@task(queue_name="reports", takes_context=True)
async def count_orders(context: object, least: int) -> int:
    """Counts orders, as a coroutine function."""
    found: int = await Order.objects.filter(amount__gte=least).acount()
    return found


@task(attempts=1)
def refuse(reason: str) -> None:
    """Fails."""
    raise LookupError(reason)
