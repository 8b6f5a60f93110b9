"""Tasks of an app beside Node: Node adds their jobs, and Node runs them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass

import pytest

from tests.interop.reference import Bench, Reference
from tests.servers import Server
from toril import App
from toril.app import parallel_then


@dataclass
class Receipt:
    to: str
    words: int


@pytest.fixture
async def app(valkey: Server, prefix: str) -> AsyncIterator[App]:
    async with App(redis=valkey.url, prefix=prefix) as made:
        yield made


@pytest.fixture
def bench(bullmq: Reference, valkey: Server, prefix: str) -> Iterator[Bench]:
    made = bullmq.bench("emails", url=valkey.url, prefix=prefix)
    yield made
    made.close()


async def test_a_task_gives_the_same_result_whether_node_or_python_enqueued_it(
    app: App, bench: Bench
) -> None:
    @app.task(queue="emails")
    async def send(to: str, text: str = "Hello") -> Receipt:
        return Receipt(to, len(text.split()))

    await bench.start_events("events")
    async with app.worker():
        mine = await send.enqueue("a@b.c", text="how do you do")
        theirs = await bench.ask("add", name="send", data={"to": "a@b.c", "text": "how do you do"}, opts={})
        node_result = await bench.wait_until_finished(theirs, events="events", timeout=20)
        python_result = await bench.wait_until_finished(mine.id, events="events", timeout=20)
        assert node_result == python_result == {"to": "a@b.c", "words": 4}
        assert await mine.result(10) == Receipt("a@b.c", 4)
        short = await bench.ask("add", name="send", data={"to": "a@b.c"}, opts={})
        assert await bench.wait_until_finished(short, events="events", timeout=20) == {
            "to": "a@b.c",
            "words": 1,
        }
    await bench.stop("events")


async def test_a_task_that_python_enqueued_is_run_by_a_node_worker(app: App, bench: Bench) -> None:
    @app.task(queue="emails", attempts=2, backoff=0)
    async def send(result: Receipt, log: list[str], fail_times: int = 0) -> Receipt:
        pytest.fail("Node runs it, and follows the instructions in the data")

    job = await send.enqueue(Receipt("a@b.c", 3), ["from Node"], fail_times=1)
    await bench.start_worker("worker")
    assert await job.result(20) == Receipt("a@b.c", 3)
    assert await job.get_logs() == ["from Node", "from Node"]
    await job.refresh()
    assert job.attempts_made == 2
    await bench.stop("worker")


async def test_node_runs_the_calls_of_a_composition(app: App, bench: Bench) -> None:
    """The children and the parent are a plain flow: whoever runs the children, Python gets their results."""

    @app.task(queue="emails")
    async def child(result: int) -> int:
        pytest.fail("Node runs it")

    @app.task(queue="python")
    async def total(numbers: list[int]) -> int:
        return sum(numbers)

    await bench.start_worker("worker")
    async with app.worker(["python"]):
        job = await parallel_then([child.bind(n) for n in (1, 2, 3)], total).enqueue()
        assert await job.result(20) == 6
    await bench.stop("worker")
