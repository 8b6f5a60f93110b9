"""Both transports under one interface, so that a test is written once and holds for both."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, TypeVar

from toril.commands.command import Command, Replay, call, plain
from toril.commands.library import Script
from toril.transport import AsyncTransport, BlockingTransport, ConnectionPolicy

T = TypeVar("T")

QUICK = ConnectionPolicy(reconnect_delay=0.01, max_reconnect_delay=0.05, call_attempts=3)
PATIENT = ConnectionPolicy(reconnect_delay=0.02, max_reconnect_delay=0.2, call_attempts=60)


class AsyncAdapter:
    """The asyncio transport."""

    def __init__(self, redis: Any, policy: ConnectionPolicy, name: str | None) -> None:
        self.transport = AsyncTransport(redis, policy=policy, name=name)

    async def run(self, command: Command[T]) -> T:
        return await self.transport.run(command)

    async def run_many(self, commands: Sequence[Command[Any]]) -> list[Any]:
        return await self.transport.run_many(commands)

    async def run_blocking(self, command: Command[T], timeout: float) -> T:
        return await self.transport.run_blocking(command, timeout)

    async def now_ms(self) -> int:
        return await self.transport.now_ms()

    async def connect(self) -> None:
        await self.transport.connect()

    async def close(self) -> None:
        await self.transport.close()


class BlockingAdapter:
    """The blocking transport, each call from a thread."""

    def __init__(self, redis: Any, policy: ConnectionPolicy, name: str | None) -> None:
        self.transport = BlockingTransport(redis, policy=policy, name=name)

    async def run(self, command: Command[T]) -> T:
        return await asyncio.to_thread(self.transport.run, command)

    async def run_many(self, commands: Sequence[Command[Any]]) -> list[Any]:
        return await asyncio.to_thread(self.transport.run_many, commands)

    async def run_blocking(self, command: Command[T], timeout: float) -> T:
        return await asyncio.to_thread(self.transport.run_blocking, command, timeout)

    async def now_ms(self) -> int:
        return await asyncio.to_thread(self.transport.now_ms)

    async def connect(self) -> None:
        await asyncio.to_thread(self.transport.connect)

    async def close(self) -> None:
        await asyncio.to_thread(self.transport.close)


TransportAdapter = AsyncAdapter | BlockingAdapter
ADAPTERS: dict[str, type[TransportAdapter]] = {"async": AsyncAdapter, "blocking": BlockingAdapter}

_ADD = Script("test.add", "return redis.call('INCRBY', KEYS[1], ARGV[1])")
_ECHO = Script("test.echo", "return ARGV[1]")


def add_to(key: str, by: int = 1, *, replay: Replay = Replay.NEVER) -> Command[int]:
    """A script that must not run twice: each run is counted."""
    return call(_ADD, (key,), [by], int, replay)


def echo(key: str, word: str) -> Command[bytes]:
    """A script that returns its argument, so that a reply to the wrong caller is noticed."""
    return call(_ECHO, (key,), [word], bytes, Replay.SAFE)


def get(key: str) -> Command[bytes | None]:
    return plain(_same, "GET", key)


def put(key: str, value: bytes | str) -> Command[Any]:
    return plain(_same, "SET", key, value)


def raw_request(*parts: Any) -> Command[Any]:
    return plain(_same, *parts)


def _same(reply: Any) -> Any:
    return reply
