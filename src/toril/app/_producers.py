"""The queues to which an app adds jobs: one set for each event loop, opened at the first use.

Guarantee: a queue belongs to the loop in which it was opened. `close` closes those of the running loop; those of loops
that have ended are forgotten.
"""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import Sequence
from typing import Protocol

from toril.app._queue_options import AnyQueue, QueueOptions
from toril.errors import InvalidOption
from toril.producer import FlowProducer, Queue
from toril.protocol.codecs import QueueCodecs
from toril.protocol.queue_name import QueueName
from toril.transport import Address, ConnectionPolicy, parse_address


class Connection:
    """Where the server of an app is; the address is chosen at the first use, because the default one is logged."""

    def __init__(self, redis: object, policy: ConnectionPolicy | None) -> None:
        self.choice = redis  # what was given
        self.policy = policy
        self._address: Address | None = None

    @property
    def address(self) -> Address:
        if self._address is None:
            self._address = parse_address(self.choice)
        return self._address

    def move(self, redis: object) -> None:
        """Uses another server from now on."""
        self.choice, self._address = redis, None


class LoopQueues:
    """The open queues of one event loop."""

    def __init__(self) -> None:
        self.queues: dict[QueueName, AnyQueue] = {}
        self.flows: dict[str, FlowProducer] = {}  # by prefix
        self.users = 0  # blocks of the application, and workers

    async def close(self) -> None:
        queues, self.queues = self.queues, {}
        flows, self.flows = self.flows, {}
        await asyncio.gather(*(one.close() for one in (*queues.values(), *flows.values())))


class OptionsOfQueues(Protocol):
    """Knows the queues and their options: the app."""

    @property
    def queues(self) -> Sequence[QueueName]:
        """The queues that have tasks."""

    def queue_options(self, name: QueueName) -> QueueOptions:
        """The options of a queue."""


class Producers:
    """The queues of all loops of a process."""

    def __init__(self, connection: Connection, options: OptionsOfQueues) -> None:
        self._connection = connection
        self._options = options
        self._by_loop: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, LoopQueues] = (
            weakref.WeakKeyDictionary()
        )

    def _queues_of_loop(self) -> LoopQueues:
        loop = asyncio.get_running_loop()
        found = self._by_loop.get(loop)
        if found is None:
            self._by_loop[loop] = found = LoopQueues()
        return found

    def queue(self, name: QueueName) -> AnyQueue:
        """The queue of this name in the running loop."""
        here = self._queues_of_loop()
        found = here.queues.get(name)
        if found is None:
            options = self._options.queue_options(name)
            here.queues[name] = found = options.open(self._connection.address, self._connection.policy)
        return found

    def bullmq(self, name: QueueName, what: str) -> Queue:
        """A BullMQ queue; `what` needs one."""
        found = self.queue(name)
        if not isinstance(found, Queue):
            raise InvalidOption("queue", f"{name} is not a BullMQ queue", f"{what} needs one")
        return found

    def flows(self, prefix: str, hash_tag: bool | None) -> FlowProducer:
        """The flow producer of a prefix in the running loop."""
        here = self._queues_of_loop()
        if prefix not in here.flows:
            here.flows[prefix] = FlowProducer(
                redis=self._connection.address,
                prefix=prefix,
                hash_tag=hash_tag,
                policy=self._connection.policy,
                queue_codecs=self._codecs(),
            )
        return here.flows[prefix]

    def _codecs(self) -> dict[str, QueueCodecs]:
        """The codecs of the BullMQ queues that have some."""
        names = [one for one in self._options.queues if one.kind == "bullmq"]
        found = {one.name: self._options.queue_options(one).worker_options.queue_codecs for one in names}
        return {name: codecs for name, codecs in found.items() if codecs is not None}

    def layout(self, name: QueueName) -> tuple[str, bool | None]:
        """The prefix and the hash tag of the keys of a queue."""
        options = self._options.queue_options(name)
        return options.prefix, options.fields.get("hash_tag")

    def job_key(self, name: QueueName, job_id: str) -> str:
        """The key of a job of a BullMQ queue."""
        return self.bullmq(name, "a flow").keys.job(job_id)

    def acquire(self) -> None:
        """One more user of the queues of the running loop."""
        self._queues_of_loop().users += 1

    async def release(self) -> None:
        """One user less; the last one closes the queues."""
        here = self._queues_of_loop()
        here.users -= 1
        if here.users <= 0:
            await self.close()

    async def close(self) -> None:
        """Closes the queues of the running loop."""
        here = self._by_loop.pop(asyncio.get_running_loop(), None)
        if here is not None:
            await here.close()
