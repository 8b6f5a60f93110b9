"""`python -m benchmarks.dashboard`: pages of the dashboard beside bull-board, on the same queues in the same run.

Each page is asked for in turns: ours, then bull-board's answer for the same rows. Also measured: what a page costs the
server (commands, bytes), whether that grows with the number of jobs, what open tabs cost, and a search.
"""

from __future__ import annotations

import argparse
import asyncio
import gzip
import json
import statistics
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import redis

from tests.dashboard.conftest import running_dashboard
from tests.servers import Server
from toril import Queue

NODE = Path(__file__).parents[1] / "tests/interop/node"
STATIC = Path(__file__).parents[1] / "src/toril/dashboard/static"
ROUNDS = 40
# A subset of MONITOR: commands that a page must not send, whatever the number of jobs.
FORBIDDEN = ("SCAN", "KEYS", "HGETALL")


async def fill(url: str, queues: int, jobs: int) -> None:
    """Adds jobs, the same number to each queue."""
    for number in range(queues):
        async with Queue(f"q-{number}", redis=url) as queue:
            for start in range(0, jobs // queues, 5000):
                size = min(5000, jobs // queues - start)
                await queue.add_bulk([("send", {"to": f"user{start + n}@example.com"}) for n in range(size)])


@asynccontextmanager
async def bull_board(url: str, names: list[str]) -> AsyncIterator[str]:
    """Starts bull-board for these queues; yields its address."""
    process = await asyncio.create_subprocess_exec(
        "node", "board.mjs", url, "bull", *names,
        cwd=NODE, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
    )  # fmt: skip
    try:
        assert process.stdout is not None
        yield json.loads(await process.stdout.readline())["url"]
    finally:
        process.kill()
        await process.wait()


async def in_turns(
    http: httpx.AsyncClient, asks: dict[str, str], rounds: int = ROUNDS
) -> dict[str, list[float]]:
    """Returns the seconds of each request, taken in turns."""
    taken: dict[str, list[float]] = {name: [] for name in asks}
    for _ in range(rounds):
        for name, address in asks.items():
            began = time.perf_counter()
            await http.get(address)
            taken[name].append(time.perf_counter() - began)
    return taken


def p95(values: list[float]) -> float:
    return sorted(values)[int(len(values) * 0.95) - 1] * 1000


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


async def measure(queues: int, jobs: int) -> dict[str, Any]:
    with Server.valkey() as server, server.client() as client:
        await fill(server.url, queues, jobs)
        names = [f"q-{number}" for number in range(queues)]
        async with (
            running_dashboard(server.url, "bull") as ours,
            bull_board(server.url, names) as theirs,
            httpx.AsyncClient(timeout=120) as http,
        ):
            rows = "activeQueue=q-0&status=waiting&page=1&jobsPerPage=50"
            pages = {
                "queue": (f"{ours.url}/queues/q-0?state=waiting&limit=50", f"{theirs}/api/queues?{rows}"),
                "overview": (f"{ours.url}/", f"{theirs}/api/queues"),
            }
            found: dict[str, Any] = {"queues": queues, "jobs": jobs}
            for name, (own, other) in pages.items():
                asks = {"toril": own, "bull-board": other}
                await in_turns(http, asks, 3)
                taken = await in_turns(http, asks)
                for who, address in (("toril", own), ("bull-board", other)):
                    client.config_resetstat()
                    cost = Cost(client)
                    reply = await http.get(address)
                    commands, sent = cost.taken()
                    found[f"{name} {who}"] = {
                        "p50_ms": round(statistics.median(taken[who]) * 1000, 1),
                        "p95_ms": round(p95(taken[who]), 1),
                        "commands": sum(commands.values()),
                        "forbidden": sorted(
                            one for one in commands if one.split("|")[0].upper() in FORBIDDEN
                        ),
                        "bytes_from_redis": sent,
                        "bytes_of_page": len(reply.content),
                    }
            found["search"] = await search(
                http, client, f"{ours.url}/queues/q-0?state=waiting&q=nobody-has-this"
            )
            found["tabs"] = await tabs(http, client, ours.url)
        found["assets_gz"] = assets()
        return found


async def search(http: httpx.AsyncClient, client: redis.Redis, address: str) -> dict[str, Any]:
    """Searches a whole state for nothing, page after page; notes calls of 10 ms and more."""
    client.config_set("slowlog-log-slower-than", 10_000)
    client.slowlog_reset()
    began = time.perf_counter()
    requests, after = 0, ""
    while True:
        page = (await http.get(address + after)).text
        requests += 1
        at = page.find("search on")
        if at < 0:
            break
        link = page[page.rfind('href="', 0, at) + 6 : page.rfind('"', 0, at)]
        after = "&after=" + link.partition("after=")[2]
    return {
        "seconds": round(time.perf_counter() - began, 2),
        "requests": requests,
        "slow_calls": len(client.slowlog_get(100)),
    }


async def tabs(http: httpx.AsyncClient, client: redis.Redis, url: str) -> dict[str, float]:
    """Returns commands per second of the server with one open tab and with twenty."""
    rates = {}
    for count in (1, 20):
        streams = [asyncio.create_task(_listen(http, f"{url}/live?page=/queues/q-0")) for _ in range(count)]
        await asyncio.sleep(3)
        cost, began = Cost(client), time.perf_counter()
        await asyncio.sleep(10)
        commands, _ = cost.taken()
        rates[f"{count}"] = round(sum(commands.values()) / (time.perf_counter() - began), 1)
        for stream in streams:
            stream.cancel()
        await asyncio.wait(streams)
    return rates


async def _listen(http: httpx.AsyncClient, url: str) -> None:
    async with http.stream("GET", url) as stream:
        async for _ in stream.aiter_bytes():
            pass


def assets() -> int:
    """Returns the compressed size of scripts and styles, each file by itself."""
    return sum(
        len(gzip.compress(path.read_bytes(), 9))
        for path in STATIC.iterdir()
        if path.suffix in (".js", ".css")
    )


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--queues", type=int, default=100)
    options.add_argument("--jobs", type=int, default=1_000_000)
    options.add_argument("--small", type=int, default=1_000, help="also measured with so many jobs; 0: not")
    given = options.parse_args()
    sizes = [given.small, given.jobs] if given.small else [given.jobs]
    json.dump([asyncio.run(measure(given.queues, jobs)) for jobs in sizes], sys.stdout, indent=1)
    print()


if __name__ == "__main__":
    main()
