"""Whether the server can be reached: the worker's state, its callbacks and its reconnection follow from it."""

from __future__ import annotations

import asyncio
import math
import time
from typing import Generic, Protocol

from toril.backends.base import Backend, D
from toril.errors import RedisUnavailable, TorilError
from toril.transport import ConnectionPolicy
from toril.worker._observer import WorkerObserver
from toril.worker._reconnect import Reconnector, one_attempt
from toril.worker._status import WorkerState, WorkerStatus

# A fetch loop that reconnects while the worker is already stopping must not do so in a tight loop.
PAUSE_WHILE_STOPPING = 0.05


class RenewsLocks(Protocol):
    """The lock renewer."""

    def renew_soon(self) -> None:
        """Renews all locks as soon as possible."""


class Connection(Generic[D]):
    """The connection of one worker to its server. `attach` names the lock renewer, before the worker starts."""

    _lock_renewer: RenewsLocks

    def __init__(
        self,
        backend: Backend[D],
        policy: ConnectionPolicy,
        observer: WorkerObserver[D],
        status: WorkerStatus,
    ) -> None:
        self._backend = backend
        self._observer = observer
        self._status = status
        self.reconnector = Reconnector(backend, one_attempt(policy), observer)
        self.restored_at = -math.inf  # when the server last answered again after an outage

    @property
    def is_lost(self) -> bool:
        return self._status.state is WorkerState.DISCONNECTED

    def attach(self, lock_renewer: RenewsLocks) -> None:
        self._lock_renewer = lock_renewer

    async def open(self) -> None:
        """Connects for the first time: with the same attempts as after an outage."""
        try:
            await self._backend.open()
        except RedisUnavailable as error:
            if not await self.reconnector.restore(error):
                raise
        self.reconnector.answered()
        self._observer.connected()

    async def lost(self, error: TorilError) -> None:
        """Reconnects. When that fails for longer than allowed, the worker stops."""
        status = self._status
        if status.state is WorkerState.RUNNING:
            status.set(WorkerState.DISCONNECTED)
            self._observer.disconnected(error)
        self._observer.not_connected()
        if await self.reconnector.restore(error):
            return
        if status.state is WorkerState.DISCONNECTED:
            status.fail(error)
        # Nothing more can be settled: jobs that are not settled will be recovered as stalled.
        await asyncio.sleep(PAUSE_WHILE_STOPPING)

    def answered(self) -> None:
        """The server has answered a call."""
        self._observer.replied()
        is_lost = self._status.state is WorkerState.DISCONNECTED
        if self.reconnector.attempts == 0 and not is_lost:
            return
        seconds = self.reconnector.answered()
        if is_lost:
            self.restored_at = time.monotonic()
            self._lock_renewer.renew_soon()
            self._status.set(WorkerState.RUNNING)
            self._observer.reconnected(seconds or 0.0)
        self._observer.connected()
