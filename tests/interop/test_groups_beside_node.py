"""Groups with a plain BullMQ worker of Node on the queue: it serves them in turns as well."""

from __future__ import annotations

import pytest

from tests.integration.producer.group_orders import FAIR_AFTER, SIZES, add_tenants, started
from tests.interop.reference import Reference
from tests.servers import Server
from toril import Queue

CONCURRENCY = 10


@pytest.mark.timeout(120)
async def test_a_plain_worker_of_node_serves_groups_in_turns(bullmq: Reference) -> None:
    with Server.valkey() as server:
        bench = bullmq.bench("tenants", url=server.url)
        bench.call("reset")
        async with Queue("tenants", redis=server.url, events_max_len=200_000) as queue:
            await add_tenants(queue)
            await bench.start_worker("w", concurrency=CONCURRENCY)
            last = await queue.get_job(f"large-{SIZES['large'] - 1}")
            assert last is not None
            await last.wait_until_finished(timeout=100)  # all others have begun before
            await bench.stop("w")
            order = await started(queue, server.url)
        bench.close()
    assert len(order) == sum(SIZES.values())
    for group in ("small", "other"):
        assert order.index(f"{group}-99") < FAIR_AFTER + CONCURRENCY
