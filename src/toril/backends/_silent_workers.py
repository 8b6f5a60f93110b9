"""Whether workers are connected to a queue that do not announce the names of their handlers, such as Node's.

Their jobs must not be refused together: they could not fetch as fast as a toril worker refuses.
"""

from __future__ import annotations

import math
import time

from toril.commands import name_refusals, server
from toril.errors import TorilError
from toril.protocol.keys import QueueKeys, client_name
from toril.transport import AsyncTransport

# How long an answer is used: the list of connections costs the server some microseconds for each of them.
ANSWER_SECONDS = 1.0


class SilentWorkers:
    """Looks for connections of workers without a report."""

    def __init__(self, keys: QueueKeys, transport: AsyncTransport, worker_id: str) -> None:
        self._keys = keys
        self._transport = transport
        self._worker_id = worker_id
        self._looked_at = -math.inf
        self._found = True

    async def exist(self) -> bool:
        """Whether there are any, as of the last second; True also when the server does not list connections."""
        if time.monotonic() - self._looked_at >= ANSWER_SECONDS:
            self._found = await self._find_unreported()
            self._looked_at = time.monotonic()
        return self._found

    async def _find_unreported(self) -> bool:
        keys = self._keys
        clients, ids = await self._transport.run_many(
            [server.client_list(keys.meta), name_refusals.reporting_workers(keys)]
        )
        if isinstance(clients, TorilError) or isinstance(ids, TorilError):
            return True
        unnamed = client_name(keys, "worker")
        named = {client_name(keys, "worker", one) for one in (*ids, self._worker_id)}
        connected = {client.get("name", "") for client in clients}
        return any(
            name == unnamed or (name.startswith(f"{unnamed}:w:") and name not in named) for name in connected
        )
