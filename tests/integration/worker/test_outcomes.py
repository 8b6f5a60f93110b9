"""What a handler does decides what becomes of its job."""

from __future__ import annotations

import asyncio
import contextvars
import time
from collections.abc import Callable
from typing import Any

import pytest

from tests.integration.worker.conftest import QUEUE, until_state
from tests.servers import Server
from toril import Backoff, InvalidOption, Job, PermanentError, Queue, TransientError, Worker
from toril.errors import Postpone, RateLimitError, Requeue
from toril.sync import Job as BlockingJob
from toril.transport import AsyncTransport
from toril.worker import _attempt_runner


async def test_the_return_value_is_the_result(queue: Queue, valkey_url: str, prefix: str) -> None:
    async def handle(job: Job[Any]) -> dict[str, Any]:
        return {"got": job.data["n"], "text": "é😀\x00"}

    job = await queue.add("n", {"n": 1})
    async with Worker(QUEUE, handle, redis=valkey_url, prefix=prefix) as worker:
        assert await job.wait_until_finished(timeout=10) == {"got": 1, "text": "é😀\x00"}
        await worker.run_until_idle()
    found = await queue.get_job(job.id)
    assert found is not None
    assert (found.attempts_made, found.attempts_started) == (1, 1)
    assert found.processed_by == worker.id


async def test_jobs_of_unknown_names_ahead_cost_no_more_calls_than_jobs_that_are_run(
    start_valkey: Callable[..., Server], prefix: str
) -> None:
    server = start_valkey()
    calls: dict[str, int] = {}
    for ahead in ("known", "unknown"):
        done = asyncio.Event()

        async def last(_: Job[Any], done: asyncio.Event = done) -> None:
            done.set()

        async with Queue(ahead, redis=server.url, prefix=prefix) as queue:
            await queue.add_bulk([(ahead, {"i": i}) for i in range(2000)])
            await queue.add("last")
            worker = Worker(
                ahead, {"known": ran, "last": last}, redis=server.url, prefix=prefix, concurrency=50
            )
            before = script_calls(server)
            async with asyncio.timeout(30), worker:
                await done.wait()
                calls[ahead] = script_calls(server) - before
            if ahead == "unknown":
                counts = await queue.get_job_counts()
                assert (counts.completed, counts.failed) == (1, 0)
                assert counts.delayed + counts.waiting + counts.active == 2000
    assert calls["unknown"] <= 1.5 * calls["known"] < 200, calls


async def ran(_: Job[Any]) -> None:
    """A job that does nothing."""


def script_calls(server: Server) -> int:
    with server.client() as client:
        return int(client.info("commandstats").get("cmdstat_evalsha", {"calls": 0})["calls"])


async def test_a_transient_error_is_retried_until_it_passes(
    queue: Queue, valkey_url: str, prefix: str
) -> None:
    seen: list[int] = []

    async def handle(job: Job[Any]) -> str:
        seen.append(job.attempts_made)
        if len(seen) < 3:
            raise TransientError("not yet")
        return "done"

    job = await queue.add("n", {}, attempts=5, backoff=Backoff.fixed(0.01))
    async with Worker(QUEUE, handle, redis=valkey_url, prefix=prefix) as worker:
        await worker.run_until_idle()
    assert seen == [0, 1, 2]
    found = await queue.get_job(job.id)
    assert found is not None and found.returnvalue == "done"
    assert len(found.stacktrace) == 2


async def test_a_job_that_keeps_failing_ends_in_failed_with_all_its_traces(
    queue: Queue, valkey_url: str, prefix: str
) -> None:
    async def handle(_: Job[Any]) -> None:
        raise TransientError("never")

    job = await queue.add("n", {}, attempts=3, backoff=Backoff.fixed(0.01))
    async with Worker(QUEUE, handle, redis=valkey_url, prefix=prefix) as worker:
        await worker.run_until_idle()
    found = await queue.get_job(job.id)
    assert found is not None
    assert (found.attempts_made, found.failed_reason, len(found.stacktrace)) == (3, "never", 3)
    assert "TransientError: never" in found.stacktrace[0]


@pytest.mark.parametrize("error", [PermanentError("no"), ValueError("no"), FileNotFoundError("no")])
async def test_a_permanent_error_fails_at_once(
    queue: Queue, valkey_url: str, prefix: str, error: Exception
) -> None:
    async def handle(_: Job[Any]) -> None:
        raise error

    job = await queue.add("n", {}, attempts=5)
    async with Worker(QUEUE, handle, redis=valkey_url, prefix=prefix) as worker:
        await worker.run_until_idle()
    found = await queue.get_job(job.id)
    assert found is not None and found.attempts_made == 1 and found.failed_reason == "no"


async def test_unknown_errors_are_retried_where_the_worker_says_so(
    queue: Queue, valkey_url: str, prefix: str
) -> None:
    class Strange(Exception):
        pass

    async def handle(_: Job[Any]) -> None:
        raise Strange("odd")

    job = await queue.add("n", {}, attempts=2, backoff=Backoff.fixed(0.01))
    async with Worker(QUEUE, handle, redis=valkey_url, prefix=prefix, unknown_errors="transient") as worker:
        await worker.run_until_idle()
    found = await queue.get_job(job.id)
    assert found is not None and found.attempts_made == 2


def pause_in_thread(attempts_made: int, error: BaseException | None, job: Any) -> float:
    job.data["seen"].append((attempts_made, str(error), job.name))
    return 0.01


async def pause_after_asking(attempts_made: int, error: BaseException | None, job: Job[Any]) -> float:
    await job.log(f"attempt {attempts_made}: {error}")  # it may do I/O
    return pause_in_thread(attempts_made, error, job)


@pytest.mark.parametrize("pause", [pause_in_thread, pause_after_asking])
async def test_a_backoff_may_know_the_job_and_be_a_coroutine(
    queue: Queue, valkey_url: str, prefix: str, pause: Any
) -> None:
    seen: list[Any] = []

    async def handle(job: Job[Any]) -> None:
        job.data["seen"] = seen
        raise TransientError(f"no {job.attempts_made}")

    job = await queue.add("report", {}, attempts=3, backoff=Backoff.custom("lunar"))
    worker = Worker(QUEUE, handle, redis=valkey_url, prefix=prefix, backoffs={"lunar": pause})
    async with worker:
        await worker.run_until_idle()
    assert seen == [(1, "no 0", "report"), (2, "no 1", "report")]
    assert await job.is_failed()
    wanted = ["attempt 1: no 0", "attempt 2: no 1"] if pause is pause_after_asking else []
    assert await job.get_logs() == wanted


async def raising(_made: int, _error: BaseException | None) -> float:
    raise ZeroDivisionError("no pause today")


async def giving_up(_made: int, _error: BaseException | None) -> None:
    return None


async def giving_nonsense(_made: int, _error: BaseException | None) -> Any:
    return "soon"


async def hanging(_made: int, _error: BaseException | None) -> float:
    return await asyncio.get_running_loop().create_future()  # type: ignore[no-any-return]


async def cancelling(_made: int, _error: BaseException | None) -> float:
    raise asyncio.CancelledError


ENDS: dict[Any, str] = {
    raising: "no (no retry: no pause today)",
    giving_up: "no",
    giving_nonsense: "no (no retry: backoff 'lunar'",
    hanging: "no (no retry: TimeoutError",
    cancelling: "no (no retry: CancelledError",
}


@pytest.mark.parametrize("pause", ENDS)
async def test_a_backoff_that_returns_no_delay_ends_the_job_and_its_error_is_reported(
    queue: Queue, valkey_url: str, prefix: str, pause: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_attempt_runner, "BACKOFF_SECONDS", 0.05)
    errors: list[BaseException] = []

    async def handle(job: Job[Any]) -> None:
        if job.name == "bad":
            raise TransientError("no")

    bad = await queue.add("bad", {}, attempts=3, backoff=Backoff.custom("lunar"))
    good = await queue.add("good")
    worker = Worker(QUEUE, handle, redis=valkey_url, prefix=prefix, backoffs={"lunar": pause})
    worker.on("error", errors.append)
    async with worker:
        await worker.run_until_idle()
    await bad.refresh()
    assert (bad.failed_reason or "").startswith(ENDS[pause])
    assert bad.attempts_made == 1
    assert await good.is_completed()
    assert len(errors) == (pause is not giving_up)


async def test_a_worker_that_stops_does_not_wait_for_a_backoff(
    queue: Queue, valkey_url: str, prefix: str
) -> None:
    asked = asyncio.Event()

    async def pause(_made: int, _error: BaseException | None) -> float:
        asked.set()
        return await asyncio.get_running_loop().create_future()  # type: ignore[no-any-return]

    async def handle(_: Job[Any]) -> None:
        raise TransientError("no")

    job = await queue.add("n", {}, attempts=3, backoff=Backoff.custom("lunar"))
    worker = Worker(QUEUE, handle, redis=valkey_url, prefix=prefix, backoffs={"lunar": pause})
    async with worker, asyncio.timeout(20):
        await asked.wait()
        await worker.stop(0)
    assert await job.is_waiting()  # another worker will run it
    await job.refresh()
    assert job.attempts_made == 0


async def test_a_backoff_of_zero_retries_at_once(queue: Queue, valkey_url: str, prefix: str) -> None:
    async def handle(job: Job[Any]) -> None:
        if job.attempts_made < 2:
            raise TransientError("no")

    told: list[float] = []
    await queue.add("n", {}, attempts=3, backoff=0)
    worker = Worker(QUEUE, handle, redis=valkey_url, prefix=prefix, backoff_delay=60)
    worker.on("retrying", lambda job, error, delay: told.append(delay))
    async with worker:
        await worker.run_until_idle()
    assert told == [0, 0]


async def test_max_attempts_of_the_worker_override_the_jobs(
    queue: Queue, valkey_url: str, prefix: str
) -> None:
    async def handle(_: Job[Any]) -> None:
        raise TransientError("no")

    job = await queue.add("n", {}, attempts=9, backoff=Backoff.fixed(0.01))
    async with Worker(QUEUE, handle, redis=valkey_url, prefix=prefix, max_attempts=2) as worker:
        await worker.run_until_idle()
    found = await queue.get_job(job.id)
    assert found is not None and found.attempts_made == 2


async def test_signals_steer_a_job_without_costing_an_attempt(
    queue: Queue, valkey_url: str, prefix: str
) -> None:
    steps = [Postpone(0.01), Requeue(), RateLimitError(0.01)]

    async def handle(job: Job[Any]) -> int:
        if steps:
            raise steps.pop(0)
        return job.attempts_made

    job = await queue.add("n", {})
    async with Worker(QUEUE, handle, redis=valkey_url, prefix=prefix):
        assert await job.wait_until_finished(timeout=10) == 0


async def test_a_rate_limit_error_pauses_a_worker_that_has_no_limit_of_its_own(
    queue: Queue, valkey_url: str, prefix: str
) -> None:
    started: list[float] = []

    async def handle(_: Job[Any]) -> None:
        started.append(time.monotonic())
        if len(started) == 1:
            raise RateLimitError(0.5)

    await queue.add_bulk([("n", {}), ("n", {})])
    async with Worker(QUEUE, handle, redis=valkey_url, prefix=prefix) as worker:
        await worker.run_until_idle()
    assert len(started) == 3
    assert started[1] - started[0] >= 0.45


async def test_a_rate_limit_error_without_a_time_means_the_hold_that_is_set(
    queue: Queue, valkey_url: str, prefix: str
) -> None:
    started: list[float] = []

    async def handle(job: Job[Any]) -> int:
        started.append(time.monotonic())
        if len(started) == 1:
            await queue.rate_limit(0.5)
            raise RateLimitError
        return job.attempts_made

    job = await queue.add("n", {})
    async with Worker(QUEUE, handle, redis=valkey_url, prefix=prefix):
        assert await job.wait_until_finished(timeout=10) == 0
    assert len(started) == 2
    assert started[1] - started[0] >= 0.45


async def test_a_result_without_a_json_form_fails_the_job(queue: Queue, valkey_url: str, prefix: str) -> None:
    async def handle(_: Job[Any]) -> object:
        return float("nan")

    job = await queue.add("n", {})
    async with Worker(QUEUE, handle, redis=valkey_url, prefix=prefix) as worker:
        await worker.run_until_idle()
    found = await queue.get_job(job.id)
    assert found is not None and found.failed_reason is not None and "result" in found.failed_reason


async def test_handlers_are_chosen_by_the_jobs_name(queue: Queue, valkey_url: str, prefix: str) -> None:
    async def mail(_: Job[Any]) -> str:
        return "mail"

    def other(job: BlockingJob[Any]) -> str:
        return job.name

    first = await queue.add("mail", {})
    second = await queue.add("anything", {})
    async with Worker(QUEUE, {"mail": mail, "*": other}, redis=valkey_url, prefix=prefix) as worker:
        await worker.run_until_idle()
    results = [await queue.get_job(job.id) for job in (first, second)]
    assert [job.returnvalue for job in results if job] == ["mail", "anything"]


async def test_a_name_without_a_handler_fails_and_says_which_there_are(
    queue: Queue, valkey_url: str, prefix: str
) -> None:
    async def mail(_: Job[Any]) -> None: ...

    job = await queue.add("fax", {})
    worker = Worker(QUEUE, {"mail": mail}, redis=valkey_url, prefix=prefix, unknown_names="fail")
    async with worker:
        await worker.run_until_idle()
    found = await queue.get_job(job.id)
    assert found is not None and found.failed_reason is not None
    assert "fax" in found.failed_reason and "mail" in found.failed_reason


async def test_context_variables_reach_handlers_and_do_not_leak_between_them(
    queue: Queue, valkey_url: str, prefix: str
) -> None:
    who = contextvars.ContextVar("who", default="nobody")
    who.set("the starter")
    seen: list[str] = []

    async def handle(job: Job[Any]) -> None:
        seen.append(who.get())
        who.set(job.id)

    await queue.add_bulk([("n", {}), ("n", {})])
    async with Worker(QUEUE, handle, redis=valkey_url, prefix=prefix) as worker:
        await worker.run_until_idle()
    assert seen == ["the starter", "the starter"]


async def test_an_overdue_attempt_is_ended_and_counts(queue: Queue, valkey_url: str, prefix: str) -> None:
    async def handle(_: Job[Any]) -> None:
        await asyncio.Event().wait()

    job = await queue.add("n", {}, attempts=1)
    async with Worker(QUEUE, handle, redis=valkey_url, prefix=prefix, job_timeout=0.05) as worker:
        await worker.run_until_idle()
    found = await queue.get_job(job.id)
    assert (
        found is not None and found.failed_reason is not None and "longer than 0.05 s" in found.failed_reason
    )


async def test_a_job_can_be_cancelled_from_elsewhere(queue: Queue, valkey_url: str, prefix: str) -> None:
    started = asyncio.Event()

    async def handle(_: Job[Any]) -> None:
        started.set()
        await asyncio.Event().wait()

    job = await queue.add("n", {}, attempts=3)
    async with Worker(QUEUE, handle, redis=valkey_url, prefix=prefix):
        await asyncio.wait_for(started.wait(), 10)
        await queue.cancel(job.id)
        await until_state(queue, job.id, "failed")
    found = await queue.get_job(job.id)
    assert found is not None and found.attempts_made == 1
    assert found.failed_reason is not None and "cancelled" in found.failed_reason


def test_a_handler_that_cannot_run_where_it_shall_is_refused_when_the_worker_is_made() -> None:
    async def handle(_: Job[Any]) -> None: ...

    with pytest.raises(InvalidOption, match="executor"):
        Worker(QUEUE, handle, executor="thread")
    with pytest.raises(InvalidOption, match="executor"):
        Worker(QUEUE, {"n": handle, "*": lambda job: None}, executor="async")


async def test_callbacks_hear_of_jobs_that_never_reached_a_handler(
    queue: Queue, valkey_url: str, prefix: str
) -> None:
    told: list[tuple[str, str]] = []

    async def handle(_: Job[Any]) -> None: ...

    job = await queue.add("n", {"to": 5}, attempts=1)
    worker = Worker(
        QUEUE, {"n": handle}, redis=valkey_url, prefix=prefix, payload=dict[str, str], unknown_names="fail"
    )
    worker.on("failed", lambda job, error: told.append((job.id, type(error).__name__)))
    async with worker:
        await worker.run_until_idle()
        other = await queue.add("nobody's", {}, attempts=1)
        await worker.run_until_idle()
    assert told == [(job.id, "PayloadMismatch"), (other.id, "PermanentError")]


async def test_a_malformed_job_fails_and_does_not_delay_the_others(
    queue: Queue, transport: AsyncTransport, valkey_url: str, prefix: str
) -> None:
    bad = await queue.add("n", {})
    good = await queue.add("n", {})
    await _corrupt(transport, queue, bad.id, "data", "{not json")
    await _corrupt(transport, queue, bad.id, "opts", "{not json")

    async def handle(job: Job[Any]) -> Any:
        return job.data

    async with Worker(QUEUE, handle, redis=valkey_url, prefix=prefix) as worker:
        await worker.run_until_idle()
    assert await good.get_state() == "completed"
    assert await bad.get_state() == "failed"


async def _corrupt(transport: AsyncTransport, queue: Queue, job_id: str, field: str, value: str) -> None:
    from toril.commands.command import plain

    await transport.run(plain(lambda reply: reply, "HSET", queue.keys.job(job_id), field, value))


def test_bad_handlers_and_options_are_refused_when_the_worker_is_made() -> None:
    with pytest.raises(InvalidOption, match="handler"):
        Worker(QUEUE, "handle")  # type: ignore[arg-type]
    with pytest.raises(InvalidOption, match="handler"):
        Worker(QUEUE, lambda: None)  # type: ignore[arg-type]
    with pytest.raises(InvalidOption, match="concurrency"):
        Worker(QUEUE, print, concurrency=0)
    with pytest.raises(InvalidOption, match="queue"):
        Worker("a:b", print)


@pytest.mark.parametrize("error", [GeneratorExit, asyncio.CancelledError, SystemExit])
async def test_whatever_a_handler_raises_before_it_waits_is_its_own_jobs_end(
    queue: Queue, valkey_url: str, prefix: str, error: type[BaseException]
) -> None:
    async def handle(job: Job[Any]) -> None:
        if job.name == "bad":
            raise error

    async with Worker(QUEUE, handle, redis=valkey_url, prefix=prefix) as worker:
        for _ in range(3):
            bad, good = await queue.add("bad", {}), await queue.add("good", {})
            await good.wait_until_finished(timeout=20)
            await until_state(queue, bad.id, "failed")
    assert (worker.processed, worker.failed) == (3, 3)
