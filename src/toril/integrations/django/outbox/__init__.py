"""The outbox for Django: jobs are written to a table in the transaction, and a relay adds them to their queues.

    INSTALLED_APPS = [..., "toril.integrations.django.outbox"]      # then: manage.py migrate

    with transaction.atomic():
        order.save()
        outbox.calls.enqueue(send.bind(order.pk), key=f"customer-{order.customer_id}")

`manage.py toril_outbox` is the relay. This module imports nothing of Django.
"""
