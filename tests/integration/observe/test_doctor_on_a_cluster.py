"""The doctor on a cluster: every node is examined, and queues wherever they live."""

from __future__ import annotations

from tests.servers import ValkeyCluster
from toril import ListQueue, Queue, StreamQueue
from toril.observe.doctor import Doctor


async def test_every_node_of_a_cluster_is_examined(cluster: ValkeyCluster, prefix: str) -> None:
    async with (
        Queue("emails", redis=cluster.url, prefix=prefix) as queue,
        ListQueue("gen", redis=cluster.url, prefix=prefix) as listed,
        StreamQueue("jobs.b", redis=cluster.url, prefix=prefix) as stream,
    ):
        lost = await queue.add("send", {})
        await listed.add("work", {})
        await stream.add("work", {})
        for node in cluster.nodes:
            with node.client() as client:
                if client.exists(queue.keys.meta.encode()) if _owns(client, queue.keys.meta) else False:
                    client.lrem(queue.keys.wait, 1, lost.id)
        doctor = Doctor(cluster.url, prefix=prefix)
        diagnosis = await doctor.examine()
        (repairs,) = await doctor.repair()
        assert repairs.put_back == {lost.id: "delayed"}
        assert await doctor.repair() == []
    assert diagnosis.queues == 3
    versions = [one for one in diagnosis.findings if one.check == "version"]
    assert len(versions) == 3 and all(one.level == "ok" for one in versions)
    assert {one.level for one in diagnosis.findings if one.check == "rights"} == {"ok"}
    (stuck,) = (one for one in diagnosis.findings if one.check == "stuck")
    assert lost.id in stuck.message
    assert {one.check for one in diagnosis.problems()} == {"stuck", "persistence"}


def _owns(client: object, key: str) -> bool:
    """Whether the key lives on this node: others answer with a redirection."""
    import redis

    try:
        return bool(client.exists(key))  # type: ignore[attr-defined]
    except redis.exceptions.ResponseError:
        return False
