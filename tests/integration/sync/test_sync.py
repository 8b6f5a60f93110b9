"""The blocking classes: the same as the asyncio classes, for code without an event loop."""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.servers import Server
from toril import Envelope, FlowNode, events, producer, sync, worker
from toril.errors import (
    Closed,
    InvalidOption,
    JobFailed,
    PermanentError,
    RedisUnavailable,
    TorilError,
)
from toril.protocol.event import Event
from toril.protocol.group_limits import GroupLimits
from toril.protocol.options import Deduplication, JobOptions
from toril.protocol.worker_options import RateLimit
from toril.transport import ConnectionPolicy


@pytest.fixture
def queue(valkey_url: str, prefix: str) -> Iterator[sync.Queue]:
    with sync.Queue("emails", redis=valkey_url, prefix=prefix) as opened:
        yield opened


@pytest.mark.parametrize(
    ("blocking", "original"),
    [
        (sync.Queue, producer.Queue),
        (sync.Worker, worker.Worker),
        (sync.QueueEvents, events.QueueEvents),
        (sync.ManualWorker, worker.ManualWorker),
        (sync.FlowProducer, producer.FlowProducer),
        (sync.ListQueue, producer.ListQueue),
        (sync.ListWorker, worker.ListWorker),
        (sync.StreamQueue, producer.StreamQueue),
        (sync.StreamWorker, worker.StreamWorker),
    ],
)
def test_a_blocking_class_has_the_names_and_parameters_of_its_original(
    blocking: type, original: type
) -> None:
    public = {name for name in dir(original) if not name.startswith("_")} - {"policy", "kind", "add_span"}
    assert public <= set(dir(blocking))
    for name in {*public, *(() if original is producer.Queue else ("__init__",))}:
        ours, theirs = getattr(blocking, name), getattr(original, name)
        if inspect.isfunction(theirs):
            assert list(inspect.signature(ours).parameters) == list(inspect.signature(theirs).parameters), (
                name
            )
            for ours_one, theirs_one in zip(
                inspect.signature(ours).parameters.values(),
                inspect.signature(theirs).parameters.values(),
                strict=True,
            ):
                assert (ours_one.default, ours_one.kind) == (theirs_one.default, theirs_one.kind), (
                    name,
                    ours_one,
                )


def test_jobs_are_added_processed_and_waited_for_without_an_event_loop(
    queue: sync.Queue, valkey_url: str, prefix: str
) -> None:
    def handle(job: sync.Job) -> dict[str, Any]:
        job.update_progress(50, "half way")
        return {"double": job.data["n"] * 2}

    with sync.Worker("emails", handle, redis=valkey_url, prefix=prefix, concurrency=2) as running:
        job = queue.add("x", {"n": 21})
        assert isinstance(job, sync.Job)
        assert job.wait_until_finished(timeout=20) == {"double": 42}
        running.run_until_idle()
        assert running.processed == 1
    job.refresh()
    assert (job.progress, job.get_logs()) == (50, ["half way"])
    assert running.state.value == "stopped"


def test_a_job_without_a_handler_waits_for_a_worker_that_has_one(
    queue: sync.Queue, valkey_url: str, prefix: str
) -> None:
    job = queue.add("new", attempts=1)
    with sync.Worker("emails", {"old": print}, redis=valkey_url, prefix=prefix) as old:
        old.run_until_idle()
    assert job.get_state() == "delayed"
    with sync.Worker("emails", {"new": lambda job: job.attempts_made}, redis=valkey_url, prefix=prefix):
        assert job.wait_until_finished(timeout=20) == 0
    other = queue.add("newer")
    failing = sync.Worker("emails", {"old": print}, redis=valkey_url, prefix=prefix, unknown_names="fail")
    with failing, pytest.raises(JobFailed, match="no handler for jobs named 'newer'"):
        other.wait_until_finished(timeout=20)


def test_a_failed_job_raises_for_whoever_waits(queue: sync.Queue, valkey_url: str, prefix: str) -> None:
    def handle(job: sync.Job) -> None:
        raise PermanentError("no such user")

    with sync.Worker("emails", handle, redis=valkey_url, prefix=prefix):
        job = queue.add("x")
        with pytest.raises(JobFailed, match="no such user"):
            job.wait_until_finished(timeout=20)
    (letter,) = queue.get_dead_letters()
    assert letter.failed_reason == "no such user"
    assert queue.retry_jobs(where=lambda one: one.name == "x") == 1


def test_a_job_that_existed_is_distinguished_from_one_that_was_added(
    queue: sync.Queue, valkey_url: str, prefix: str
) -> None:
    assert queue.add("x", 1, job_id="mine").added
    again, new = queue.add_bulk([("x", 2, {"job_id": "mine"}), ("x", 3)])
    assert (again.added, again.data, new.added, new.data) == (False, 1, True, 3)
    with sync.FlowProducer(redis=valkey_url, prefix=prefix) as flows:
        mine = FlowNode("x", queue="emails", options=JobOptions(job_id="mine"))
        flow = flows.add(FlowNode("parent", queue="emails", children=[mine]))
        assert [(job.added, job.data) for job in flow.walk()] == [(True, {}), (False, 1)]


def test_a_queue_is_managed_from_plain_code(queue: sync.Queue) -> None:
    queue.add_bulk([("x", n) for n in range(3)])
    queue.add("y", delay=60)
    assert queue.get_job_counts().as_dict().items() >= {"waiting": 3, "delayed": 1}.items()
    queue.pause()
    assert queue.is_paused()
    queue.resume()
    queue.promote_jobs()
    assert len(queue.get_waiting()) == 4
    job = queue.get_waiting()[0]
    assert queue.cancel(job.id) == "removed"
    assert queue.get_job(job.id) is None
    queue.drain()
    assert queue.count() == 0


def test_threads_share_a_queue(queue: sync.Queue) -> None:
    with ThreadPoolExecutor(8) as pool:
        jobs = list(pool.map(lambda n: queue.add("x", n), range(200)))
    assert len({job.id for job in jobs}) == 200
    assert queue.count() == 200


def test_events_are_iterated_and_called_back_in_threads(
    queue: sync.Queue, valkey_url: str, prefix: str
) -> None:
    with sync.QueueEvents("emails", redis=valkey_url, prefix=prefix) as heard:
        called = threading.Event()
        seen: list[str] = []

        def on_added(event: Event) -> None:
            seen.append(f"{event.job_id} of {queue.count()}")  # a blocking call from a callback is allowed
            called.set()

        heard.on("added", on_added)
        job = queue.add("x")
        reading = iter(heard)
        assert [next(reading).type, next(reading).type] == ["added", "waiting"]
        reading.close()  # type: ignore[attr-defined]
        assert called.wait(20)
        assert seen == [f"{job.id} of 1"]
        heard.off("added", on_added)
    assert list(heard) == []


def test_closing_events_ends_an_iteration_in_another_thread(
    queue: sync.Queue, valkey_url: str, prefix: str
) -> None:
    heard = sync.QueueEvents("emails", redis=valkey_url, prefix=prefix)
    heard.open()
    queue.add("x")
    with ThreadPoolExecutor(1) as pool:
        begun = threading.Event()

        def read_all() -> list[str]:
            types = []
            for event in heard:
                types.append(event.type)
                begun.set()
            return types

        reading = pool.submit(read_all)
        assert begun.wait(20)
        heard.close()
        assert reading.result(20)[0] == "added"


def test_the_thread_of_the_loop_ends_with_the_last_object(valkey_url: str, prefix: str) -> None:
    with sync.Queue("a", redis=valkey_url, prefix=prefix) as a:
        with sync.Queue("b", redis=valkey_url, prefix=prefix):
            names = [thread.name for thread in threading.enumerate()]
            assert names.count("toril-sync") == 1
        a.add("x")
    assert "toril-sync" not in [thread.name for thread in threading.enumerate()]
    with pytest.raises(Closed):
        a.add("x")
    a.close()


def test_wrong_options_raise_when_the_object_is_made(prefix: str) -> None:
    with pytest.raises(InvalidOption):
        sync.Queue("a:b")
    with pytest.raises(InvalidOption):
        sync.Worker("a", "no function")  # type: ignore[arg-type]


def test_a_blocking_call_inside_of_the_loop_is_refused_instead_of_hanging(queue: sync.Queue) -> None:
    async def call() -> None:
        queue.count()

    with pytest.raises(TorilError, match="asyncio classes"):
        queue._call(call)


def test_context_variables_travel_into_the_loop(queue: sync.Queue) -> None:
    variable = contextvars.ContextVar("variable", default="none")
    variable.set("mine")

    async def look() -> str:
        return variable.get()

    assert queue._call(look) == "mine"


def test_a_worker_in_this_thread_is_stopped_from_another(
    queue: sync.Queue, valkey_url: str, prefix: str
) -> None:
    done = threading.Event()
    running = sync.Worker("emails", lambda job: done.set(), redis=valkey_url, prefix=prefix)

    def stop_when_done() -> None:
        done.wait(20)
        running.stop()

    stopper = threading.Thread(target=stop_when_done)
    stopper.start()
    queue.add("x")
    running.run()
    stopper.join()
    assert running.processed == 1
    running.close()


FORKING = """
import os, sys
from toril import sync
url, prefix = sys.argv[1:]
queue = sync.Queue("emails", redis=url, prefix=prefix)
parent_job = queue.add("parent")
child = os.fork()
if child == 0:
    job = queue.add("child")
    assert parent_job.get_state() == "waiting" and job.get_state() == "waiting"
    queue.close()
    os._exit(0)
_, status = os.waitpid(child, 0)
queue.add("parent")
print(os.waitstatus_to_exitcode(status), [job.name for job in queue.get_waiting()])
queue.close()
"""


def test_a_forked_child_uses_the_queue_of_its_parent_over_connections_of_its_own(
    valkey_url: str, prefix: str
) -> None:
    out = subprocess.run(
        [sys.executable, "-c", FORKING, valkey_url, prefix], capture_output=True, text=True, timeout=30
    )
    assert out.stdout.strip() == "0 ['parent', 'child', 'parent']", out.stderr


def test_an_interrupted_caller_leaves_nothing_behind(queue: sync.Queue, server: Server) -> None:
    program = (
        "import signal, sys\n"
        "from toril import sync\n"
        "queue = sync.Queue('emails', redis=sys.argv[1], prefix=sys.argv[2])\n"
        "job = queue.add('x')\n"
        "signal.setitimer(signal.ITIMER_REAL, 0.3)\n"
        "signal.signal(signal.SIGALRM, signal.default_int_handler)\n"
        "try:\n"
        "    queue._call(queue._inner._calls.finishes.wait, job.id)\n"
        "except KeyboardInterrupt:\n"
        "    queue.close(); print('interrupted')\n"
    )
    begun = time.monotonic()
    out = subprocess.run(
        [sys.executable, "-c", program, server.url, queue.keys.prefix],
        capture_output=True,
        text=True,
        timeout=30,
    )
    assert out.stdout.strip() == "interrupted", out.stderr
    assert time.monotonic() - begun < 15


def test_a_flow_is_added_and_found_from_plain_code(valkey_url: str, prefix: str) -> None:
    with sync.FlowProducer(redis=valkey_url, prefix=prefix) as flows:
        flow = flows.add(
            FlowNode("parent", queue="a", children=[FlowNode("child", queue="b", data={"n": 1})])
        )
        assert flow.job.get_state() == "waiting-children"
        assert flow.children[0].job.data == {"n": 1}
        found = flows.get_flow(flow.job.id, "a")
        assert found is not None
        assert [job.id for job in found.walk()] == [job.id for job in flow.walk()]
        assert flows.get_flow("nobody", "a") is None
        assert len(flows.add_bulk([FlowNode("alone", queue="a")])) == 1


@pytest.mark.parametrize(
    ("queue_kind", "worker_kind"), [(sync.ListQueue, sync.ListWorker), (sync.StreamQueue, sync.StreamWorker)]
)
def test_list_and_stream_queues_work_from_plain_code(
    queue_kind: Any, worker_kind: Any, valkey_url: str, prefix: str
) -> None:
    def handle(envelope: Envelope) -> str:
        if envelope.task_type == "bad":
            raise PermanentError("broken")
        return "done"

    with queue_kind("jobs.generic", redis=valkey_url, prefix=prefix) as jobs:
        good = jobs.add("good", {"n": 1})
        jobs.add_bulk([("bad", {}), ("bad", {})])
        assert jobs.pending() == 3
        with worker_kind("jobs.generic", handle, redis=valkey_url, prefix=prefix, keep_results=60) as running:
            running.run_until_idle()
        assert jobs.counts().dead == 2
        assert jobs.result(good.job_id) == "done"
        assert [letter.envelope.task_type for letter in jobs.dead_letters()] == ["bad", "bad"]
        assert jobs.replay(limit=1) == 1
        assert jobs.purge() == 1
        jobs.obliterate()


CALLS: dict[str, tuple[Any, ...]] = {
    "get_jobs": (["waiting", "delayed"],),
    "get_waiting": (),
    "get_prioritized": (),
    "get_active": (),
    "get_delayed": (),
    "get_waiting_children": (),
    "get_completed": (),
    "get_failed": (),
    "get_job_state": ("mine",),
    "get_counts_per_priority": ([0, 1],),
    "get_job_logs": ("mine",),
    "get_metrics": ("completed",),
    "get_workers": (),
    "is_maxed": (),
    "get_global_concurrency": (),
    "get_global_rate_limit": (),
    "get_rate_limit_ttl": (),
    "get_deduplication_job_id": ("same",),
    "get_version": (),
    "clean": (3600, 0, "completed"),
    "trim_events": (1000,),
    "set_global_concurrency": (5,),
    "set_group_weight": ("tenant-7", 2),
    "set_group_limits": ("tenant-7", GroupLimits(concurrency=5)),
    "pause_group": ("tenant-7",),
    "resume_group": ("tenant-7",),
    "set_global_rate_limit": (RateLimit(5, 1.0),),
    "rate_limit": (0.01,),
    "remove_rate_limit_key": (),
    "update_job_progress": ("mine", 5),
    "add_job_log": ("mine", "line"),
    "remove_deduplication_key": ("same",),
    "remove": ("other",),
    "obliterate": (),
}


@pytest.mark.parametrize("name", CALLS)
def test_every_call_reaches_the_queue_and_answers_as_the_original(
    queue: sync.Queue, valkey_url: str, prefix: str, name: str
) -> None:
    def prepared(of: str) -> sync.Queue:
        made = sync.Queue(of, redis=valkey_url, prefix=prefix)
        made.add("x", {"n": 1}, job_id="mine", deduplication=Deduplication("same"))
        made.add("x", job_id="other", delay=60)
        return made

    async def of_the_original() -> Any:
        async with producer.Queue("asked", redis=valkey_url, prefix=prefix) as original:
            return await getattr(original, name)(*CALLS[name])

    with prepared("asked"):
        expected = asyncio.run(of_the_original())
    with prepared("blocking") as blocking:
        given = getattr(blocking, name)(*CALLS[name])
        assert repr(blocking).startswith("sync.Queue('blocking'")
    assert _comparable(given) == _comparable(expected)


def _comparable(value: Any) -> Any:
    return (
        [job.id for job in value] if isinstance(value, list) and value and hasattr(value[0], "id") else value
    )


def test_a_worker_is_steered_from_plain_code(queue: sync.Queue, valkey_url: str, prefix: str) -> None:
    begun, ended = threading.Event(), threading.Event()
    heard: list[str] = []

    def handle(job: sync.Job) -> None:
        begun.set()
        ended.wait(20)

    running = sync.Worker("emails", handle, redis=valkey_url, prefix=prefix, worker_id="w1", concurrency=1)
    listener = running.on("completed", lambda job, result: heard.append(f"{job.id} {queue.count()}"))
    with running:
        assert (running.id, running.queue, running.keys.name) == ("w1", "emails", "emails")
        running.concurrency = 3
        assert running.concurrency == 3
        job = queue.add("x")
        assert begun.wait(20)
        assert running.health().jobs == 1
        running.pause(wait=False)
        assert running.is_paused
        assert not running.cancel("nobody")
        ended.set()
        job.wait_until_finished(20)
        running.resume()
        running.run_until_idle()
        assert repr(running).startswith("sync.Worker('emails'")
        running.stop()
        running.wait_stopped()
        running.run()  # a worker that was stopped has nothing to wait for
    assert (running.processed, running.failed) == (1, 0)
    assert heard == [f"{job.id} 0"]
    running.off("completed", listener)
    running.off("completed", print)


def test_entering_what_cannot_be_reached_raises_and_leaves_no_thread() -> None:
    policy = ConnectionPolicy(connect_timeout=0.2, reconnect_delay=0.01, call_attempts=1)
    with pytest.raises(RedisUnavailable), sync.Queue("emails", redis="redis://127.0.0.1:1", policy=policy):
        pass
    assert "toril-sync" not in [thread.name for thread in threading.enumerate()]
