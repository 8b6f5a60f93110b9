"""A program ends in every way while its worker runs: within five seconds, and no job is failed for it."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import psutil
import pytest

from tests.conformance.kinds import KINDS, BullmqKind, Kind, ListKind
from tests.faults.worker_processes import MAX_WAIT_SECONDS, ROOT
from tests.servers import Server
from tests.waiting import until_equal, wait_until
from toril import Backoff, Queue, TransientError, Worker

pytestmark = pytest.mark.timeout(120)
LIMIT = 5.0  # seconds until a program has ended, as promised
Launch = Callable[..., "Program"]


class Program:
    """A process that ends as it was told."""

    def __init__(self, **words: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.faults.ending_program", json.dumps(words)],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.children: list[psutil.Process] = []

    def wait_for_line(self, line: str) -> None:
        """Blocks until the program prints this line."""
        assert self._process.stdout is not None
        for said in self._process.stdout:
            if said == f"{line}\n":
                return
        raise AssertionError(f"it never printed {line!r}: {self._errors()}")

    def end(self) -> float:
        """Tells it to end; how long that took."""
        self.children = psutil.Process(self._process.pid).children(recursive=True)
        assert self._process.stdin is not None
        self._process.stdin.write("now\n")
        self._process.stdin.flush()
        self.wait_for_line("ending")
        began = time.monotonic()
        self._process.wait(MAX_WAIT_SECONDS)
        return time.monotonic() - began

    def terminate(self) -> float:
        """Sends SIGTERM; how long it took to end."""
        began = time.monotonic()
        self._process.terminate()
        assert self._process.wait(MAX_WAIT_SECONDS) == 0
        print(f"ended after {time.monotonic() - began:.2f} s")
        return time.monotonic() - began

    def _errors(self) -> str:
        self._process.kill()
        return self._process.communicate()[1]

    def remove(self) -> None:
        self._process.kill()
        self._process.communicate()


@pytest.fixture
def launch(valkey_url: str, prefix: str) -> Iterator[Launch]:
    programs: list[Program] = []

    def started(**words: str) -> Program:
        programs.append(Program(**{"kind": "bullmq", "url": valkey_url, "prefix": prefix, **words}))
        return programs[-1]

    yield started
    for one in programs:
        one.remove()


@pytest.fixture
async def queue(valkey_url: str, prefix: str) -> AsyncIterator[Kind]:
    async with BullmqKind(valkey_url, prefix).opened() as kind:
        yield kind


async def run_elsewhere(kind: Kind) -> list[Any]:
    """Another worker does what is left; what it got."""
    seen: list[Any] = []

    async def handle(job: Any) -> None:
        seen.append(kind.payload(job)["n"])

    async with kind.worker(handle) as worker:
        await asyncio.wait_for(worker.run_until_idle(), MAX_WAIT_SECONDS)
    return seen


async def hold_three(program: Program, kind: Kind) -> None:
    """The program has three jobs in hand, each with one attempt."""
    for n in range(4):
        await kind.add(payload={"n": n, "hold": True}, attempts=1)
    for _ in range(3):
        await asyncio.to_thread(program.wait_for_line, "begun")


SHAPES = [
    *(("beside", way) for way in ("raise", "exit", "interrupt", "ctrl-c")),
    *(("inside", way) for way in ("raise", "exit", "interrupt", "ctrl-c")),
    ("grouped", "raise"),
    ("blocking inside", "raise"),
    ("blocking inside", "exit"),
    ("blocking", "raise"),
    ("blocking", "exit"),
    ("blocking", "interrupt"),
    ("blocking", "ctrl-c"),
]


@pytest.mark.parametrize("executor", ["async", "thread", "process"])
@pytest.mark.parametrize(("shape", "way"), SHAPES)
async def test_active_jobs_go_back_in_their_order_without_an_attempt(
    launch: Launch, queue: Kind, shape: str, way: str, executor: str
) -> None:
    program = launch(shape=shape, way=way, executor=executor)
    await hold_three(program, queue)
    took = await asyncio.to_thread(program.end)
    assert took < LIMIT
    counts = await queue.queue.get_job_counts()
    assert (counts.waiting, counts.active, counts.failed, counts.delayed) == (4, 0, 0, 0)
    jobs = await queue.queue.get_jobs(["waiting"])
    assert [(job.attempts_made, job.stalled_count, job.failed_reason) for job in jobs] == [(0, 0, None)] * 4
    assert await run_elsewhere(queue) == [0, 1, 2, 3]
    await asyncio.to_thread(
        wait_until, lambda: not any(one.is_running() for one in program.children), "none is left"
    )


@pytest.mark.parametrize("executor", ["async", "thread", "process"])
@pytest.mark.parametrize(
    ("shape", "way"), [("beside", "os._exit"), ("without runner", "raise"), ("blocking", "os._exit")]
)
async def test_jobs_of_a_program_that_cannot_say_a_word_run_elsewhere(
    launch: Launch, queue: Kind, shape: str, way: str, executor: str
) -> None:
    program = launch(shape=shape, way=way, executor=executor)
    await hold_three(program, queue)
    assert await asyncio.to_thread(program.end) < LIMIT
    assert sorted(await run_elsewhere(queue)) == [0, 1, 2, 3]
    assert await queue.failed_jobs() == []
    await asyncio.to_thread(
        wait_until, lambda: not any(one.is_running() for one in program.children), "none is left"
    )


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
@pytest.mark.parametrize("server", ["valkey", "cluster", "sentinel"])
@pytest.mark.parametrize("executor", ["async", "thread", "process"])
async def test_jobs_of_every_kind_of_queue_go_back(
    launch: Launch, request: pytest.FixtureRequest, prefix: str, kind: type[Kind], server: str, executor: str
) -> None:
    url = request.getfixturevalue(f"{server}_url")
    async with kind(url, prefix).opened() as queue:
        program = launch(shape="beside", way="raise", executor=executor, kind=kind.name, url=url)
        await hold_three(program, queue)
        assert await asyncio.to_thread(program.end) < LIMIT
        assert await run_elsewhere(queue) == [0, 1, 2, 3]
        assert await queue.failed_jobs() == []


@pytest.mark.parametrize("kind", [one for one in KINDS if one is not ListKind], ids=lambda kind: kind.name)
async def test_what_a_handler_raises_when_its_program_ends_is_not_its_failure(
    launch: Launch, valkey_url: str, prefix: str, kind: type[Kind]
) -> None:
    async with kind(valkey_url, prefix).opened() as queue:
        program = launch(shape="beside", way="raise", executor="failing", kind=kind.name)
        await hold_three(program, queue)
        assert await asyncio.to_thread(program.end) < LIMIT
        assert await run_elsewhere(queue) == [0, 1, 2, 3]
        assert await queue.failed_jobs() == []


@pytest.mark.parametrize("shape", ["beside", "without runner", "blocking"])
@pytest.mark.parametrize("way", ["raise", "exit", "interrupt", "ctrl-c", "os._exit"])
async def test_a_program_whose_processes_are_idle_ends(
    launch: Launch, queue: Kind, shape: str, way: str
) -> None:
    program = launch(shape=shape, way=way, executor="process")
    await queue.add(payload={"n": 0})
    await asyncio.to_thread(program.wait_for_line, "begun")
    await until_equal(queue.unfinished, 0, within=MAX_WAIT_SECONDS)
    assert await asyncio.to_thread(program.end) < LIMIT
    assert program.children
    await asyncio.to_thread(
        wait_until, lambda: not any(one.is_running() for one in program.children), "none is left"
    )


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
@pytest.mark.parametrize("moment", ["at once", "in the middle of a wait", "disconnected"])
async def test_an_idle_worker_ends_within_a_second_though_its_server_is_frozen(
    launch: Launch, start_valkey: Callable[..., Server], kind: type[Kind], moment: str
) -> None:
    server = start_valkey()
    took: list[float] = []
    while not took or (min(took) > 1.0 and len(took) < 6):  # a busy machine may delay some of them
        program = launch(shape="running", executor="async", kind=kind.name, url=server.url)
        await asyncio.to_thread(program.wait_for_line, "ready")
        await asyncio.to_thread(server.freeze)
        if moment == "disconnected":
            await asyncio.to_thread(program.wait_for_line, "disconnected")
        elif moment != "at once":
            await asyncio.sleep(0.7)  # longer than a wait of a list or stream
        took.append(await asyncio.to_thread(program.terminate))
        server.thaw()
    assert min(took) < 1.0, took


def test_a_job_whose_next_attempt_is_being_decided_goes_back_when_the_program_ends(
    valkey_url: str, prefix: str
) -> None:
    """A backoff may be a coroutine that asks somebody: it is cancelled like a handler."""
    place: dict[str, Any] = {"redis": valkey_url, "prefix": prefix}

    async def fail(_: Any) -> None:
        raise TransientError("not yet")

    async def program() -> None:
        asked = asyncio.Event()

        async def pause(attempts_made: int, error: BaseException | None) -> float:
            asked.set()
            await asyncio.Event().wait()
            return 0.0

        async with Queue("work", **place) as queue:
            await queue.add("n", {}, attempts=2, backoff=Backoff("asking"), job_id="asked")
            await Worker("work", fail, backoffs={"asking": pause}, **place).start()
            await asyncio.wait_for(asked.wait(), MAX_WAIT_SECONDS)
            raise LookupError("the program's own mistake")

    async def found() -> tuple[str, int]:
        async with Queue("work", **place) as queue:
            job = await queue.get_job("asked")
            assert job is not None
            return await job.get_state(), job.attempts_made

    with pytest.raises(LookupError):
        asyncio.run(program())
    assert asyncio.run(found()) == ("waiting", 0)
