"""Processes, traces and waiting times on every kind of queue."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.conformance.kinds import KINDS, Kind
from tests.conformance.process_bound_handlers import die, note_process
from tests.servers import Server
from toril import ListQueue, Queue, StreamQueue
from toril.telemetry.hooks import NoMetrics, Work


@pytest.fixture(params=KINDS, ids=lambda kind: kind.name)
def make(request: pytest.FixtureRequest) -> Any:
    return request.param


async def run_all(kind: Kind, handler: Any, **options: Any) -> None:
    async with asyncio.timeout(50), kind.worker(handler, **options) as worker:
        await worker.run_until_idle()


async def test_a_handler_can_run_in_a_process_of_its_own(
    make: Any, valkey: Server, prefix: str, tmp_path: Path
) -> None:
    target = tmp_path / "note"
    async with make(valkey.url, prefix).opened() as kind:
        job_id = await kind.add("note", {"file": str(target)})
        await run_all(kind, note_process, executor="process")
        assert await kind.failed_jobs() == []
    pid, *rest = target.read_text().split()
    assert int(pid) != os.getpid()
    assert rest == [job_id, "note"]


async def test_a_handler_that_takes_its_process_down_fails_its_own_job_only(
    make: Any, valkey: Server, prefix: str, tmp_path: Path
) -> None:
    target = tmp_path / "note"
    async with make(valkey.url, prefix).opened() as kind:
        await kind.add("die", {})
        await kind.add("note", {"file": str(target)})
        await run_all(kind, {"die": die, "note": note_process}, executor="process")
        (failed_job,) = await kind.failed_jobs()
    assert "SIGKILL" in failed_job.reason
    assert target.exists()


class Notebook:
    """A tracer that writes down what it is told."""

    def __init__(self) -> None:
        self.carrier = '{"traceparent": "00-aa-bb-01"}'
        self.ids: list[str] = []
        self.work: list[Work] = []

    @contextlib.contextmanager
    def adding(self, queue: str, names: Sequence[str], *, operation: str = "add") -> Iterator[Notebook]:
        yield self

    def added(self, job_ids: Sequence[str]) -> None:
        self.ids += job_ids

    @contextlib.contextmanager
    def processing(self, work: Work) -> Iterator[None]:
        self.work.append(work)
        yield


async def test_a_trace_goes_on_from_the_producer_to_the_worker(
    make: Any, valkey: Server, prefix: str
) -> None:
    notes = Notebook()
    kind: Kind = make(valkey.url, prefix)
    cls: Any = {"bullmq": Queue, "stream": StreamQueue}.get(kind.name, ListQueue)
    place: dict[str, Any] = {"redis": valkey.url, "prefix": prefix, "tracer": notes}
    name = "work" if cls is Queue else "jobs.work"
    async with cls(name, **place, **({} if cls is Queue else {"env": "test"})) as queue:
        await queue.add("one", {})
        await queue.add_bulk([("two", {}), ("three", {})])

    async def handle(job: Any) -> None:
        return None

    await run_all(kind, handle, tracer=notes)
    assert sorted(work.job_id for work in notes.work) == sorted(notes.ids)
    assert {work.name for work in notes.work} == {"one", "two", "three"}
    assert {work.carrier for work in notes.work} == {notes.carrier}


async def test_the_time_a_job_waited_is_measured(make: Any, valkey: Server, prefix: str) -> None:
    class Waits(NoMetrics):
        __slots__ = ("seconds",)

        def __init__(self) -> None:
            self.seconds: list[float] = []

        def observe_wait(self, queue: str, seconds: float) -> None:
            self.seconds.append(seconds)

    async def handle(job: Any) -> None:
        return None

    waits = Waits()
    async with make(valkey.url, prefix).opened() as kind:
        await kind.add()
        await asyncio.sleep(0.2)  # this is what is measured
        await run_all(kind, handle, metrics=waits)
    assert len(waits.seconds) == 1
    assert 0.15 <= waits.seconds[0] < 20
