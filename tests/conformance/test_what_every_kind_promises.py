"""What all kinds of queue promise alike: the same handlers, errors, attempts and stops.

kind            a worker dies                         a worker stops
bullmq          its jobs run again (at least once)    its jobs go back
list            its jobs are gone (at most once)      its jobs go back
reliable list   its jobs run again (at least once)    its jobs go back
stream          its jobs run again (at least once)    its jobs go back
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from typing import Any

import pytest

from tests.conformance.kinds import Kind
from toril import Envelope, PermanentError, TransientError
from toril.backends.base import FinishedJob, settle_and_fetch
from toril.errors import Postpone, RateLimitError, Requeue
from toril.protocol.outcome import Completed, Failed, Requeued, Retry
from toril.telemetry.hooks import NoMetrics

pytestmark = pytest.mark.timeout(60)


def silent(seconds: float = 20) -> asyncio.Timeout:
    return asyncio.timeout(seconds)


async def run_all(kind: Kind, handler: Any, **options: Any) -> None:
    async with silent(), kind.worker(handler, **options) as worker:
        await worker.run_until_idle()


async def test_a_job_runs_once_and_leaves_nothing_to_do(kind: Kind) -> None:
    seen = []

    async def handle(job: Any) -> None:
        seen.append(kind.payload(job))

    await kind.add(payload={"n": 1, "text": "grüezi"})
    await run_all(kind, handle)
    assert seen == [{"n": 1, "text": "grüezi"}]
    assert await kind.unfinished() == 0
    assert await kind.failed_jobs() == []


async def test_jobs_run_in_the_order_in_which_they_were_added(kind: Kind) -> None:
    seen = []

    async def handle(job: Any) -> None:
        seen.append(kind.payload(job)["n"])

    await kind.add_many([{"n": n} for n in range(30)])
    await run_all(kind, handle)
    assert seen == list(range(30))


async def test_many_jobs_run_once_each_at_any_concurrency(kind: Kind) -> None:
    seen: Counter[int] = Counter()

    async def handle(job: Any) -> None:
        await asyncio.sleep(0)
        seen[kind.payload(job)["n"]] += 1

    await kind.add_many([{"n": n} for n in range(400)])
    await run_all(kind, handle, concurrency=50)
    assert seen == Counter(range(400))
    assert await kind.unfinished() == 0


async def test_never_more_jobs_at_once_than_the_concurrency(kind: Kind) -> None:
    running = most = 0
    all_busy = asyncio.Event()

    async def handle(job: Any) -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        if running == 7:
            all_busy.set()
        await all_busy.wait()
        await asyncio.sleep(0)
        running -= 1

    await kind.add_many([{"n": n} for n in range(60)])
    await run_all(kind, handle, concurrency=7)
    assert most == 7


async def test_a_delayed_job_runs_at_its_time(kind: Kind) -> None:
    ran = asyncio.Event()

    async def handle(job: Any) -> None:
        ran.set()

    added = time.monotonic()
    await kind.add(delay=0.4)
    async with silent(), kind.worker(handle):
        await ran.wait()
    # Whole milliseconds on the wire, and the server's clock is known to within half a round trip.
    assert time.monotonic() - added >= 0.39


async def test_a_transient_error_is_tried_again_with_one_attempt_more(kind: Kind) -> None:
    runs = 0

    async def handle(job: Any) -> None:
        nonlocal runs
        runs += 1
        if runs < 3:
            raise TransientError("not yet")

    await kind.add(attempts=5)
    await run_all(kind, handle)
    assert runs == 3
    assert await kind.failed_jobs() == []


async def test_a_permanent_error_ends_a_job_at_once(kind: Kind) -> None:
    runs = 0

    async def handle(job: Any) -> None:
        nonlocal runs
        runs += 1
        raise PermanentError("never")

    job_id = await kind.add(payload={"n": 1}, attempts=5)
    await run_all(kind, handle)
    (failed_job,) = await kind.failed_jobs()
    assert runs == 1
    assert (failed_job.job_id, failed_job.payload) == (job_id, {"n": 1})
    assert "never" in failed_job.reason
    assert await kind.unfinished() == 0


async def test_a_job_is_tried_as_often_as_it_asks_for(kind: Kind) -> None:
    runs = 0

    async def handle(job: Any) -> None:
        nonlocal runs
        runs += 1
        raise TransientError("still not")

    await kind.add(attempts=4)
    await run_all(kind, handle)
    assert runs == 4
    assert len(await kind.failed_jobs()) == 1


@pytest.mark.parametrize(("unknown", "runs_wanted"), [("permanent", 1), ("transient", 3)])
async def test_unknown_errors_are_treated_as_the_option_of_the_worker_says(
    kind: Kind, unknown: str, runs_wanted: int
) -> None:
    runs = 0

    async def handle(job: Any) -> None:
        nonlocal runs
        runs += 1
        raise LookupError("who knows")

    await kind.add(attempts=3)
    await run_all(kind, handle, unknown_errors=unknown)
    assert runs == runs_wanted
    assert len(await kind.failed_jobs()) == 1


@pytest.mark.parametrize("signal", [Postpone(0.01), Requeue()], ids=["postpone", "requeue"])
async def test_a_job_that_asks_to_run_later_loses_no_attempt(kind: Kind, signal: Exception) -> None:
    runs = 0
    done = asyncio.Event()

    async def handle(job: Any) -> None:
        nonlocal runs
        runs += 1
        if runs <= 5:
            raise signal
        done.set()

    await kind.add(attempts=1)
    async with silent(), kind.worker(handle):
        await done.wait()
    assert runs == 6
    assert await kind.failed_jobs() == []
    assert await kind.unfinished() == 0


async def test_a_far_side_that_is_busy_pauses_the_queue_and_costs_no_attempt(kind: Kind) -> None:
    times: list[float] = []
    done = asyncio.Event()

    async def handle(job: Any) -> None:
        times.append(time.monotonic())
        if len(times) == 1:
            raise RateLimitError(0.5)
        if len(times) == 3:
            done.set()

    await kind.add(attempts=1)
    await kind.add(attempts=1)
    async with silent(), kind.worker(handle, **kind.limited):
        await done.wait()
    assert times[1] - times[0] >= 0.45
    assert await kind.failed_jobs() == []


async def test_plain_functions_run_in_threads(kind: Kind) -> None:
    import threading

    names = set()

    def handle(job: Any) -> None:
        names.add(threading.current_thread().name)

    await kind.add_many([{"n": n} for n in range(5)])
    await run_all(kind, handle, concurrency=3)
    assert names
    assert threading.main_thread().name not in names


async def test_handlers_are_chosen_by_name_and_a_name_without_one_fails_if_set(kind: Kind) -> None:
    ran = []

    async def greet(job: Any) -> None:
        ran.append("greet")

    async def part(job: Any) -> None:
        ran.append("part")

    await kind.add("greet")
    await kind.add("part")
    unknown_job = await kind.add("os.system", attempts=3)
    await run_all(kind, {"greet": greet, "part": part}, unknown_names="fail")
    assert sorted(ran) == ["greet", "part"]
    assert [failed_job.job_id for failed_job in await kind.failed_jobs()] == [unknown_job]


async def test_a_message_that_cannot_be_read_fails_and_delays_nobody(kind: Kind) -> None:
    seen = []

    async def handle(job: Any) -> None:
        seen.append(kind.payload(job)["n"])

    await kind.add(payload={"n": 1})
    await kind.add_poison()
    await kind.add(payload={"n": 2})
    await run_all(kind, handle)
    assert seen == [1, 2]
    assert len(await kind.failed_jobs()) == 1
    assert await kind.unfinished() == 0


async def test_a_stop_lets_running_jobs_finish(kind: Kind) -> None:
    started, may_end, ended = asyncio.Event(), asyncio.Event(), []

    async def handle(job: Any) -> None:
        started.set()
        await may_end.wait()
        ended.append(1)

    await kind.add()
    worker = kind.worker(handle)
    async with silent():
        await worker.start()
        await started.wait()
        stop = asyncio.create_task(worker.stop())
        may_end.set()
        await stop
    assert ended == [1]
    assert await kind.unfinished() == 0


async def test_a_stop_that_cannot_wait_gives_jobs_back_without_counting_an_attempt(kind: Kind) -> None:
    started = asyncio.Event()
    runs = 0

    async def handle(job: Any) -> None:
        nonlocal runs
        runs += 1
        if runs == 1:
            started.set()
            await asyncio.Event().wait()

    await kind.add(attempts=1)
    async with silent():
        worker = kind.worker(handle)
        await worker.start()
        await started.wait()
        await worker.stop(timeout=0)
        assert await kind.unfinished() == 1
    await run_all(kind, handle)
    assert runs == 2
    assert await kind.failed_jobs() == []


@pytest.mark.parametrize("wanted", [1, 7])
async def test_jobs_that_a_stop_gives_back_are_taken_in_the_order_in_which_they_were_added(
    kind: Kind, wanted: int
) -> None:
    """Whichever handler ends first, and whatever calls in flight still bring: also if it happens again and again."""
    begun = asyncio.Event()
    running: list[int] = []

    async def hold(job: Any) -> None:
        running.append(kind.payload(job)["n"])
        if len(running) == wanted:
            begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            for _ in range(3 * kind.payload(job)["n"] % 7):  # they end in no order
                await asyncio.sleep(0)

    await kind.add_many([{"n": n} for n in range(20)])
    async with silent():
        for _ in range(3):
            running.clear()
            begun.clear()
            worker = kind.worker(hold, concurrency=7)
            await worker.start()
            await begun.wait()
            await worker.stop(timeout=0)
            assert sorted(running) == list(range(len(running)))
            assert await kind.unfinished() == 20
    order: list[int] = []

    async def note(job: Any) -> None:
        order.append(kind.payload(job)["n"])

    await run_all(kind, note)
    assert order == list(range(20))
    assert await kind.failed_jobs() == []


async def test_stops_in_the_middle_of_work_lose_nothing_and_double_nothing(kind: Kind) -> None:
    seen: Counter[int] = Counter()
    some = asyncio.Event()

    async def handle(job: Any) -> None:
        seen[kind.payload(job)["n"]] += 1
        if len(seen) % 20 == 0:
            some.set()

    await kind.add_many([{"n": n} for n in range(300)])
    async with silent():
        while await kind.unfinished():
            some.clear()
            async with kind.worker(handle, concurrency=10) as worker:
                idle = asyncio.create_task(worker.run_until_idle())
                stirred = asyncio.create_task(some.wait())
                await asyncio.wait({idle, stirred}, return_when=asyncio.FIRST_COMPLETED)
                await worker.stop()
                stirred.cancel()
                await idle
    assert seen == Counter(range(300))


async def test_an_outcome_that_is_handed_in_twice_counts_once(kind: Kind) -> None:
    await kind.add(attempts=1)
    async with kind.manual_backend() as backend:
        (delivery,) = (await settle_and_fetch(backend, [], 1)).deliveries
        settled = FinishedJob(delivery, Failed("it broke", "", "permanent"))
        assert (await settle_and_fetch(backend, [settled], 0)).ack_errors == [None]
        await settle_and_fetch(backend, [settled], 0)
    assert len(await kind.failed_jobs()) == 1
    assert await kind.unfinished() == 0


async def test_a_retry_that_is_handed_in_twice_makes_one_job(kind: Kind) -> None:
    await kind.add(attempts=5)
    async with kind.manual_backend() as backend:
        (delivery,) = (await settle_and_fetch(backend, [], 1)).deliveries
        settled = FinishedJob(delivery, Retry(60.0, "later"))
        await settle_and_fetch(backend, [settled], 0)
        await settle_and_fetch(backend, [settled], 0)
        assert await kind.unfinished() == 1


async def test_a_job_that_is_given_back_is_taken_again(kind: Kind) -> None:
    await kind.add(payload={"n": 7})
    async with kind.manual_backend() as backend:
        (delivery,) = (await settle_and_fetch(backend, [], 1)).deliveries
        await settle_and_fetch(backend, [FinishedJob(delivery, Requeued())], 0)
        (again,) = (await settle_and_fetch(backend, [], 1)).deliveries
        assert again.id == delivery.id
        assert again.attempts_made == delivery.attempts_made
        await settle_and_fetch(backend, [FinishedJob(again, Completed(b"null"))], 0)
    assert await kind.unfinished() == 0


async def test_a_wait_takes_nothing_and_can_be_ended(kind: Kind) -> None:
    async with kind.manual_backend() as backend, silent():
        waiting = asyncio.create_task(backend.wait(10))
        while not waiting.done():
            await backend.wake()
            await asyncio.wait({waiting}, timeout=0.01)
        await waiting
        await kind.add()
        await backend.wait(10)
        assert await kind.unfinished() == 1


async def test_a_worker_that_dies_leaves_its_jobs_as_its_kind_promises(kind: Kind) -> None:
    seen = asyncio.Event()

    async def handle(job: Any) -> None:
        seen.set()

    await kind.add(attempts=2)
    async with kind.manual_backend() as backend:
        assert len((await settle_and_fetch(backend, [], 1)).deliveries) == 1
    async with silent(), kind.worker(handle, max_stalled_count=2):
        if kind.at_least_once:
            await seen.wait()
        else:
            await kind.add()
            await seen.wait()
    assert await kind.unfinished() == 0


async def test_a_late_worker_is_refused_once_its_job_went_to_another(kind: Kind) -> None:
    if not kind.at_least_once:
        return  # there is no other: a job that was taken is taken
    ran = asyncio.Event()

    async def handle(job: Any) -> None:
        ran.set()

    await kind.add(attempts=3)
    async with kind.manual_backend() as late, silent():
        (delivery,) = (await settle_and_fetch(late, [], 1)).deliveries
        async with kind.worker(handle, max_stalled_count=2) as worker:
            await ran.wait()
            await worker.run_until_idle()
        ack_errors = (await settle_and_fetch(late, [FinishedJob(delivery, Failed("too late"))], 0)).ack_errors
        assert ack_errors[0] is not None
    assert await kind.failed_jobs() == []
    assert await kind.unfinished() == 0


async def test_a_renewal_keeps_a_job_and_reports_a_loss(kind: Kind) -> None:
    await kind.add(attempts=3)
    async with kind.manual_backend() as backend:
        (delivery,) = (await settle_and_fetch(backend, [], 1)).deliveries
        assert list(await asyncio.to_thread(backend.renew_locks, [delivery])) == []
        await settle_and_fetch(backend, [FinishedJob(delivery, Completed(b"null"))], 0)
        assert list(await asyncio.to_thread(backend.renew_locks, [delivery])) == [delivery]


async def test_callbacks_see_the_attempt_that_has_ended(kind: Kind) -> None:
    seen: list[tuple[str, int]] = []

    async def handle(job: Any) -> None:
        if kind.payload(job).get("fail"):
            raise TransientError("no")

    def note(event: str, job: Any) -> None:
        seen.append((event, job.attempts if isinstance(job, Envelope) else job.attempts_made))

    worker = kind.worker(handle)
    worker.on("active", lambda job: note("active", job))
    worker.on("completed", lambda job, _: note("completed", job))
    worker.on("retrying", lambda job, *_: note("retrying", job))
    worker.on("failed", lambda job, _: note("failed", job))
    async with silent(), worker:
        await kind.add(payload={"fail": False})
        await worker.run_until_idle()
        await kind.add(payload={"fail": True}, attempts=2)
        await worker.run_until_idle()
    assert seen == [
        ("active", 0),
        ("completed", 1),
        ("active", 0),
        ("retrying", 1),
        ("active", 1),
        ("failed", 2),
    ]


async def test_the_hooks_count_what_happened(kind: Kind) -> None:
    class Counting(NoMetrics):
        __slots__ = ("seen",)

        def __init__(self) -> None:
            self.seen: Counter[str] = Counter()

        def increment_jobs_processed(self, queue: str, status: Any, count: int = 1) -> None:
            self.seen[status] += count

        def increment_jobs_failed(self, queue: str, reason: Any) -> None:
            self.seen[f"failed: {reason}"] += 1

    metrics = Counting()

    async def handle(job: Any) -> None:
        if kind.payload(job)["n"] == 1:
            raise PermanentError("no")
        if kind.payload(job)["n"] == 2:
            raise TransientError("again")

    await kind.add_many([{"n": n} for n in range(5)], attempts=2)
    await run_all(kind, handle, metrics=metrics)
    assert metrics.seen == {
        "completed": 3,
        "failed": 2,
        "retried": 1,
        "failed: permanent": 1,
        "failed: transient_exhausted": 1,
    }


async def test_a_drain_leaves_jobs_that_are_added_while_it_works(
    kind: Kind, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("toril.producer._management.REMOVE_BATCH", 20)  # so that it takes many calls
    monkeypatch.setattr("toril.producer.stream_queue.BATCH", 20)
    await kind.add_many([{"n": n} for n in range(2000)])
    await kind.add(payload={"n": -1}, delay=60)
    drain = asyncio.create_task(kind.queue.drain())
    while await kind.unfinished() > 2000:
        await asyncio.sleep(0)
    added = {await kind.add(payload={"n": n}) for n in range(2000, 2050)}
    assert await drain == 2000
    assert await kind.unfinished() == len(added) + 1
    seen = []

    async def handle(job: Any) -> None:
        seen.append(kind.payload(job)["n"])

    await run_all(kind, handle, concurrency=10)
    assert sorted(seen) == list(range(2000, 2050))
    assert await kind.queue.drain(delayed=True) == 1
    assert await kind.unfinished() == 0


async def test_a_drain_removes_jobs_that_a_stop_gave_back(kind: Kind) -> None:
    begun = asyncio.Barrier(4)

    async def hold(job: Any) -> None:
        await begun.wait()
        await asyncio.Event().wait()

    await kind.add_many([{"n": n} for n in range(5)])
    async with silent():
        worker = kind.worker(hold, concurrency=3)
        await worker.start()
        await begun.wait()
        await worker.stop(timeout=0)
    assert await kind.queue.drain() == 5
    assert await kind.unfinished() == 0


async def test_all_jobs_of_a_dead_worker_come_back_without_a_sweep_for_each(kind: Kind) -> None:
    if not kind.at_least_once:
        return  # its jobs are gone, which another test shows
    await kind.add_many([{"n": n} for n in range(100)])
    async with kind.manual_backend() as dead:
        taken = 0
        while taken < 100:
            taken += len((await settle_and_fetch(dead, [], 50)).deliveries)
    seen: set[int] = set()

    async def handle(job: Any) -> None:
        seen.add(kind.payload(job)["n"])

    async with silent(40), kind.worker(handle, concurrency=1) as worker:
        await worker.run_until_idle()
        assert worker._lifecycle._runtime.stalled_sweeper.done < 100
    assert seen == set(range(100))
