"""`StreamQueue`: jobs in a Redis stream, delivered at least once through a consumer group."""

from __future__ import annotations

from collections.abc import Mapping

from toril.commands import envelopes, stream_worker
from toril.commands.once import Calls
from toril.commands.stream_worker import StreamCounts
from toril.producer.envelope_queue import BATCH, EnvelopeCounts, EnvelopeQueue
from toril.protocol.codecs import GivenCodecs
from toril.protocol.compatibility import ENVELOPE_PREFIX
from toril.protocol.keys import StreamKeys
from toril.protocol.option_names import knows_its_options
from toril.telemetry.hooks import MetricsCollector, Tracer
from toril.transport import AsyncTransport, ConnectionPolicy


@knows_its_options("an argument of StreamQueue")
class StreamQueue(EnvelopeQueue):
    """A queue in a stream: `{prefix}:{env}:stream:{name}`, with its consumer group, `…:scheduled` and `…:dlq`."""

    keys: StreamKeys

    def __init__(
        self,
        name: str,
        *,
        redis: object = None,
        prefix: str = ENVELOPE_PREFIX,
        env: str = "prod",
        hash_tag: bool | None = None,
        consumer_group: str = "",
        source: str = "toril",
        payload: type | Mapping[str, object] | None = None,
        codecs: GivenCodecs = None,
        policy: ConnectionPolicy | None = None,
        metrics: MetricsCollector | None = None,
        tracer: Tracer | None = None,
    ) -> None:
        transport = AsyncTransport(redis, policy=policy)
        tagged = transport.is_cluster if hash_tag is None else hash_tag
        keys = StreamKeys(name, prefix, env, tagged, consumer_group)
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
        figures = await self.figures()
        return EnvelopeCounts(
            waiting=figures.waiting, active=figures.pending, scheduled=figures.scheduled, dead=figures.dead
        )

    async def figures(self) -> StreamCounts:
        """Returns lag, pending entries and consumers of the consumer group, as the server counts them."""
        return await self._transport.run(stream_worker.counts(self.keys))

    async def drain(self, *, delayed: bool = False) -> int:
        calls, removed, last = Calls(self.keys), 0, ""
        while True:
            step = await self._transport.run(
                envelopes.drain_stream(self.keys, most=BATCH, last=last, calls=calls)
            )
            removed += step.removed
            last = step.last
            if not last:
                break
        if delayed:
            removed += await self._transport.run(envelopes.remove_all(self.keys, (self.keys.scheduled,)))
        return removed
