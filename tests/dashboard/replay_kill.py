"""`python -m tests.dashboard.replay_kill`: a group is retried, its dashboard is killed midway, another one continues.

Failures of three errors are three exact groups. One group is retried at a rate; its dashboard gets SIGKILL in the
middle, a second one shows the operation as interrupted and continues it. Then a worker runs what waits: every job of
the group once, no job of the others.
"""

from __future__ import annotations

import argparse
import asyncio
import html
import re
from collections import Counter
from dataclasses import dataclass
from typing import Any

import httpx

from tests.dashboard.conftest import RunningDashboard, running_dashboard
from tests.servers import Server
from tests.waiting import until
from toril import Job, PermanentError, Queue, Worker

ERRORS = ("mailbox {n} is full", "no such user {n}", "connection to host {n} timed out")
QUEUE = "emails"


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What was seen."""

    groups: list[int]  # failures of each group, as the page shows them
    retried_when_killed: int
    runs: Counter[str]  # of each job, after the operation ended
    members: set[str]  # the jobs of the group that was retried
    still_failed: int


class Operator:
    """Someone who uses a dashboard that runs as a process."""

    def __init__(self, dashboard: RunningDashboard, client: httpx.AsyncClient) -> None:
        self._dashboard = dashboard
        self._client = client

    async def text(self, path: str) -> str:
        reply = await self._client.get(path)
        reply.raise_for_status()
        return reply.text

    async def post(self, path: str, **fields: str) -> httpx.Response:
        await self._client.get("/audit")  # sets the cookie with the token of forms
        headers = {"origin": self._dashboard.url, "sec-fetch-site": "same-origin"}
        form = {**fields, "token": self._client.cookies["toril_csrf"]}
        return await self._client.post(path, data=form, headers=headers)


async def fail_jobs(redis: str, prefix: str, count: int) -> set[str]:
    """Adds jobs that fail with one of the errors in turn; returns the ids of those with the second."""

    async def handle(job: Job) -> None:
        raise PermanentError(ERRORS[job.data["n"] % len(ERRORS)].format(n=job.data["n"]))

    async with Queue(QUEUE, redis=redis, prefix=prefix) as queue:
        jobs = await queue.add_bulk([("send", {"n": n}) for n in range(count)])
    async with Worker(QUEUE, handle, redis=redis, prefix=prefix, concurrency=100) as worker:
        await worker.run_until_idle()
    return {job.id for number, job in enumerate(jobs) if number % len(ERRORS) == 1}


async def begin(redis: str, prefix: str, queue: Queue, rate: int, size: int) -> tuple[list[int], str, int]:
    """Retries the second group and kills the dashboard; returns the groups, the operation and how many were retried."""
    async with running_dashboard(redis, prefix, "--allow-writes") as dashboard:
        async with httpx.AsyncClient(base_url=dashboard.url, timeout=60) as client:
            operator = Operator(dashboard, client)
            page = await until(lambda: _examined(operator), "all failures are examined")
            sizes = [int(one.replace(",", "")) for one in re.findall(r"<b>([\d,]+)</b></td>", page)]
            fields: dict[str, Any] = {
                "act": "retry",
                "queue": QUEUE,
                "group": _fingerprint(page, "no such user"),
            }
            preview = await operator.post("/failures/act", **fields)
            assert f"{size:,} failures of {QUEUE}" in preview.text, preview.text[-2000:]
            reply = await operator.post("/failures/act", **fields, confirmed="1", rate=str(rate))

        async def is_midway() -> bool:
            return (await queue.get_job_counts()).waiting >= size // 3

        await until(is_midway, "a third of the group was retried", within=300)
        await dashboard.kill()
    return sizes, reply.headers["location"], (await queue.get_job_counts()).waiting


async def _examined(operator: Operator) -> str:
    page = await operator.text("/failures")
    found = re.search(r">([\d,]+) of ([\d,]+) examined<", page)
    return page if found is not None and found[1] == found[2] else ""


def _fingerprint(page: str, words: str) -> str:
    rows = html.unescape(page).split("<tr data-row")
    row = next(one for one in rows if words in one and "fp=" in one)
    found = re.search(r"fp=([0-9a-f]{16})", row)
    assert found is not None
    return found[1]


async def go_on(redis: str, prefix: str, path: str) -> None:
    """Continues the operation in another dashboard, until it is done."""
    async with (
        running_dashboard(redis, prefix, "--allow-writes") as dashboard,
        httpx.AsyncClient(base_url=dashboard.url, timeout=60) as client,
    ):
        operator = Operator(dashboard, client)

        async def is_in(state: str) -> bool:
            return f"s-{state}" in await operator.text(path)

        await until(lambda: is_in("interrupted"), "the operation is shown as interrupted")
        reply = await operator.post(f"{path}/act", act="continue")
        assert reply.status_code == 303, reply.text[-2000:]
        await until(lambda: is_in("done"), "the operation is done", within=300)


async def replay_and_kill(redis: str, prefix: str, *, failures: int, rate: int) -> Outcome:
    members = await fail_jobs(redis, prefix, failures)
    runs: Counter[str] = Counter()

    async def handle(job: Job) -> None:
        runs[job.id] += 1

    async with Queue(QUEUE, redis=redis, prefix=prefix) as queue:
        sizes, path, retried = await begin(redis, prefix, queue, rate, len(members))
        await go_on(redis, prefix, path)
        async with Worker(QUEUE, handle, redis=redis, prefix=prefix, concurrency=100) as worker:
            await worker.run_until_idle()
        failed = (await queue.get_job_counts()).failed
    return Outcome(groups=sizes, retried_when_killed=retried, runs=runs, members=members, still_failed=failed)


def check(outcome: Outcome, failures: int) -> None:
    sizes = sorted((failures - number + 2) // 3 for number in range(3))
    assert sorted(outcome.groups) == sizes, outcome.groups
    assert 0 < outcome.retried_when_killed < len(outcome.members), outcome.retried_when_killed
    assert outcome.runs == Counter(outcome.members)
    assert outcome.still_failed == failures - len(outcome.members)


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--failures", type=int, default=5_000)
    options.add_argument("--rate", type=int, default=100, help="retries per second")
    given = options.parse_args()
    with Server.valkey() as server:
        outcome = asyncio.run(replay_and_kill(server.url, "bull", failures=given.failures, rate=given.rate))
    check(outcome, given.failures)
    print(
        f"groups {outcome.groups}; killed after {outcome.retried_when_killed:,} of {len(outcome.members):,}; "
        f"each of them ran once, {outcome.still_failed:,} others stayed failed"
    )


if __name__ == "__main__":
    main()
