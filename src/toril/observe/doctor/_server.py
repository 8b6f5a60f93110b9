"""The server: version, persistence, eviction, memory, clients, clock, latency.

Guarantee: a figure that the server does not report, or that the user may not read, is a warning.
"""

from __future__ import annotations

import re
import statistics
import time
from collections.abc import Iterator, Mapping
from typing import Final

from toril.commands.command import Command, plain
from toril.commands.server import server_info, server_time
from toril.errors import RedisError, TorilError
from toril.observe.doctor._finding import Finding, note, ok, problem, warning
from toril.protocol.clock import Clock
from toril.transport import AsyncTransport

OLDEST_REDIS: Final = (6, 2)
OLDEST_VALKEY: Final = (7, 2)
COUNTS_ENTRIES: Final = (7, 0)  # since when Redis reports how many entries were ever added to a stream
FULL: Final = 0.8  # of maxmemory: soon writes are refused
NEARLY_ALL_CLIENTS: Final = 0.8  # of maxclients
SKEW: Final = 1.0  # seconds; toril uses the server's clock, others may not
SLOW: Final = 0.010  # seconds for a round trip: a worker makes two for each batch of jobs
PINGS: Final = 21


async def examine_server(transport: AsyncTransport, clock: Clock = time) -> list[Finding]:
    """Returns the findings about the server itself."""
    info = await _info(transport)
    findings = [*_version(info), *_role(info), *_memory(info), *_clients(info)]
    findings += await _persistence(transport, info)
    findings += await _eviction(transport, info)
    findings += await _clock(transport, clock)
    findings += await _latency(transport)
    return findings


async def _info(transport: AsyncTransport) -> Mapping[str, str]:
    sections = ("server", "memory", "persistence", "clients", "replication", "stats")
    replies = await transport.run_many([server_info(section) for section in sections])
    merged: dict[str, str] = {}
    for reply in replies:
        if not isinstance(reply, TorilError):
            merged |= {key: value.strip() for key, value in reply.items()}
    return merged


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", text)[:3])


def _version(info: Mapping[str, str]) -> Iterator[Finding]:
    name = info.get("server_name", "redis")
    text = info.get(f"{name}_version") or info.get("redis_version", "")
    if not text:
        yield warning("version", "the server does not report its version", "allow INFO to this user")
        return
    oldest = OLDEST_VALKEY if name == "valkey" else OLDEST_REDIS
    if _numbers(text) < oldest:
        wanted = ".".join(map(str, oldest))
        yield problem("version", f"{name} {text} is too old", f"upgrade to {wanted} or newer")
    elif name == "redis" and _numbers(text) < COUNTS_ENTRIES:
        yield note("version", f"redis {text} does not count stream entries: gaps are noticed, not counted")
    else:
        yield ok("version", f"{name} {text}")


def _role(info: Mapping[str, str]) -> Iterator[Finding]:
    if info.get("role") == "slave":
        yield problem(
            "role",
            "this is a replica: it refuses every change",
            "give the address of the primary, or use redis+sentinel://",
        )
    if info.get("master_link_status") == "down":
        yield warning("role", "the replica has lost its primary", "repair the connection between them")


def _memory(info: Mapping[str, str]) -> Iterator[Finding]:
    most, used = int(info.get("maxmemory", 0) or 0), int(info.get("used_memory", 0) or 0)
    if not most:
        yield ok("memory", f"{used / 2**20:.0f} MB used, no maxmemory")
    elif used >= most * FULL:
        yield problem(
            "memory",
            f"{used / most:.0%} of maxmemory ({most / 2**20:.0f} MB) is used: when it is full, jobs can neither be "
            "added nor taken",
            "raise maxmemory, or remove ended jobs (remove_on_complete, `toril clean`)",
        )
    else:
        yield ok("memory", f"{used / most:.0%} of {most / 2**20:.0f} MB used")


def _clients(info: Mapping[str, str]) -> Iterator[Finding]:
    now, most = int(info.get("connected_clients", 0) or 0), int(info.get("maxclients", 0) or 0)
    if most and now >= most * NEARLY_ALL_CLIENTS:
        yield warning(
            "clients", f"{now} of {most} connections are in use", "raise maxclients, or share connections"
        )


async def _persistence(transport: AsyncTransport, info: Mapping[str, str]) -> list[Finding]:
    if not info:
        return []
    if info.get("aof_enabled") == "1":
        return list(_append_only(info, await _setting(transport, "appendfsync")))
    return list(_snapshots(info, await _setting(transport, "save")))


def _append_only(info: Mapping[str, str], fsync: str | None) -> Iterator[Finding]:
    if fsync == "no":
        message = "appendfsync is no: a power cut loses up to half a minute"
        yield warning("persistence", message, "set it to everysec")
    else:
        window = "nothing" if fsync == "always" else "about a second"
        yield ok("persistence", f"append-only file; a power cut loses {window}")
    if info.get("aof_last_write_status", "ok") != "ok":
        message = "the append-only file cannot be written"
        yield problem("persistence", message, "check the disk: it is full or broken")


def _snapshots(info: Mapping[str, str], points: str | None) -> Iterator[Finding]:
    remedy = "switch the append-only file on: appendonly yes"
    if points:
        message = f"snapshots only (save {points}): a crash loses every job since the last one"
        yield warning("persistence", message, remedy)
    elif points == "":
        yield warning("persistence", "nothing is written to disk: a restart loses all jobs", remedy)
    else:
        yield warning("persistence", "no append-only file, and CONFIG may not be read", remedy)
    if info.get("rdb_last_bgsave_status", "ok") != "ok":
        message = "the last snapshot failed; writes may be refused"
        yield problem("persistence", message, "check the disk: it is full or broken")


async def _setting(transport: AsyncTransport, name: str) -> str | None:
    """Returns a setting; None if the user may not read it."""
    try:
        found = await transport.run(_config(name))
    except RedisError:
        return None
    return found.get(name)


def _config(name: str) -> Command[dict[str, str]]:
    def decode(reply: list[bytes] | Mapping[bytes, bytes]) -> dict[str, str]:
        flat = [word for pair in reply.items() for word in pair] if isinstance(reply, Mapping) else reply
        return {flat[i].decode(): flat[i + 1].decode() for i in range(0, len(flat), 2)}

    return plain(decode, "CONFIG", "GET", name)


async def _eviction(transport: AsyncTransport, info: Mapping[str, str]) -> list[Finding]:
    policy = info.get("maxmemory_policy") or await _setting(transport, "maxmemory-policy")
    if policy is None:
        return [warning("eviction", "the eviction policy may not be read", "allow INFO to this user")]
    if policy != "noeviction":
        remedy = "CONFIG SET maxmemory-policy noeviction, and in the configuration file"
        return [problem("eviction", f"maxmemory-policy is {policy}: the server may delete jobs", remedy)]
    return [ok("eviction", "noeviction")]


async def _clock(transport: AsyncTransport, clock: Clock) -> list[Finding]:
    before = clock.time()
    server = await transport.run(server_time())
    after = clock.time()
    skew = server - (before + after) / 2
    if abs(skew) - (after - before) / 2 > SKEW:
        message = (
            f"this machine's clock is {abs(skew):.1f} s {'behind' if skew > 0 else 'ahead of'} the server's"
        )
        return [
            warning(
                "clock", message, "synchronise both with NTP; Node's clients stamp jobs with their own clock"
            )
        ]
    return [ok("clock", f"within {max(abs(skew), 0.001) * 1000:.0f} ms of the server's")]


async def _latency(transport: AsyncTransport) -> list[Finding]:
    times: list[float] = []
    for _ in range(PINGS):
        began = time.perf_counter()
        await transport.run(plain(bool, "PING"))
        times.append(time.perf_counter() - began)
    # The fastest quarter shows network and server; the slower ones also show the load of this machine.
    quick, worst = statistics.quantiles(times, n=4)[0], max(times)
    figures = f"a round trip takes {quick * 1000:.1f} ms (longest of {PINGS}: {worst * 1000:.1f} ms)"
    if quick > SLOW:
        return [warning("latency", figures, "run workers near the server; check SLOWLOG and the network")]
    return [ok("latency", figures)]
