"""`python -m benchmarks.dashboard`: pages of the dashboard beside bull-board, on the same queues in the same run.

Each page is asked for in turns: ours, then bull-board's answer for the same rows, while a worker is busy. Also
measured: what a page costs the server, open tabs, throughput beside an open page, a job of 10 MB, searches, and both
pages in a browser. `--full` has a hundred queues with a million jobs.
"""

from __future__ import annotations

import argparse
import asyncio
import gzip
import json
import statistics
import sys
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import redis
from playwright.async_api import Browser, Request

from benchmarks import dashboard_load as load
from benchmarks.dashboard_load import Cost
from tests.dashboard.browsing import chromium
from tests.dashboard.conftest import RunningDashboard, running_dashboard
from tests.dashboard.relay import relay_to
from tests.servers import Server

NODE = Path(__file__).parents[1] / "tests/interop/node"
STATIC = Path(__file__).parents[1] / "src/toril/dashboard/static"
# Commands that a page must not send, whatever the number of jobs.
FORBIDDEN = ("SCAN", "KEYS", "HGETALL")


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """How much is measured."""

    queues: int
    jobs: int
    searched: int
    rounds: int
    throughput_jobs: int
    pairs: int


SMALL = Size(queues=100, jobs=20_000, searched=10_000, rounds=40, throughput_jobs=5_000, pairs=3)
FULL = Size(queues=100, jobs=1_000_000, searched=100_000, rounds=100, throughput_jobs=50_000, pairs=5)

# What is demanded: figure, its place in the result, and the highest value.
TARGETS: dict[str, tuple[tuple[str, ...], float]] = {
    "queue page p95, ours ÷ bull-board": (("pages", "queue", "ratio"), 0.5),
    "overview p95, ours ÷ bull-board": (("pages", "overview", "ratio"), 0.5),
    "queue page p95 without load, ms": (("quiet", "queue_p95_ms"), 200),
    "overview p95 without load, ms": (("quiet", "overview_p95_ms"), 200),
    "round trips of a page": (("quiet", "round_trips"), 3),
    "KB from the server for a page": (("quiet", "kilobytes"), 256),
    "SCAN, KEYS and HGETALL for pages": (("costs", "forbidden"), 0),
    "script call p99, ms": (("quiet", "script_p99_ms"), 5),
    "scripts and styles, KB compressed": (("assets_kb",), 45),
    "20 tabs ÷ one": (("tabs", "ratio"), 1.2),
    "loss of throughput": (("throughput", "loss"), 0.03),
    "a job of 10 MB, page, MB": (("large_job_mb", "page"), 50),
    "a job of 10 MB, search, MB": (("large_job_mb", "search"), 50),
    "search, s": (("search", "seconds"), 10),
    "calls above 10 ms": (("search", "slow"), 0),
    "cancelled search, s": (("search", "cancelled_s"), 1),
}


async def fill(url: str, client: redis.Redis, queues: int, jobs: int) -> None:
    """Adds jobs, the same number to each queue."""
    for number in range(queues):
        await load.add_copies(url, client, f"q-{number}", jobs // queues)


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


async def in_turns(http: httpx.AsyncClient, asks: dict[str, str], rounds: int) -> dict[str, list[float]]:
    """Returns the seconds of each request, taken in turns."""
    taken: dict[str, list[float]] = {name: [] for name in asks}
    for _ in range(rounds):
        for name, address in asks.items():
            began = time.perf_counter()
            (await http.get(address)).raise_for_status()
            taken[name].append(time.perf_counter() - began)
    return taken


def p95(values: list[float]) -> float:
    return round(sorted(values)[int(len(values) * 0.95) - 1] * 1000, 1)


# --- pages -----------------------------------------------------------------------------------------------------


def addresses(ours: str, theirs: str) -> dict[str, dict[str, str]]:
    rows = "activeQueue=q-0&status=waiting&page=1&jobsPerPage=50"
    return {
        "queue": {
            "toril": f"{ours}/queues/q-0?state=waiting&limit=50",
            "bull-board": f"{theirs}/api/queues?{rows}",
        },
        "overview": {"toril": f"{ours}/", "bull-board": f"{theirs}/api/queues"},
    }


async def pages(http: httpx.AsyncClient, asks: dict[str, dict[str, str]], rounds: int) -> dict[str, Any]:
    """Returns the times of each page of both."""
    found: dict[str, Any] = {}
    for name, each in asks.items():
        await in_turns(http, each, 3)
        taken = await in_turns(http, each, rounds)
        found[name] = {
            who: {"p50_ms": round(statistics.median(one) * 1000, 1), "p95_ms": p95(one)}
            for who, one in taken.items()
        }
        found[name]["ratio"] = round(p95(taken["toril"]) / p95(taken["bull-board"]), 3)
    return found


async def costs(
    http: httpx.AsyncClient, client: redis.Redis, asks: dict[str, dict[str, str]]
) -> dict[str, Any]:
    """Returns what one request costs the server while nothing else happens."""
    found: dict[str, Any] = {}
    for name, each in asks.items():
        for who, address in each.items():
            await asyncio.sleep(2.5)  # so that figures of a page before are too old
            cost = Cost(client)
            reply = await http.get(address)
            commands, sent = cost.taken()
            found[f"{name} {who}"] = {
                "commands": sum(commands.values()),
                "forbidden": sorted(one for one in commands if one.split("|")[0].upper() in FORBIDDEN),
                "bytes_from_redis": sent,
                "bytes_of_page": len(reply.content),
            }
    found["forbidden"] = sum(len(one["forbidden"]) for name, one in found.items() if "toril" in name)
    return found


async def quiet(http: httpx.AsyncClient, server: Server, client: redis.Redis, rounds: int) -> dict[str, Any]:
    """Returns figures of our pages alone: times, round trips, bytes, and the time of script calls."""
    async with relay_to(server) as relay, running_dashboard(relay.url, "bull") as ours:
        paths = {"overview": "/", "queue": "/queues/q-0?state=waiting&limit=50"}
        found: dict[str, Any] = {"round_trips": 0, "kilobytes": 0.0}
        client.config_resetstat()
        for name, path in paths.items():
            await http.get(ours.url + path)
            await asyncio.sleep(2.5)
            relay.reset()
            await http.get(ours.url + path)
            found["round_trips"] = max(found["round_trips"], relay.round_trips)
            found["kilobytes"] = max(found["kilobytes"], round(relay.bytes / 1024, 1))
            taken = await in_turns(http, {"toril": ours.url + path}, rounds)
            found[f"{name}_p95_ms"] = p95(taken["toril"])
        calls: Any = client.info("latencystats")
        found["script_p99_ms"] = calls["latency_percentiles_usec_evalsha"]["p99"] / 1000
        return found


# --- in a browser ----------------------------------------------------------------------------------------------


async def in_browser(
    http: httpx.AsyncClient, client: redis.Redis, ours: str, theirs: str, seconds: float
) -> dict[str, Any]:
    """Returns the time to the first row, the bytes of an empty cache, and the commands per minute of an open page."""
    answer = (
        await http.get(f"{theirs}/api/queues?activeQueue=q-0&status=waiting&page=1&jobsPerPage=50")
    ).json()
    first = next(one for one in answer["queues"] if one["name"] == "q-0")["jobs"][0]["id"]
    places = {
        "toril": (f"{ours}/queues/q-0?state=waiting", "tr[data-row]"),
        "bull-board": (f"{theirs}/queue/q-0?status=waiting", f"text={first}"),
    }
    async with chromium() as browser:
        return {
            who: await one_page(browser, client, address, row, seconds)
            for who, (address, row) in places.items()
        }


async def one_page(
    browser: Browser, client: redis.Redis, address: str, row: str, seconds: float
) -> dict[str, Any]:
    """Opens a page with an empty cache, and leaves it open for some seconds."""
    finished: list[Request] = []

    def note(request: Request) -> None:
        finished.append(request)

    page = await browser.new_page()
    page.on("requestfinished", note)
    began = time.perf_counter()
    await page.goto(address, wait_until="commit")
    await page.wait_for_selector(row, timeout=60_000)
    shown = time.perf_counter() - began
    await page.wait_for_timeout(1000)
    sizes = [await one.sizes() for one in list(finished)]
    cost = Cost(client)
    await asyncio.sleep(seconds)
    commands, _ = cost.taken()
    await page.close()
    return {
        "first_row_ms": round(shown * 1000),
        "bytes": sum(one["responseBodySize"] for one in sizes),
        "commands_per_minute": round(sum(commands.values()) * 60 / seconds),
    }


def assets() -> float:
    """Returns the compressed kilobytes of scripts and styles, each file by itself."""
    files = (path for path in STATIC.iterdir() if path.suffix in (".js", ".css"))
    return round(sum(len(gzip.compress(path.read_bytes(), 9)) for path in files) / 1024, 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Measured:
    """Both dashboards before the same server."""

    size: Size
    server: Server
    client: redis.Redis
    http: httpx.AsyncClient
    ours: RunningDashboard
    theirs: str
    large_id: str  # the job of 10 MB

    async def part(self, name: str) -> dict[str, Any]:
        asks = addresses(self.ours.url, self.theirs)
        url, pid = self.ours.url, self.ours.process.pid
        match name:
            case "costs":
                return await costs(self.http, self.client, asks)
            case "quiet":
                return await quiet(self.http, self.server, self.client, self.size.rounds)
            case "pages":
                async with load.busy_worker(self.server.url, "busy", 2_000):
                    return await pages(self.http, asks, self.size.rounds)
            case "browser":
                return await in_browser(self.http, self.client, url, self.theirs, load.TAB_SECONDS)
            case "tabs":
                return await load.tabs(self.http, self.client, url, pid)
            case "throughput":
                jobs, pairs = self.size.throughput_jobs, self.size.pairs
                return await load.throughput(self.http, self.server.url, url, jobs, pairs)
            case "search":
                address = f"{url}/queues/searched?state=waiting&q=nobody-has-this"
                found = await load.search(self.http, self.client, address)
                found["slow"] = len(found["slow_calls"])
                return found | {"cancelled_s": await load.cancelled_search(self.client, address)}
            case "large_job_mb":
                return await load.large_job(self.http, url, pid, self.large_id)
        raise ValueError(name)


PARTS = ("costs", "quiet", "pages", "browser", "tabs", "throughput", "search", "large_job_mb")


async def measure(size: Size, parts: Sequence[str]) -> dict[str, Any]:
    with Server.valkey() as server, server.client() as client:
        await fill(server.url, client, size.queues, size.jobs)
        large_id = await load.add_searched(server.url, client, size.searched)
        names = [f"q-{number}" for number in range(size.queues)]
        found: dict[str, Any] = {"queues": size.queues, "jobs": size.jobs, "assets_kb": assets()}
        async with (
            running_dashboard(server.url, "bull") as ours,
            bull_board(server.url, names) as theirs,
            httpx.AsyncClient(timeout=120) as http,
        ):
            await http.get(ours.url)
            measured = _Measured(
                size=size,
                server=server,
                client=client,
                http=http,
                ours=ours,
                theirs=theirs,
                large_id=large_id,
            )
            for part in parts:
                began = time.perf_counter()
                found[part] = await measured.part(part)
                print(f"{part}: {time.perf_counter() - began:.0f} s", file=sys.stderr)
        return found


def verdicts(found: dict[str, Any]) -> list[str]:
    """Returns a line for each demand: met or missed, with its figure."""
    lines = []
    for name, (path, most) in TARGETS.items():
        if path[0] not in found:
            continue  # this part was not measured
        value: Any = found
        for part in path:
            value = value[part]
        lines.append(f"{'met   ' if value <= most else 'missed'} {name}: {value} (at most {most})")
    return lines


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--full", action="store_true", help="a hundred queues with a million jobs")
    for name in ("queues", "jobs", "searched", "rounds"):
        options.add_argument(f"--{name}", type=int, default=None)
    options.add_argument("--part", action="append", choices=PARTS, help="measure this only; may be repeated")
    given = options.parse_args()
    base = FULL if given.full else SMALL
    chosen = {
        name: getattr(given, name) or getattr(base, name) for name in ("queues", "jobs", "searched", "rounds")
    }
    size = Size(**chosen, throughput_jobs=base.throughput_jobs, pairs=base.pairs)
    found = asyncio.run(measure(size, given.part or PARTS))
    json.dump(found, sys.stdout, indent=1)
    print()
    print("\n".join(verdicts(found)))


if __name__ == "__main__":
    main()
