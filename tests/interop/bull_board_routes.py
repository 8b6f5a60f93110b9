"""bull-board's routes, walked one by one on a queue that only toril has written.

A walk lists what is not right: a status that is not 200, content that is not what toril stored, an action that cannot
be seen in Redis afterwards, or a route of the board that was never asked.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from tests.interop.bull_board import Answer, Board
from tests.interop.scenarios import Ground, Result, until_ended
from toril import FlowNode, FlowProducer, Job, JobOptions, PermanentError, Queue, Worker
from toril.commands.command import plain
from toril.protocol.refusals import JOB_FIELD

QUEUE = "orders"
ENDED = {"ok-1": "completed", "ok-2": "completed", "bad-1": "failed", "bad-2": "failed", "bad-3": "failed"}
LISTED = {
    "waiting": {"waiting-1", "waiting-2", "child-1", "child-2"},
    "prioritized": {"ranked"},
    "delayed": {"later-1", "later-2", "later-3"},
    "active": {"held"},
    "completed": {"ok-1", "ok-2"},
    "failed": {"bad-1", "bad-2", "bad-3"},
    "waiting-children": {"parent"},
}
HOUR_MS = 3_600_000


async def handle(job: Job[Any]) -> Any:
    """Ends as the job's name says."""
    if job.name == "hold":
        await asyncio.Event().wait()
    await job.log(f"looking at {job.id}")
    await job.update_progress(40)
    if job.name == "break":
        raise PermanentError("out of stock")
    return {"ordered": job.data["n"]}


async def walk_the_board(ground: Ground) -> Result:
    """All routes of a bull-board on one queue, reading first, then acting."""
    async with populated(ground) as queue, board_on(ground) as board:
        walk = Walk(board, queue)
        await walk.all()
    missed = [f"{method} {route} was never asked" for method, route in sorted(board.routes - board.asked)]
    return Result(
        scenario="bull-board's routes on toril's queue",
        jobs=len(board.asked),
        differences=walk.problems + missed,
    )


@asynccontextmanager
async def populated(ground: Ground) -> AsyncIterator[Queue[Any]]:
    """A queue with jobs in every state and a worker that holds one of them."""
    worker = Worker(
        QUEUE,
        handle,
        redis=ground.server.url,
        prefix=ground.prefix,
        concurrency=6,
        worker_id="till-7",
        metrics_minutes=60,
        shutdown_timeout=0,
    )
    async with ground.queue(QUEUE) as queue, worker:
        await _populate(ground, queue, worker)
        yield queue


async def _populate(ground: Ground, queue: Queue[Any], worker: Worker) -> None:
    for number, (job_id, end) in enumerate(ENDED.items()):
        await queue.add("break" if end == "failed" else "order", {"n": number}, job_id=job_id)
    await until_ended(ground, len(ENDED), QUEUE)
    started = asyncio.Event()
    worker.on("active", lambda *_: started.set())
    await queue.add("hold", {}, job_id="held")
    await started.wait()
    await worker.pause(wait=False)
    for job_id in ("waiting-1", "waiting-2"):
        await queue.add("order", {"n": 1}, job_id=job_id)
    await queue.add("order", {"n": 1}, job_id="ranked", priority=4)
    for job_id in ("later-1", "later-2", "later-3"):
        await queue.add("order", {"n": 1}, job_id=job_id, delay=3600)
    # As a worker without a handler for its name leaves a job.
    await queue._transport.run(plain(int, "HSET", queue.keys.job("later-1"), JOB_FIELD, "1 1700000000000 1"))
    await queue.schedulers.upsert("nightly", cron="0 3 * * *", tz="UTC", name="order", data={"n": 3})
    await _add_flow(ground)


async def _add_flow(ground: Ground) -> None:
    def node(job_id: str, *children: FlowNode) -> FlowNode:
        return FlowNode(
            "order", queue=QUEUE, data={"n": 1}, options=JobOptions(job_id=job_id), children=children
        )

    async with FlowProducer(redis=ground.server.url, prefix=ground.prefix) as flows:
        await flows.add(node("parent", node("child-1"), node("child-2")))


@asynccontextmanager
async def board_on(ground: Ground) -> AsyncIterator[Board]:
    board = await asyncio.to_thread(Board, ground.server.url, ground.prefix, [QUEUE])
    try:
        yield board
    finally:
        await asyncio.to_thread(board.__exit__)


class Walk:
    """The questions, and what was wrong with the answers."""

    def __init__(self, board: Board, queue: Queue[Any]) -> None:
        self.board = board
        self.queue = queue
        self.problems: list[str] = []

    async def all(self) -> None:
        await self.lists()
        await self.details()
        await self.surroundings()
        await self.single_actions()
        await self.actions_on_many()
        await self.settings()
        await self.schedulers()
        await self.endings()

    # Asking

    async def get(self, *path: str, **query: str | int) -> Any:
        return self._checked(path, await asyncio.to_thread(lambda: self.board.get(*path, **query)))

    async def put(self, *path: str, body: Any = None) -> Any:
        return self._checked(path, await asyncio.to_thread(lambda: self.board.put(*path, body=body)))

    async def patch(self, *path: str, body: Any) -> Any:
        return self._checked(path, await asyncio.to_thread(lambda: self.board.patch(*path, body=body)))

    async def post(self, *path: str, body: Any) -> Any:
        return self._checked(path, await asyncio.to_thread(lambda: self.board.post(*path, body=body)))

    def _checked(self, path: tuple[str, ...], answer: Answer) -> Any:
        if answer.status not in (200, 204):
            self.problems.append(f"{'/'.join(path)} answers {answer.status}: {answer.body}")
        return answer.body

    def expect(self, what: str, found: object, wanted: object) -> None:
        if found != wanted:
            self.problems.append(f"{what} is {found!r} instead of {wanted!r}")

    async def expect_state(self, job_id: str, wanted: str) -> None:
        self.expect(f"the state of {job_id}", (await self.queue.get_job_state(job_id)).value, wanted)

    # Reading

    async def lists(self) -> None:
        for state, ids in LISTED.items():
            body = await self.get("queues", activeQueue=QUEUE, status=state, page=1, jobsPerPage=50)
            (listed,) = body["queues"]
            found = {job["id"] for job in listed["jobs"]}
            self.expect(
                f"the list {state}", {one for one in found if not one.startswith("repeat:nightly:")}, ids
            )
            self.expect(f"the count {state}", listed["counts"][state], len(found))
        self.expect("hasWorkers", listed["hasWorkers"], True)

    async def details(self) -> None:
        done = await self.get("queues", QUEUE, "ok-1")
        self.expect("the status of ok-1", done["status"], "completed")
        for name, wanted in {
            "name": "order", "data": {"n": 0}, "returnValue": {"ordered": 0}, "progress": 40, "attempts": 1,
            "processedBy": "till-7", "isFailed": False,
        }.items():  # fmt: skip
            self.expect(f"{name} of ok-1", done["job"].get(name), wanted)
        failed = (await self.get("queues", QUEUE, "bad-1"))["job"]
        self.expect("failedReason of bad-1", failed["failedReason"], "out of stock")
        self.expect("traces of bad-1", ["out of stock" in trace for trace in failed["stacktrace"]], [True])
        self.expect("logs of ok-1", await self.get("queues", QUEUE, "ok-1", "logs"), ["looking at ok-1"])
        flow = (await self.get("queues", QUEUE, "child-1", "flow"))["flowRoot"]
        self.expect("the flow's root", flow["id"], "parent")
        self.expect("the flow", {child["id"] for child in flow["children"]}, {"child-1", "child-2"})

    async def surroundings(self) -> None:
        workers = (await self.get("queues", QUEUE, "workers"))["workers"]
        self.expect("workers", [worker["name"] for worker in workers], ["till-7"])
        metrics = await self.get("queues", QUEUE, "metrics")
        counted = {state: metrics[state]["meta"]["count"] for state in ("completed", "failed")}
        self.expect("metrics", counted, {"completed": 2, "failed": 3})
        self.expect("rate limit", (await self.get("queues", QUEUE, "rate-limit"))["rateLimit"], None)
        listed = (await self.get("job-schedulers"))["schedulers"]
        self.expect("schedulers", [(one["id"], one["pattern"]) for one in listed], [("nightly", "0 3 * * *")])
        for path in (
            ("redis", "stats"),
            ("queues", QUEUE, "default-job-options"),
            ("queues", QUEUE, "job-data-schema"),
        ):
            await self.get(*path)

    # Acting on one job

    async def single_actions(self) -> None:
        await self.put("queues", QUEUE, "bad-1", "retry")
        await self.expect_state("bad-1", "waiting")
        await self.put("queues", QUEUE, "later-1", "promote")
        await self.expect_state("later-1", "waiting")
        await self.put("queues", QUEUE, "ok-1", "clean")
        await self.expect_state("ok-1", "unknown")
        await self.patch("queues", QUEUE, "waiting-1", "update-data", body={"jobData": {"n": 99}})
        await self.patch("queues", QUEUE, "waiting-1", "priority", body={"priority": 7})
        changed = await self.queue.get_job("waiting-1")
        self.expect("the changed job", changed and (changed.data, changed.priority), ({"n": 99}, 7))
        await self._reschedule()
        added = await self.post(
            "queues", QUEUE, "add", body={"name": "order", "data": {"n": 5}, "options": {}}
        )
        await self.expect_state(added["job"]["id"], "waiting")
        await self.put("queues", QUEUE, "parent", "remove-unprocessed-children")
        for job_id in ("child-1", "child-2"):
            await self.expect_state(job_id, "unknown")

    async def _reschedule(self) -> None:
        before = await self.queue.get_job("later-2")
        assert before is not None
        run_at = round(before.timestamp.timestamp() * 1000) + 3 * HOUR_MS
        await self.patch("queues", QUEUE, "later-2", "delay", body={"runAt": run_at})
        after = await self.queue.get_job("later-2")
        self.expect("the new delay in hours", after and round(after.delay / 3600), 3)

    # Acting on many

    async def actions_on_many(self) -> None:
        await self.put("queues", QUEUE, "retry", "failed")
        await self.put("queues", QUEUE, "promote")
        for job_id in ("bad-2", "bad-3", "later-2", "later-3"):
            await self.expect_state(job_id, "waiting")
        # The board cleans only what ended more than some seconds ago.
        await self.queue._transport.run(plain(int, "ZADD", self.queue.keys.completed, 1, "ok-2"))
        await self.put("queues", QUEUE, "clean", "completed")
        await self.expect_state("ok-2", "unknown")
        for path in (("queues", QUEUE), ("queues",)):
            await self.put(*path, "pause")
            self.expect(f"paused by {path}", await self.queue.is_paused(), True)
            await self.put(*path, "resume")
            self.expect(f"resumed by {path}", await self.queue.is_paused(), False)

    async def settings(self) -> None:
        await self.put("queues", QUEUE, "concurrency", body={"concurrency": 3})
        self.expect("global concurrency", await self.queue.get_global_concurrency(), 3)
        await self.put("queues", QUEUE, "rate-limit", body={"max": 5, "duration": 2000})
        limit = await self.queue.get_global_rate_limit()
        self.expect("global rate limit", limit and (limit.count, limit.period), (5, 2.0))
        await self.queue.rate_limit(60)
        await self.put("queues", QUEUE, "rate-limit", "release")
        self.expect("time to the end of the limit", max(0, await self.queue.get_rate_limit_ttl()), 0)

    async def schedulers(self) -> None:
        path = ("queues", QUEUE, "job-schedulers", "nightly")
        run = await self.put(*path, "run")
        await self.expect_state(run["job"]["id"], "waiting")
        await self.patch(*path, body={"pattern": "0 4 * * *", "tz": "UTC"})
        changed = await self.queue.schedulers.get("nightly")
        self.expect("the changed schedule", changed and changed.cron, "0 4 * * *")
        await self.put(*path, "remove")
        self.expect("schedulers left", await self.queue.schedulers.count(), 0)

    async def endings(self) -> None:
        await self.put("queues", QUEUE, "empty")
        self.expect("what waits after emptying", await self.queue.count(), 0)
        await self.put("queues", QUEUE, "pause")
        await self.put("queues", QUEUE, "obliterate", body={"force": True})
        counts = await self.queue.get_job_counts()
        self.expect("what is left after obliterating", counts.total, 0)
