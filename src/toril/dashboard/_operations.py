"""Operations: acts on many jobs, run by the server, with progress and cancel.

Guarantee: what an operation does and how far it came is stored, so that any web process shows it. When its process dies
the operation is interrupted, and can be continued: a job that was retried, removed or promoted is not in its list any
more, and failures that are younger than the operation are left alone, so no job is done twice.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import time
import uuid
from collections.abc import AsyncIterator
from dataclasses import dataclass, field, replace
from typing import Any, Final

from toril.commands import operations as commands
from toril.dashboard._bulk import BulkAct, Selection, run_bulk
from toril.dashboard._failures import Examination, FailureGroup, examine
from toril.dashboard._sources import QueueSource, ShownQueue
from toril.dashboard._view import View
from toril.errors import TorilError

HEARTBEAT: Final = 1.0
MOST_SHOWN: Final = 100
# Characters of a pattern that are stored with an examination.
MOST_PATTERN: Final = 300


@dataclass(slots=True, kw_only=True)
class Operation:
    """One act on many jobs."""

    id: str
    act: BulkAct
    queue: str
    selection: Selection
    user: str
    started_ms: int
    state: str = "running"  # running, done, cancelled, failed, interrupted
    done: int = 0
    skipped: int = 0
    total: int = 0
    updated_ms: int = 0
    error: str = ""
    groups: list[dict[str, Any]] = field(default_factory=list)  # what an examination found

    def fields(self) -> dict[str, str]:
        """Returns what is stored."""
        return {
            "act": self.act.name,
            "options": json.dumps(
                {"rate": self.act.rate, "grace": self.act.grace, "delayed": self.act.delayed}
            ),
            "queue": self.queue,
            "selection": json.dumps(self.selection.as_dict()),
            "user": self.user,
            "started_ms": str(self.started_ms),
            **self.progress(),
        }

    def progress(self) -> dict[str, str]:
        return {
            "state": self.state,
            "done": str(self.done),
            "skipped": str(self.skipped),
            "total": str(self.total),
            "updated_ms": str(round(time.time() * 1000)),
            "error": self.error,
            **({"groups": json.dumps(self.groups)} if self.groups else {}),
        }

    @classmethod
    def read(cls, operation_id: str, fields: dict[str, str], alive: bool) -> Operation:
        """Returns an operation as it is stored; one that nobody runs was interrupted."""
        state = fields.get("state", "")
        return cls(
            id=operation_id,
            act=BulkAct(name=fields.get("act", ""), **json.loads(fields.get("options") or "{}")),
            queue=fields.get("queue", ""),
            selection=Selection(**json.loads(fields.get("selection") or "{}")),
            user=fields.get("user", ""),
            started_ms=int(fields.get("started_ms") or 0),
            state="interrupted" if state == "running" and not alive else state,
            done=int(fields.get("done") or 0),
            skipped=int(fields.get("skipped") or 0),
            total=int(fields.get("total") or 0),
            updated_ms=int(fields.get("updated_ms") or 0),
            error=fields.get("error", ""),
            groups=json.loads(fields.get("groups") or "[]"),
        )


@dataclass(slots=True)
class _Run:
    operation: Operation
    cancelled: asyncio.Event = field(default_factory=asyncio.Event)


class Operations:
    """The operations that this process runs, and all that are stored."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[None]] = set()
        self._runner = f"{os.getpid()}-{uuid.uuid4().hex[:8]}"

    async def begin(
        self, view: View, queue: ShownQueue, act: BulkAct, selection: Selection, total: int
    ) -> str:
        """Stores a new operation, runs it in the background and returns its id."""
        now_ms = round(time.time() * 1000)
        operation = Operation(
            id=uuid.uuid4().hex[:16],
            act=act,
            queue=queue.id,
            # Later failures do not belong to this operation.
            selection=replace(selection, until_ms=now_ms),
            user=view.access.user,
            started_ms=now_ms,
            total=total,
        )
        source = queue.source
        await source.run(commands.claim_operation(source.prefix, operation.id, self._runner))
        await source.run_all(
            *commands.save_operation(source.prefix, operation.id, operation.fields(), now_ms)
        )
        self._start(view, queue, operation)
        return operation.id

    async def resume(self, view: View, queue: ShownQueue, operation: Operation) -> bool:
        """Continues an interrupted operation; returns False if another process runs it."""
        source = queue.source
        if not await source.run(commands.claim_operation(source.prefix, operation.id, self._runner)):
            return False
        operation.state = "running"
        if operation.act.name == "examine":  # what was examined is not stored: it begins again
            operation.done = 0
        await source.run(commands.set_cancel(source.prefix, operation.id, False))
        self._start(view, queue, operation)
        return True

    def _start(self, view: View, queue: ShownQueue, operation: Operation) -> None:
        task = asyncio.create_task(self._run(view, queue, _Run(operation)), name="toril-operation")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _run(self, view: View, queue: ShownQueue, run: _Run) -> None:
        operation = run.operation
        heartbeat = asyncio.create_task(
            self._store_repeatedly(queue.source, run), name="toril-operation-heartbeat"
        )
        made = Examination()
        try:
            async for done, skipped in _steps(view, queue, run, made):
                operation.done += done
                operation.skipped += skipped
            operation.state = "cancelled" if run.cancelled.is_set() else "done"
        except TorilError as error:
            operation.state, operation.error = "failed", str(error)
        finally:
            heartbeat.cancel()
            await asyncio.wait([heartbeat])
        if operation.act.name == "examine":
            operation.groups = [_summary(one) for one in made.largest()]
            view.parts.failures.keep(queue, made)
        else:
            view.parts.failures.forget(queue)
            queue.source.outdate()
        with contextlib.suppress(TorilError):
            await self._store(queue.source, operation)
            await queue.source.run(commands.release_operation(queue.source.prefix, operation.id))

    async def _store_repeatedly(self, source: QueueSource, run: _Run) -> None:
        while True:
            with contextlib.suppress(TorilError):
                if await self._store(source, run.operation):
                    run.cancelled.set()
            await asyncio.sleep(HEARTBEAT / 2)

    async def _store(self, source: QueueSource, operation: Operation) -> bool:
        """Stores the progress; returns whether someone asked to cancel."""
        _, cancel, _ = await source.run_all(
            *commands.update_operation(source.prefix, operation.id, self._runner, operation.progress())
        )
        return bool(cancel)

    async def close(self) -> None:
        """Stops this process's operations: they are shown as interrupted and can be continued."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)


def _steps(view: View, queue: ShownQueue, run: _Run, made: Examination) -> AsyncIterator[tuple[int, int]]:
    operation = run.operation
    if operation.act.name == "examine":
        return examine(view, queue, made, run.cancelled)
    return run_bulk(view, queue, operation.act, operation.selection, run.cancelled)


def _summary(group: FailureGroup) -> dict[str, Any]:
    """Returns what is stored of a group."""
    return {
        "fingerprint": group.fingerprint,
        "pattern": group.pattern[:MOST_PATTERN],
        "count": group.count,
        "first_ms": group.first_ms,
        "last_ms": group.last_ms,
    }


async def get_operation(source: QueueSource, operation_id: str) -> Operation | None:
    """Returns an operation; None if there is none."""
    fields, alive = await source.run_all(*commands.get_operation(source.prefix, operation_id))
    return Operation.read(operation_id, fields, bool(alive)) if fields else None


async def list_operations(source: QueueSource) -> list[Operation]:
    """Returns the newest operations."""
    ids = await source.run(commands.list_operations(source.prefix, MOST_SHOWN))
    wanted = [command for one in ids for command in commands.get_operation(source.prefix, one)]
    replies = await source.run_all(*wanted)
    pairs = zip(ids, replies[::2], replies[1::2], strict=True)
    return [Operation.read(one, fields, bool(alive)) for one, fields, alive in pairs if fields]
