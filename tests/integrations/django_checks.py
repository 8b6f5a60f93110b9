"""Runs in a process of its own, in the folder of the Django shop: checks of the task backend.

The server is TORIL_REDIS_URL, the database SHOP_DATABASE or SHOP_POSTGRES. Prints "ok" at the end.
"""

from __future__ import annotations

import contextlib
import os
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import django
import pytest

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "settings")
django.setup()

from django.contrib.auth.models import User  # noqa: E402
from django.core.management import CommandError, call_command  # noqa: E402
from django.db import OperationalError, connection, transaction  # noqa: E402
from django.test import Client  # noqa: E402
from django.utils import timezone  # noqa: E402
from orders.jobs import app, ship  # noqa: E402
from orders.models import Order  # noqa: E402
from orders.tasks import count_orders, refuse, send_receipt  # noqa: E402

from toril.errors import InvalidOption  # noqa: E402
from toril.integrations.django.backend import TorilBackend  # noqa: E402
from toril.integrations.django.calls import close_apps  # noqa: E402
from toril.integrations.django.framework import (  # noqa: E402
    Task,
    TaskResultDoesNotExist,
    TaskResultStatus,
    task_backends,
)
from toril.integrations.django.outbox import calls as outbox  # noqa: E402
from toril.integrations.django.outbox.models import OutboxJob  # noqa: E402
from toril.integrations.django.outbox.store import DjangoStore  # noqa: E402
from toril.integrations.django.queues import close_queues, open_queue  # noqa: E402
from toril.integrations.django.task import TorilTask, task  # noqa: E402
from toril.integrations.outbox import OutboxRelay, RelayOptions  # noqa: E402


def tasks_are_those_of_the_framework_of_this_django() -> None:
    assert Task.__module__ == ("django_tasks.base" if django.VERSION < (6,) else "django.tasks.base")
    assert task_backends["default"].task_class is TorilTask
    assert isinstance(send_receipt, TorilTask)
    assert send_receipt.attempts == 5
    with pytest.raises(InvalidOption, match="it is called attempts here"):
        task(max_retries=3)  # type: ignore[call-overload]


def a_committed_order_has_its_jobs() -> None:
    created = Client().post("/orders/", {"product": "tea", "amount": "2"})
    assert created.status_code == 201
    number = created.json()["number"]
    assert Client().get(f"/orders/{number}/").json()["receipt"] is None
    call_command("toril_outbox", once=True)
    call_command("toril_worker", until_idle=True)
    shown = Client().get(f"/orders/{number}/").json()
    assert shown == {
        "state": "paid",
        "invoice": f"invoice {number}",
        "shipped": True,
        "receipt": "Dear customer, 2 × tea",
    }


def a_transaction_that_is_rolled_back_adds_no_job() -> None:
    before = open_queue("default", None, "bull").get_job_counts()
    assert Client().post("/orders/", {"product": "tea", "amount": "2000"}).status_code == 422
    assert open_queue("default", None, "bull").get_job_counts() == before
    call_command("toril_outbox", once=True)
    assert open_queue("parcels", None, "bull").get_job_counts().waiting == 0
    with transaction.atomic():
        result = send_receipt.enqueue(1)
        assert result.enqueued_at is None
        assert open_queue("default", None, "bull").get_job(result.id) is None
    assert open_queue("default", None, "bull").get_job(result.id) is not None
    open_queue("default", None, "bull").drain()


def results_are_those_of_the_jobs() -> None:
    order = Order.objects.create(product="cup", amount=7)
    counted = count_orders.enqueue(5)
    sent = send_receipt.enqueue(order.pk, polite=False)
    refused = refuse.enqueue("no such tea")
    later = send_receipt.using(run_after=timezone.now() + timedelta(hours=1)).enqueue(order.pk)
    assert task_backends["default"].get_result(sent.id).status == TaskResultStatus.READY
    call_command("toril_worker", queue=["default=3", "reports"], until_idle=True)
    for result in (counted, sent, refused, later):
        result.refresh()
    assert counted.return_value == 1
    assert (sent.status, sent.return_value) == (TaskResultStatus.SUCCESSFUL, "7 × cup")
    assert sent.attempts == 1
    assert sent.finished_at is not None
    assert refused.status == TaskResultStatus.FAILED
    assert refused.errors[0].exception_class is LookupError
    assert "no such tea" in refused.errors[0].traceback
    assert "in refuse" in refused.errors[0].traceback
    assert "/src/toril/" not in refused.errors[0].traceback
    assert later.status == TaskResultStatus.READY
    with pytest.raises(TaskResultDoesNotExist):
        task_backends["default"].get_result("unknown")


def urgent_tasks_run_first() -> None:
    queue = open_queue("default", None, "bull")
    queue.drain(delayed=True)
    order = Order.objects.create(product="cup", amount=7)
    ids = [send_receipt.using(priority=one).enqueue(order.pk).id for one in (-100, 0, 100, 50)]
    assert [job.id for job in queue.get_jobs("prioritized", ascending=True)] == [
        ids[2],
        ids[3],
        ids[1],
        ids[0],
    ]
    queue.drain()


def a_row_of_the_outbox_becomes_one_job() -> None:
    queue = open_queue("parcels", None, "bull")
    ids = [outbox.enqueue(ship.bind(number), key="tea") for number in range(5)]
    relay = OutboxRelay(app, DjangoStore(), RelayOptions(rows=2, keep=1e-6))
    assert relay.send_all() == 5
    assert [job.id for job in queue.get_waiting()] == ids
    queue.drain()
    OutboxJob.objects.filter(id__in=ids).update(sent_at=None)
    assert relay.send_all() == 5
    assert queue.count() == 0
    assert relay.remove_expired() >= 5
    assert OutboxJob.objects.count() == 0
    refused, held = (outbox.enqueue(ship.bind(number), key="tea") for number in range(2))
    OutboxJob.objects.filter(id=refused).update(options="broken")
    assert relay.send_all() == 0
    assert OutboxJob.objects.get(id=refused).error
    OutboxJob.objects.filter(id=refused).update(options='{"attempts": 1}', error=None)
    assert relay.send_all() == 2
    assert [job.id for job in queue.get_waiting()] == [refused, held]
    relay.close()


def a_second_relay_stands_by() -> None:
    if not connection.features.has_select_for_update_skip_locked:
        return  # SQLite: it waits
    id = outbox.enqueue(ship.bind(7))
    relay = OutboxRelay(app, DjangoStore())
    with DjangoStore().unsent(10) as batch, ThreadPoolExecutor(1) as thread:
        assert batch is not None
        assert [row.id for row in batch.rows] == [id]
        assert thread.submit(send_in_a_thread, relay).result() == 0
    assert relay.send_all() == 1
    relay.close()


def send_in_a_thread(relay: OutboxRelay) -> int:
    try:
        return relay.send_some()
    finally:
        connection.close()  # that of the thread


def the_relay_connects_again_when_the_database_has_ended_its_connection() -> None:
    relay = OutboxRelay(app, DjangoStore())
    relay.send_all()
    outbox.enqueue(ship.bind(8))
    if connection.vendor == "postgresql":
        with connection.cursor() as cursor, contextlib.suppress(OperationalError):
            cursor.execute("SELECT pg_terminate_backend(pg_backend_pid())")
    assert relay.send_all() == 1
    relay.close()


def wrong_settings_and_arguments_are_refused() -> None:
    with pytest.raises(InvalidOption, match="attempts"):
        TorilBackend("default", {"OPTIONS": {"attemps": 3}})
    for wrong in ({"queue": ["unknown"]}, {"queue": ["default=x"]}):
        with pytest.raises(CommandError):
            call_command("toril_worker", until_idle=True, **wrong)


def the_admin_leads_to_the_dashboard() -> None:
    client = Client()
    assert client.get("/admin/toril/queuelink/").url.startswith("/admin/login/")
    User.objects.create_superuser("ada", password="a")
    assert client.login(username="ada", password="a")
    assert "/admin/toril/queuelink/" in client.get("/admin/").content.decode()
    assert client.get("/admin/toril/queuelink/").url == "http://127.0.0.1:8400/"


if __name__ == "__main__":
    call_command("migrate", verbosity=0)
    call_command("check")
    call_command("makemigrations", check=True, dry_run=True)
    tasks_are_those_of_the_framework_of_this_django()
    a_committed_order_has_its_jobs()
    a_transaction_that_is_rolled_back_adds_no_job()
    results_are_those_of_the_jobs()
    urgent_tasks_run_first()
    a_row_of_the_outbox_becomes_one_job()
    a_second_relay_stands_by()
    the_relay_connects_again_when_the_database_has_ended_its_connection()
    wrong_settings_and_arguments_are_refused()
    the_admin_leads_to_the_dashboard()
    close_queues()
    close_apps()
    print("ok")
