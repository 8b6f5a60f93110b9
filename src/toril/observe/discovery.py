"""Keeps the list of queues that are observed.

Guarantee: named queues are taken as given. Without names, the first call searches the server, and later calls return
at once and search again in the background, at most once in `search_every` seconds.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable
from typing import Final

from toril.transport import AsyncTransport
from toril.transport.discovery import FoundQueue, find_queues
from toril.transport.waiting import succeeded

# A search that takes longer than this many seconds is repeated so seldom that it takes a fiftieth of the time.
LONG_SEARCH: Final = 0.25
MOST_SHARE: Final = 0.02


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
        self._took = 0.0
        self._searching: asyncio.Task[None] | None = None
        cluster = transport.is_cluster
        self._queues = sorted(FoundQueue.named(one, prefix=prefix, env=env, cluster=cluster) for one in names)
        self._fixed = bool(self._queues)

    @property
    def is_searched(self) -> bool:
        """Whether the queues are known: they were named, or a search has ended."""
        return self._fixed or self._searched is not None

    async def queues(self, *, wait_seconds: float | None = None) -> list[FoundQueue]:
        """Returns the queues by kind and name. The first call searches; later calls search in the background.

        With `wait_seconds`, the first call waits no longer than so many seconds, and may return nothing yet.
        """
        if not self._fixed and self._due() and (self._searching is None or self._searching.done()):
            self._searching = asyncio.create_task(self._search(), name="toril-search")
            self._searching.add_done_callback(succeeded)  # a later command fails with the same error
        if not self.is_searched and self._searching is not None:
            await asyncio.wait([self._searching], timeout=wait_seconds)
            if self._searching.done():
                self._searching.result()
        return self._queues

    def _due(self) -> bool:
        if self._searched is None:
            return True
        every = max(self._search_every, self._took / MOST_SHARE if self._took > LONG_SEARCH else 0.0)
        return time.monotonic() - self._searched >= every

    async def _search(self) -> None:
        began = time.monotonic()
        self._queues = await find_queues(self._transport, prefix=self._prefix, env=self._env)
        self._searched = time.monotonic()
        self._took = self._searched - began

    async def close(self) -> None:
        """Cancels a search that still runs. Call it before the transport is closed."""
        searching, self._searching = self._searching, None
        if searching is not None:
            searching.cancel()
            await asyncio.wait([searching])
