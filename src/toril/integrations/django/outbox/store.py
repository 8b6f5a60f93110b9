"""The table of the outbox for the relay, through Django's ORM."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta

from toril.integrations.django.outbox.models import OutboxJob, OutboxRelayLock
from toril.integrations.outbox.rows import OutboxRow
from toril.protocol.extras import needed

with needed("django"):
    from django.db import close_old_connections, connections, transaction
    from django.db.models import Q
    from django.utils import timezone

_COLUMNS = ("id", "queue", "name", "data", "options", "key")


class DjangoBatch:
    """Unsent rows in an open transaction."""

    def __init__(self, using: str, outbox: str, rows: Sequence[OutboxRow]) -> None:
        self._jobs = OutboxJob.objects.using(using)
        self.outbox = outbox
        self.rows = rows

    def mark_sent(self, ids: Sequence[str]) -> None:
        self._jobs.filter(id__in=ids).update(sent_at=timezone.now(), error=None)

    def mark_refused(self, errors: Mapping[str, str]) -> None:
        for id, error in errors.items():
            self._jobs.filter(id=id).update(error=error)


class DjangoStore:
    """The outbox in one of Django's databases."""

    def __init__(self, using: str = "default") -> None:
        self._using = using
        self._jobs = OutboxJob.objects.using(using)

    @contextmanager
    def unsent(self, limit: int) -> Iterator[DjangoBatch | None]:
        """Unsent rows in the order of their positions, under the lock of the relay."""
        close_old_connections()  # a broken one is replaced
        with transaction.atomic(using=self._using):
            name = self._locked_name()
            if name is None:
                yield None
                return
            waiting = self._jobs.filter(sent_at=None)
            held = waiting.exclude(error=None).exclude(key=None).values("key")
            going = waiting.filter(error=None).filter(Q(key=None) | ~Q(key__in=held))
            rows = [OutboxRow(**one) for one in going.order_by("position").values(*_COLUMNS)[:limit]]
            yield DjangoBatch(self._using, name, rows)

    @contextmanager
    def expired(self, keep: float, limit: int) -> Iterator[tuple[str, Mapping[str, Sequence[str]]]]:
        """Rows that were sent long enough ago; they are deleted when the block is left."""
        with transaction.atomic(using=self._using):
            name = self._locked_name()
            if name is None:
                yield "", {}
                return
            before = timezone.now() - timedelta(seconds=keep)
            by_queue: dict[str, list[str]] = {}
            for id, queue in self._jobs.filter(sent_at__lt=before).values_list("id", "queue")[:limit]:
                by_queue.setdefault(queue, []).append(id)
            yield name, by_queue
            self._jobs.filter(id__in=[id for ids in by_queue.values() for id in ids]).delete()

    def _locked_name(self) -> str | None:
        """The name of the outbox, whose row is locked until the transaction ends; None if another relay has it."""
        locks = OutboxRelayLock.objects.using(self._using)
        skips = connections[self._using].features.has_select_for_update_skip_locked
        found = locks.select_for_update(skip_locked=skips).filter(id=1).first()
        if found is not None:
            return str(found.outbox)
        _, is_new = locks.get_or_create(id=1, defaults={"outbox": str(uuid.uuid4())})
        return str(locks.get(id=1).outbox) if is_new else None
