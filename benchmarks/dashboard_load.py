"""What the dashboard costs while it is used: open tabs, searches, large jobs, throughput of workers beside it."""

from __future__ import annotations

import asyncio
import statistics
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import redis

from toril import Queue

LARGE = 10 * 1024 * 1024 - 1024  # with its options it is below the limit of a job
# Calls of the server that take longer are noted.
SLOW_MICROSECONDS = 10_000
TAB_SECONDS = 10

# A process of its own: adds jobs and runs them until it is told to stop, or runs those that are there.
_WORKER = """
import asyncio, sys, time
from toril import Queue, Worker

async def handle(job): ...

async def main(url, name, jobs):
    async with Queue(name, redis=url) as queue, Worker(name, handle, redis=url, concurrency=100) as worker:
        while True:
            await queue.add_bulk([("send", {"n": n}) for n in range(jobs)])
            began = time.perf_counter()
            await worker.run_until_idle()
            print(jobs / (time.perf_counter() - began), flush=True)

asyncio.run(main(sys.argv[1], sys.argv[2], int(sys.argv[3])))
"""


@asynccontextmanager
async def busy_worker(url: str, name: str, jobs: int) -> AsyncIterator[asyncio.StreamReader]:
    """A process that adds jobs and runs them all the time; yields the rate of each round as a line."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", _WORKER, url, name, str(jobs), stdout=asyncio.subprocess.PIPE
    )
    assert process.stdout is not None
    try:
        yield process.stdout
    finally:
        process.kill()
        await process.wait()


class Cost:
    """What the server did between two moments: commands by name, and bytes that it sent."""

    def __init__(self, client: redis.Redis) -> None:
        self._client = client
        self._before = self._now()

    def _now(self) -> tuple[dict[str, int], int]:
        stats: Any = self._client.info("commandstats")
        sent: Any = self._client.info("stats")
        return {name: one["calls"] for name, one in stats.items()}, sent["total_net_output_bytes"]

    def taken(self) -> tuple[dict[str, int], int]:
        commands, sent = self._now()
        before, before_sent = self._before
        grown = {name[8:]: count - before.get(name, 0) for name, count in commands.items()}
        return {
            name: count for name, count in grown.items() if count and name not in ("info", "config|resetstat")
        }, (sent - before_sent)


# --- tabs ------------------------------------------------------------------------------------------------------


@asynccontextmanager
async def open_tabs(http: httpx.AsyncClient, url: str, page: str, count: int) -> AsyncIterator[None]:
    streams = [asyncio.create_task(_listen(http, f"{url}/live?page={page}")) for _ in range(count)]
    try:
        await asyncio.sleep(3)
        yield
    finally:
        for stream in streams:
            stream.cancel()
        await asyncio.wait(streams)


async def _listen(http: httpx.AsyncClient, url: str) -> None:
    async with http.stream("GET", url) as stream:
        async for _ in stream.aiter_bytes():
            pass


async def tabs(http: httpx.AsyncClient, client: redis.Redis, url: str, pid: int) -> dict[str, Any]:
    """Returns commands per second and seconds of processor time per minute with one open tab and with twenty."""
    found: dict[str, Any] = {}
    for count in (1, 20):
        async with open_tabs(http, url, "/queues/q-0?state=waiting", count):
            cost, began, used = Cost(client), time.perf_counter(), _processor_seconds(pid)
            await asyncio.sleep(TAB_SECONDS)
            seconds = time.perf_counter() - began
            commands, _ = cost.taken()
            found[f"{count} commands_per_s"] = round(sum(commands.values()) / seconds, 1)
            found[f"{count} cpu_s_per_min"] = round((_processor_seconds(pid) - used) / seconds * 60, 2)
    found["ratio"] = round(found["20 commands_per_s"] / found["1 commands_per_s"], 2)
    return found


def _processor_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / 100


# --- throughput ------------------------------------------------------------------------------------------------


async def throughput(
    http: httpx.AsyncClient, redis_url: str, url: str, jobs: int, pairs: int
) -> dict[str, Any]:
    """Returns jobs per second of a worker without the dashboard and with an open overview, taken in turns."""
    rates: dict[str, list[float]] = {"without": [], "with": []}
    async with busy_worker(redis_url, "throughput", jobs) as lines:
        await lines.readline()  # the first round loads scripts
        for _ in range(pairs):
            rates["without"].append(float(await lines.readline()))
            async with open_tabs(http, url, "/", 1):
                await lines.readline()  # began before the tab was open
                rates["with"].append(float(await lines.readline()))
            await lines.readline()
    before, beside = statistics.median(rates["without"]), statistics.median(rates["with"])
    return {"jobs_per_s": round(before), "with_a_tab": round(beside), "loss": round(1 - beside / before, 3)}


# --- searches and large jobs -----------------------------------------------------------------------------------


# A job is added by the library, and copied by the server: a million jobs in seconds instead of minutes.
_COPY = """
local fields = redis.call("HGETALL", KEYS[1])
for number = tonumber(ARGV[2]), tonumber(ARGV[3]) do
  local id = string.format("%s%08x", ARGV[1], number)
  redis.call("HSET", KEYS[2] .. id, unpack(fields))
  redis.call("HSET", KEYS[2] .. id, "data", string.format('{"to":"user%d@example.com"}', number))
  redis.call("LPUSH", KEYS[3], id)
end
"""


async def add_copies(url: str, client: redis.Redis, name: str, jobs: int) -> None:
    """Adds so many waiting jobs to a queue."""
    async with Queue(name, redis=url) as queue:
        first = (await queue.add("send", {"to": "user0@example.com"})).id
    base, copy = f"bull:{name}:", client.register_script(_COPY)
    for start in range(1, jobs, 1000):
        keys = [base + first, base, base + "wait"]
        copy(keys=keys, args=[first[:24], start, min(start + 999, jobs - 1)])


async def add_searched(url: str, client: redis.Redis, jobs: int) -> str:
    """Adds a queue for searches with one job of 10 MB; returns that job's id."""
    await add_copies(url, client, "searched", jobs)
    async with Queue("searched", redis=url) as queue:
        return (await queue.add("blob", {"text": "x" * LARGE + "needle"})).id


async def search(http: httpx.AsyncClient, client: redis.Redis, address: str) -> dict[str, Any]:
    """Searches a whole state for nothing, page after page; notes slow calls."""
    client.config_set("slowlog-log-slower-than", SLOW_MICROSECONDS)
    client.slowlog_reset()
    began = time.perf_counter()
    requests, after, longest = 0, "", 0.0
    while True:
        asked = time.perf_counter()
        page = (await http.get(address + after)).text
        longest = max(longest, time.perf_counter() - asked)
        requests += 1
        at = page.find("search on")
        if at < 0:
            break
        link = page[page.rfind('href="', 0, at) + 6 : page.rfind('"', 0, at)]
        after = "&after=" + link.partition("after=")[2]
    slow: Any = client.slowlog_get(100)
    return {
        "seconds": round(time.perf_counter() - began, 2),
        "requests": requests,
        "longest_request_s": round(longest, 2),
        "slow_calls": [f"{one['duration']} µs {one['command'][:60]!r}" for one in slow],
    }


async def cancelled_search(client: redis.Redis, address: str) -> float:
    """Closes the request of a search; returns the seconds until the server gets no more calls of it."""
    async with httpx.AsyncClient(timeout=30) as http:
        request = asyncio.create_task(http.get(address))
        await asyncio.sleep(0.2)
        request.cancel()
        await asyncio.wait([request])
    began = last = time.perf_counter()
    calls = -1
    while time.perf_counter() - last < 0.3:
        stats: Any = client.info("commandstats")
        now = stats.get("cmdstat_evalsha", {}).get("calls", 0)
        if now != calls:
            calls, last = now, time.perf_counter()
        await asyncio.sleep(0.01)
    return round(last - began, 2)


async def memory_of(pid: int, steps: dict[str, Callable[[], Awaitable[object]]]) -> dict[str, float]:
    """Returns by how many megabytes the peak of a process grew during each step."""
    grown = {}
    for name, step in steps.items():
        before = _forget_peak(pid)
        await step()
        grown[name] = round(_megabytes(pid, "VmHWM") - before, 1)
    return grown


def _forget_peak(pid: int) -> float:
    """Makes the size of now the peak of a process; returns that size."""
    Path(f"/proc/{pid}/clear_refs").write_text("5", encoding="utf-8")
    return _megabytes(pid, "VmRSS")


def _megabytes(pid: int, name: str) -> float:
    lines = Path(f"/proc/{pid}/status").read_text(encoding="utf-8").splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith(name))


async def large_job(http: httpx.AsyncClient, url: str, pid: int, job_id: str) -> dict[str, float]:
    """Returns what a job of 10 MB costs in megabytes: its list, its page, its raw value, and a search in it."""
    queue = f"{url}/queues/searched"
    addresses = {
        "list": f"{queue}?state=waiting",
        "page": f"{queue}/job?id={job_id}",
        "raw": f"{queue}/job/value?id={job_id}&field=data",
        "search": f"{queue}?state=waiting&q=needle",
    }
    await http.get(addresses["list"])
    return await memory_of(pid, {name: partial(http.get, one) for name, one in addresses.items()})
