"""The views of the shop."""

from __future__ import annotations

from django.db import transaction
from django.http import HttpRequest, JsonResponse
from django.shortcuts import get_object_or_404
from django.views.decorators.csrf import csrf_exempt
from django.views.decorators.http import require_POST

from orders.jobs import ship, write_invoice
from orders.models import Order
from orders.tasks import send_receipt
from toril.integrations.django.calls import enqueue_on_commit
from toril.integrations.django.framework import TaskResultDoesNotExist
from toril.integrations.django.outbox import calls as outbox


@csrf_exempt  # the example has no forms
@require_POST
def create(request: HttpRequest) -> JsonResponse:
    """Stores an order. If that fails, no job is added."""
    with transaction.atomic():
        order = Order.objects.create(product=request.POST["product"], amount=int(request.POST["amount"]))
        order.receipt_task = send_receipt.enqueue(order.pk).id
        order.save(update_fields=["receipt_task"])
        enqueue_on_commit(write_invoice.bind(order.pk))
        outbox.enqueue(ship.bind(order.pk), key=order.product)
        if order.amount > 1000:
            transaction.set_rollback(True)
            return JsonResponse({"error": "too many"}, status=422)
    return JsonResponse({"number": order.pk}, status=201)


def show(request: HttpRequest, number: int) -> JsonResponse:
    """An order and the state of its receipt."""
    order = get_object_or_404(Order, pk=number)
    try:
        receipt = send_receipt.get_result(order.receipt_task)
    except TaskResultDoesNotExist:
        return JsonResponse({"state": order.state, "receipt": None})
    text = receipt.return_value if receipt.is_finished else None
    shown = {"state": order.state, "invoice": order.invoice, "shipped": order.shipped, "receipt": text}
    return JsonResponse(shown)
