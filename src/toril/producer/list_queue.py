"""`ListQueue`: jobs in a Redis list, delivered at most once (or at least once, with reliable pickup)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from toril.commands import envelopes, list_worker
from toril.commands.command import Command
from toril.errors import TorilError
from toril.producer.envelope_queue import EnvelopeCounts, EnvelopeQueue
from toril.protocol.codecs import GivenCodecs
from toril.protocol.compatibility import ENVELOPE_PREFIX
from toril.protocol.keys import ListKeys
from toril.protocol.option_names import knows_its_options
from toril.telemetry.hooks import MetricsCollector, Tracer
from toril.transport import AsyncTransport, ConnectionPolicy


@knows_its_options("an argument of ListQueue")
class ListQueue(EnvelopeQueue):
    """A queue in a list: `{prefix}:{env}:queue:{name}`, its sorted set `…:scheduled` and its dead letters `…:dlq`."""

    keys: ListKeys

    def __init__(
        self,
        name: str,
        *,
        redis: object = None,
        prefix: str = ENVELOPE_PREFIX,
        env: str = "prod",
        hash_tag: bool | None = None,
        source: str = "toril",
        payload: type | Mapping[str, object] | None = None,
        codecs: GivenCodecs = None,
        policy: ConnectionPolicy | None = None,
        metrics: MetricsCollector | None = None,
        tracer: Tracer | None = None,
    ) -> None:
        transport = AsyncTransport(redis, policy=policy)
        keys = ListKeys(name, prefix, env, transport.is_cluster if hash_tag is None else hash_tag)
        super().__init__(
            name,
            keys,
            transport,
            source=source,
            payload=payload,
            codecs=codecs,
            metrics=metrics,
            tracer=tracer,
        )

    async def counts(self) -> EnvelopeCounts:
        waiting, scheduled, dead, consumers = await self._run_all(list_worker.counts(self.keys))
        # Between the two reads a job may go back from a worker to the queue: the greater number is the right one.
        *active, waiting_later, scheduled_later = await self._run_all(
            list_worker.recount(self.keys, consumers)
        )
        return EnvelopeCounts(
            waiting=max(waiting, waiting_later),
            active=sum(active),
            scheduled=max(scheduled, scheduled_later),
            dead=dead,
        )

    async def _run_all(self, commands: Sequence[Command[Any]]) -> list[Any]:
        replies = await self._transport.run_many(commands)
        for reply in replies:
            if isinstance(reply, TorilError):
                raise reply
        return replies

    async def drain(self, *, delayed: bool = False) -> int:
        names = (self.keys.queue, self.keys.scheduled) if delayed else (self.keys.queue,)
        return await self._transport.run(envelopes.remove_all(self.keys, names))

    async def _consumers(self) -> list[str]:
        return await self._transport.run(list_worker.consumers(self.keys))
