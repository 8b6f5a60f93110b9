"""`ManualWorker` beside Node's manual processing: the same operations leave the same jobs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.interop.adapters import NodeSide, keyspace_of
from tests.interop.reference import Reference
from tests.interop.steps import Step
from tests.servers import Server
from toril import ManualWorker, TransientError

FIELDS = ("atm", "ats", "returnvalue", "failedReason", "delay", "priority")
LISTS = ("wait", "active", "delayed", "completed", "failed")


@pytest.fixture
def node(bullmq: Reference) -> Iterator[NodeSide]:
    with Server.valkey() as server:
        side = NodeSide(bullmq, server)
        side.reset()
        yield side
        side.close()


async def test_node_and_toril_leave_the_same_jobs(node: NodeSide) -> None:
    """Two equal jobs for each operation: Node settles the first, toril the second."""
    url = f"redis://127.0.0.1:{node.client.connection_pool.connection_kwargs['port']}"
    async with ManualWorker("q", redis=url, worker_id="w") as worker:
        for op in ("complete", "fail", "retry", "give_back"):
            ids = [f"{op}-node", f"{op}-toril"]
            for job_id in ids:
                attempts = 2 if op == "retry" else 1
                opts = {"attempts": attempts, "jobId": job_id, "backoff": {"type": "fixed", "delay": 60_000}}
                node.do(Step("add", {"name": "n", "data": {}, "opts": opts}))
            assert node.do(Step("pick_up", {"token": "t", "worker": "w"})).value["id"] == ids[0]
            _settle_by_node(node, op, ids[0])
            job = await worker.get_next_job(wait=5)
            if op == "give_back" and job is not None and job.id == ids[0]:
                # What Node gave back comes first; it is left to Node.
                await worker.complete(job, 1)
                job = await worker.get_next_job(wait=5)
            assert job is not None
            assert job.id == ids[1]
            if op == "complete":
                await worker.complete(job, 1)
            elif op == "give_back":
                await worker.put_back(job)
            else:
                await worker.fail(job, TransientError("no route"))
            if op != "give_back":
                assert _view(node, ids[0]) == _view(node, ids[1])
        assert _view(node, "give_back-toril")[0] == ["wait"]


def _settle_by_node(node: NodeSide, op: str, job_id: str) -> None:
    base: dict[str, Any] = {"id": job_id, "token": "t"}
    if op == "give_back":
        node.do(Step("give_back", base))
    elif op == "complete":
        node.do(Step("complete", {**base, "value": 1, "fetch_next": False, "worker": "w"}))
    else:
        error = {"name": "Error", "message": "no route", "stack": "trace"}
        node.do(Step("fail", {**base, "error": error, "fetch_next": False, "worker": "w"}))


def _view(node: NodeSide, job_id: str) -> tuple[list[str], dict[str, Any]]:
    keyspace = keyspace_of(node)
    content: Any = keyspace[f"bull:q:{job_id}"].content
    places = []
    for name in LISTS:
        entry = keyspace.get(f"bull:q:{name}")
        rows: Any = [] if entry is None else entry.content
        if any(job_id in (row, row[0]) for row in rows):
            places.append(name)
    return places, {name: content.get(name) for name in FIELDS}
