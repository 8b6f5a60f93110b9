"""Keeps the list of queues that are observed.

Guarantee: named queues are taken as given. Without names, the first call searches the server, and later calls return
at once and search again in the background, at most once in `search_every` seconds.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Iterable

from toril.errors import TorilError
from toril.transport import AsyncTransport
from toril.transport.discovery import FoundQueue, find_queues


class QueueDiscovery:
    """The queues to observe: those that were named, or all that a search found."""

    def __init__(
        self,
        transport: AsyncTransport,
        names: Iterable[str] = (),
        *,
        prefix: str | None = None,
        env: str = "prod",
        search_every: float = 60.0,
    ) -> None:
        self._transport = transport
        self._prefix = prefix
        self._env = env
        self._search_every = search_every
        self._searched: float | None = None
        self._searching: asyncio.Task[None] | None = None
        cluster = transport.is_cluster
        self._queues = sorted(FoundQueue.named(one, prefix=prefix, env=env, cluster=cluster) for one in names)
        self._fixed = bool(self._queues)

    async def queues(self) -> list[FoundQueue]:
        """Returns the queues by kind and name. The first call searches; later calls search in the background."""
        if not self._fixed:
            if self._searched is None:
                await self._search()
            elif self._due() and (self._searching is None or self._searching.done()):
                self._searching = asyncio.create_task(self._search_again(), name="toril-search")
        return self._queues

    def _due(self) -> bool:
        return self._searched is None or time.monotonic() - self._searched >= self._search_every

    async def _search(self) -> None:
        self._queues = await find_queues(self._transport, prefix=self._prefix, env=self._env)
        self._searched = time.monotonic()

    async def _search_again(self) -> None:
        with contextlib.suppress(TorilError):  # the next command fails with the same error
            await self._search()

    async def close(self) -> None:
        """Cancels a search that still runs. Call it before the transport is closed."""
        searching, self._searching = self._searching, None
        if searching is not None:
            searching.cancel()
            await asyncio.wait([searching])
