"""On a cluster, too: toril's `scenario` is the queue that Node calls `{scenario}`, all of it in one slot."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, cast

import pytest

from tests.interop import scenarios
from tests.interop.keyspace import Keyspace, dump
from tests.interop.reference import Bench, Reference
from tests.interop.scenarios import QUEUE, Ground
from tests.servers import Server, ValkeyCluster

pytestmark = pytest.mark.timeout(200)


class ClusterGround(Ground):
    """The same scenarios; keys come from all nodes and are read without the braces that Node writes itself."""

    def keyspace(self) -> Keyspace:
        found: Keyspace = {}
        for node in cast("ValkeyCluster", self.server).nodes:
            with node.client() as client:
                found |= dump(client, self.prefix)
        return {_without_braces(key): entry for key, entry in found.items()}

    @asynccontextmanager
    async def bench(self, queue: str = QUEUE, **settings: Any) -> AsyncIterator[Bench]:
        async with super().bench(f"{{{queue}}}", **settings) as bench:
            yield bench


def _without_braces(key: str) -> str:
    return key.replace("{", "").replace("}", "")


@pytest.fixture
def ground(cluster: ValkeyCluster, prefix: str, bullmq: Reference) -> Ground:
    bullmq.set_clock(None)
    return ClusterGround(cast("Server", cluster), prefix, bullmq)


async def test_a_toril_worker_does_what_a_node_producer_asks_on_a_cluster(ground: Ground) -> None:
    result = await scenarios.node_producer_toril_worker(ground, 100)
    assert result.differences == []


async def test_a_node_worker_does_what_a_toril_producer_asks_on_a_cluster(ground: Ground) -> None:
    result = await scenarios.toril_producer_node_worker(ground, 100)
    assert result.differences == []


async def test_node_hears_the_same_events_on_a_cluster(ground: Ground) -> None:
    result = await scenarios.events_alike(ground, 50)
    assert result.differences == []
