"""The connection of a queue: opens it when it is first used, and runs its commands.

Guarantee: the meta of the queue is written before its first command is sent, once, whatever calls come first. After
`refuse_calls` every call raises `Closed`.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Any, TypeVar

from toril.commands import manage, read
from toril.commands.command import Command
from toril.errors import AccessDenied, Closed, RedisUnavailable, TorilError
from toril.protocol.keys import QueueKeys
from toril.protocol.option_warnings import warn_option
from toril.transport import AsyncTransport

V = TypeVar("V")

logger = logging.getLogger("toril.queue")


class QueueConnection:
    """Runs the commands of one queue."""

    def __init__(
        self, transport: AsyncTransport, keys: QueueKeys, *, events_max_len: int | None, skip_meta: bool
    ) -> None:
        self.transport = transport
        self.keys = keys
        self.closed = False
        self._events_max_len = events_max_len
        self._skip_meta = skip_meta
        self._opening = asyncio.Lock()
        self._opened = False

    def time_if_open(self) -> int | None:
        """Returns the server's time in ms; None if the queue is not open or the clock is stale."""
        clock = self.transport.clock
        return clock.now_ms() if self._opened and not clock.stale else None

    async def ensure_open(self) -> int:
        """Opens the queue unless it is open; returns the server's time in ms."""
        self.transport.check_event_loop()
        now_ms = self.time_if_open()
        if now_ms is not None:
            return now_ms
        # The first of several callers opens it; the others wait and continue in order.
        async with self._opening:
            if not self._opened:
                await self._write_meta()
            return await self.transport.now_ms()

    async def _write_meta(self) -> None:
        other = self.keys.other_layout()
        meta = manage.set_meta(self.keys, events_max_len=self._events_max_len)
        commands: list[Command[Any]] = [*(() if self._skip_meta else meta), read.get_counts(self.keys)]
        at = len(commands)
        commands += read.lengths(other) if other is not None else ()
        results = raise_first_error(await self.transport.run_many(commands))
        if other is not None and not sum(results[at - 1].values()) and sum(results[at:]):
            self._warn_of_other_layout(other)
        self._opened = True

    def _warn_of_other_layout(self, other: QueueKeys) -> None:
        text = (
            f"queue {self.keys.qualified!r} is empty, but {other.qualified!r} holds jobs: "
            f"another client uses the other key layout; pass hash_tag={not self.keys.hash_tag} to use it, too"
        )
        logger.warning(text)
        warn_option(text)

    # --- calls ----------------------------------------------------------------------------------------------

    async def run(self, command: Command[V]) -> V:
        """Runs a command and returns its value."""
        await self._ready()
        return await self.transport.run(command)

    async def run_all(self, *commands: Command[Any]) -> list[Any]:
        """Runs a pipeline and returns its values; raises the first error."""
        return raise_first_error(await self.replies(*commands))

    async def replies(self, *commands: Command[Any]) -> list[Any]:
        """Runs a pipeline and returns its values, or its errors; raises if the server does not answer."""
        await self._ready()
        results = await self.transport.run_many(commands)
        for result in results:
            if isinstance(result, (RedisUnavailable, AccessDenied)):
                raise result
        return results

    async def _ready(self) -> None:
        if self.closed:
            raise Closed(f"queue {self.keys.name!r} was closed; make a new Queue")
        await self.ensure_open()

    def refuse_calls(self) -> None:
        """Ends the use of the queue."""
        if not self.closed:
            self.transport.check_event_loop()
        self.closed = True


def raise_first_error(results: list[Any]) -> list[Any]:
    """Returns the results of a pipeline, unless there is an error in them."""
    for result in results:
        if isinstance(result, TorilError):
            raise result
    return results
