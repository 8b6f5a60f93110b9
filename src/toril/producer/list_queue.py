"""`ListQueue`: jobs in a Redis list, taken at most once (or at least once, with reliable workers)."""

from __future__ import annotations

from typing import Any

from toril.commands import list_work
from toril.contract.errors import TorilError
from toril.contract.keys import ListKeys
from toril.contract.option_names import knows_its_options
from toril.producer._envelope_queue import EnvelopeCounts, EnvelopeQueue
from toril.store import AsyncStore, ConnectionPolicy
from toril.telemetry.hooks import MetricsCollector, Tracer


@knows_its_options("an argument of ListQueue")
class ListQueue(EnvelopeQueue):
    """A queue in a list: `{prefix}:{env}:queue:{name}`, its sorted set `…:scheduled` and its dead letters `…:dlq`."""

    keys: ListKeys

    def __init__(
        self,
        name: str,
        *,
        redis: Any = None,
        prefix: str = "msaas",
        env: str = "prod",
        hash_tag: bool | None = None,
        source: str = "toril",
        payload: Any = None,
        policy: ConnectionPolicy | None = None,
        metrics: MetricsCollector | None = None,
        tracer: Tracer | None = None,
    ) -> None:
        store = AsyncStore(redis, policy=policy)
        keys = ListKeys(name, prefix, env, store.is_cluster if hash_tag is None else hash_tag)
        super().__init__(name, keys, store, source=source, payload=payload, metrics=metrics, tracer=tracer)

    async def counts(self) -> EnvelopeCounts:
        replies = await self._store.run_many(list_work.counts(self.keys))
        for reply in replies:
            if isinstance(reply, TorilError):
                raise reply
        waiting, scheduled, dead, consumers = replies
        in_hand = await self._store.run_many([list_work.in_hand(self.keys, one) for one in consumers])
        active = sum(one for one in in_hand if isinstance(one, int))
        return EnvelopeCounts(waiting=waiting, active=active, scheduled=scheduled, dead=dead)

    async def _consumers(self) -> list[str]:
        return await self._store.run(list_work.consumers(self.keys))
