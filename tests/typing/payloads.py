"""A user's program, read by the strict type checker: payload models of every kind reach the handler as themselves.

Never run; `mypy --strict` must accept it, and each `type: ignore` marks a mistake that it must find.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypedDict, assert_type

import msgspec
import pydantic

from toril import (
    Backoff,
    Event,
    Job,
    JobCounts,
    JobOptions,
    JobState,
    NewJob,
    Queue,
    QueueEvents,
    Worker,
    sync,
)
from toril.events import Gap
from toril.protocol.codec import PayloadCodec


@dataclass
class Email:
    to: str
    copies: int = 1


class Order(TypedDict):
    number: int


class Picture(msgspec.Struct):
    url: str


class Person(pydantic.BaseModel):
    name: str


async def typed_queues() -> None:
    emails = Queue("emails", payload=Email)
    assert_type(emails, Queue[Email])
    job = await emails.add("send", Email("a@b.c"), attempts=5, backoff=Backoff.exponential(1.0), delay=2.0)
    assert_type(job, Job[Email])
    assert_type(job.data, Email)
    assert_type(job.data.to, str)
    assert_type(
        await emails.add_bulk([("send", Email("a@b.c")), NewJob("send", Email("b@c.d"))]), list[Job[Email]]
    )
    assert_type(await emails.get_job("1"), Job[Email] | None)

    assert_type((await Queue("orders", payload=Order).add("x", {"number": 1})).data, Order)
    assert_type((await Queue("pictures", payload=Picture).add("x", Picture("https://…"))).data, Picture)
    assert_type((await Queue("people", payload=Person).add("x", Person(name="Ada"))).data, Person)
    assert_type((await Queue("numbers", payload=PayloadCodec[int](int)).add("x", 1)).data, int)

    await emails.add("send", {"to": "a@b.c"})  # type: ignore[arg-type]
    await emails.add("send", Email("a@b.c"), atempts=5)  # type: ignore[call-arg]
    await emails.add("send", Email("a@b.c"), attempts="five")  # type: ignore[arg-type]
    await job.update_data(Order(number=1))  # type: ignore[arg-type]


async def untyped_queues() -> None:
    async with Queue("emails", redis="redis://localhost:6379", defaults=JobOptions(attempts=5)) as queue:
        job = await queue.add("send", {"to": "a@b.c"})
        assert_type(job, Job[Any])
        await queue.add("nothing to say")
        assert_type(await queue.get_job_counts(), JobCounts)
        assert_type(await job.get_state(), JobState)
        await job.update_progress(50, message="half way")
        await job.wait_until_finished(timeout=10)
    with_schema = Queue("checked", payload={"type": "object"})
    assert_type(with_schema, Queue[Any])


async def handle_any(job: Job) -> dict[str, Any]:
    await job.log(job.data["to"])
    return {"ok": True}


async def handle_email(job: Job[Email]) -> str:
    assert_type(job.data, Email)
    return job.data.to


def handle_in_thread(job: sync.Job[Email]) -> str:
    job.update_progress(50)
    assert_type(job.data, Email)
    return job.data.to


async def workers() -> None:
    async with Worker("emails", handle_any, concurrency=50) as worker:
        await worker.run_until_idle()
    async with Worker("emails", {"send": handle_email, "*": handle_in_thread}, payload=Email):
        pass
    Worker("emails", handle_any, concurency=50)  # type: ignore[call-arg]


async def events() -> None:
    async with QueueEvents("emails", last_id="0") as stream:
        async for event in stream:
            if isinstance(event, Gap):
                assert_type(event.missed, int | None)
            else:
                assert_type(event, Event)
                assert_type(event.job_id, str | None)


def blocking() -> None:
    with sync.Queue("emails", payload=Email) as queue:
        assert_type(queue, sync.Queue[Email])
        job = queue.add("send", Email("a@b.c"), priority=3)
        assert_type(job, sync.Job[Email])
        assert_type(job.data, Email)
        assert_type(job.get_state(), JobState)
        queue.add("send", "a@b.c")  # type: ignore[arg-type]
    with sync.Worker("emails", handle_in_thread, concurrency=4) as worker:
        worker.run_until_idle()
    with sync.QueueEvents("emails") as stream:
        for event in stream:
            assert_type(event, Event | Gap)


def finished(job: Job[Email], result: Any) -> None: ...


def went_wrong(job: Job[Email], error: BaseException) -> None: ...


def listeners() -> None:
    worker = Worker("emails", handle_email, payload=Email)
    worker.on("completed", finished)
    worker.on("failed", went_wrong)
    worker.on("retrying", lambda job, error, delay: print(job.id, error, delay + 1.0))
    worker.on("stalled", lambda job_ids: print(", ".join(job_ids)))
    assert_type(worker.on("ready", blocking), Callable[[], Any])
    worker.on("ready", finished)  # type: ignore[call-overload]
    worker.on("retrying", went_wrong)  # type: ignore[call-overload]
    worker.on("complete", finished)  # type: ignore[call-overload]
    stream = QueueEvents("emails")
    stream.on("completed", lambda event: print(event.returnvalue))
    stream.on("gap", lambda gap: print(gap.missed))
    stream.on("completed", blocking)  # type: ignore[arg-type]
