"""A call as a row of the outbox.

Guarantee: everything that can be checked without Redis is checked when the row is made, so that a row can be sent. The
id of the row is the id of its job.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from typing import Any

import msgspec

from toril.app import App, TaskCall
from toril.commands.add import JobToAdd
from toril.errors import InvalidOption, InvalidOutboxRow, TorilError
from toril.producer.job_builder import JobBuilder
from toril.protocol.codec import from_json, to_json
from toril.protocol.keys import QueueKeys, check_job_id, check_text
from toril.protocol.options import JobOptions
from toril.protocol.queue_name import QueueName


@dataclass(frozen=True, slots=True, kw_only=True)
class OutboxRow:
    """One job to be added."""

    id: str
    queue: str
    name: str
    data: str  # JSON
    options: str  # JSON, under BullMQ's names
    key: str | None = None  # rows of one key are sent in order

    def to_add(self, now_ms: int) -> JobToAdd:
        """The job for the scripts; its delay begins now. Raises `InvalidOutboxRow`."""
        try:
            from_json(self.data, field="data")
            options = from_json(self.options, dict[str, Any], field="options")
            _check_wire(options)
            check_job_id(self.id)
        except TorilError as error:
            raise InvalidOutboxRow(self.id, str(error)) from error
        return JobToAdd(
            name=self.name, data=self.data.encode(), options=options, timestamp=now_ms, id=self.id
        )


def _check_wire(options: dict[str, object]) -> None:
    """Numbers of the options that decide which script adds the job."""
    for name in ("attempts", "delay", "priority"):
        value = options.get(name, 0)
        if not isinstance(value, int | float) or isinstance(value, bool) or value < 0:
            raise InvalidOption(name, f"is {value!r}", "write a number")


def row_of(call: TaskCall, key: str | None = None) -> OutboxRow:
    """The row of a call; raises if its job could not be added."""
    queue = call.task.queue
    if queue.kind != "bullmq":
        raise InvalidOption("queue", f"{queue} is not a BullMQ queue", "the outbox needs one")
    if call.options.parent is not None:
        raise InvalidOption("parent", "is not an option of the outbox", "add the child in a task")
    if call.options.job_id is not None:
        raise InvalidOption("job_id", "is not an option of the outbox", "the job has the id of its row")
    if key is not None:
        check_text("key", key)
    options = call.task.app.queue_options(queue)
    defaults = options.fields.get("defaults", JobOptions())
    builder = JobBuilder(QueueKeys(queue.name), defaults=defaults, ids="uuid", payload=None, cluster=False)
    built = builder.build(call.task.name, msgspec.Raw(call.data), call.options)
    codecs = options.worker_options.queue_codecs
    data = built.data if codecs is None else codecs.encode(built.name, built.data, "data")
    wire = built.to_add(0).options
    return OutboxRow(
        id=str(uuid.uuid4()),
        queue=queue.name,
        name=built.name,
        data=data.decode(),
        options=to_json(wire).decode(),
        key=key,
    )


def keys_of(app: App, queue: str, *, cluster: bool) -> QueueKeys:
    """The keys of a queue of the app."""
    options = app.queue_options(QueueName.parse(queue))
    return QueueKeys(queue, options.prefix, options.fields.get("hash_tag")).resolve(cluster=cluster)
