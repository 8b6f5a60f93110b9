"""Jobs that must not run after their time (`expires`)."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tests.integration.worker.conftest import QUEUE, until_state
from toril import InvalidOption, Job, JobOptions, Queue, Worker
from toril.errors import JobExpired
from toril.telemetry.hooks import NoMetrics


class Reasons(NoMetrics):
    """Collects why jobs failed."""

    def __init__(self) -> None:
        self.found: list[str] = []

    def increment_jobs_failed(self, queue: str, reason: str) -> None:
        self.found.append(reason)


async def test_a_job_is_not_run_after_it_expired_and_is_counted(
    queue: Queue, valkey_url: str, prefix: str
) -> None:
    ran: list[str] = []
    errors: list[BaseException] = []
    long_ago = datetime.now(UTC) - timedelta(minutes=5)
    late = await queue.add("n", timestamp=long_ago, expires=60, attempts=5)
    in_time = await queue.add("n", expires=60)
    other = await queue.add("n", timestamp=long_ago)

    async def handle(job: Job[Any]) -> None:
        ran.append(job.id)

    metrics = Reasons()
    worker = Worker(QUEUE, handle, redis=valkey_url, prefix=prefix, metrics=metrics)
    worker.on("failed", lambda _, error: errors.append(error))
    async with worker:
        await until_state(queue, late.id, "failed")
        await worker.run_until_idle()
    assert ran == [in_time.id, other.id]
    assert [type(one) for one in errors] == [JobExpired]
    assert metrics.found == ["expired"]
    await late.refresh()
    assert late.failed_reason == "the job expired before it was run"


async def test_the_expiry_is_stored_with_the_options(queue: Queue) -> None:
    job = await queue.add("n", expires=timedelta(minutes=2))
    found = await queue.get_job(job.id)
    assert found is not None
    assert (found.opts["expires"], found.options.expires) == (120_000, 120.0)


@pytest.mark.parametrize("wrong", [0, -1, "soon", True])
def test_an_expiry_that_makes_no_sense_is_refused(wrong: Any) -> None:
    with pytest.raises(InvalidOption, match="expires"):
        JobOptions(expires=wrong)
