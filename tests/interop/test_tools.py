"""The tools of the comparison: what they overlook on purpose, what they must not overlook, and how they end."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
import redis

from tests.interop.consistency import inconsistencies
from tests.interop.difference import differences
from tests.interop.keyspace import dump
from tests.interop.reference import Reference, Refused
from tests.interop.steps import Step, load, save
from tests.servers import Server

ENDED_WITHIN = 20.0


@pytest.fixture
def client(valkey: Server) -> Iterator[redis.Redis]:
    with valkey.client() as client:
        yield client


def test_json_is_compared_by_value_and_text_by_letter(client: redis.Redis, prefix: str) -> None:
    client.hset(f"{prefix}:q:1", mapping={"data": '{"a": 1, "b": [2.0]}', "name": "1.0"})
    left = dump(client, prefix)
    client.hset(f"{prefix}:q:1", mapping={"data": '{"b":[2],"a":1}', "name": "1"})
    (found,) = differences(left, dump(client, prefix))
    assert (found.part, found.left, found.right) == ("field name", "1.0", "1")


def test_true_is_not_one(client: redis.Redis, prefix: str) -> None:
    client.hset(f"{prefix}:q:1", "data", "[true]")
    left = dump(client, prefix)
    client.hset(f"{prefix}:q:1", "data", "[1]")
    assert len(differences(left, dump(client, prefix))) == 1


def test_ids_of_stream_entries_do_not_matter_but_their_order_does(client: redis.Redis, prefix: str) -> None:
    key = f"{prefix}:q:events"
    for event in ("added", "waiting"):
        client.xadd(key, {"event": event})
    left = dump(client, prefix)
    client.delete(key)
    for event in ("added", "waiting"):
        client.xadd(key, {"event": event})
    assert differences(left, dump(client, prefix)) == []
    client.delete(key)
    for event in ("waiting", "added"):
        client.xadd(key, {"event": event})
    assert [one.part for one in differences(left, dump(client, prefix))] == [
        "entry 0 field event",
        "entry 1 field event",
    ]


def test_a_life_in_the_wrong_unit_is_a_difference(client: redis.Redis, prefix: str) -> None:
    client.set(f"{prefix}:q:1:lock", "t", px=30_000)
    left = dump(client, prefix)
    for life in (30, 30_000_000, None):
        client.set(f"{prefix}:q:1:lock", "t", px=life)
        parts = [one.part for one in differences(left, dump(client, prefix))]
        assert parts in (["ttl"], ["exists"])  # thirty milliseconds may be over already


def test_keys_of_toril_itself_are_left_out(client: redis.Redis, prefix: str) -> None:
    client.set(f"{prefix}:q:toril:ledger", "x")
    client.set(f"{prefix}:q:id", "1")
    assert list(dump(client, prefix)) == [f"{prefix}:q:id"]


def test_a_job_in_no_state_or_in_two_is_inconsistent(client: redis.Redis, prefix: str) -> None:
    for job_id in ("lost", "twice"):
        client.hset(f"{prefix}:q:{job_id}", mapping={"name": "n", "timestamp": "1"})
    client.lpush(f"{prefix}:q:wait", "twice", "orphan")
    client.zadd(f"{prefix}:q:delayed", {"twice": 1})
    found = inconsistencies(dump(client, prefix), "q", prefix)
    assert found == [
        "job lost is in no state",
        "job twice is in ['wait', 'delayed']",
        "wait holds orphan, which has no hash",
    ]


def test_a_sequence_survives_its_file(tmp_path: Path) -> None:
    steps = [Step("pause"), Step("add", {"name": "ünï", "data": {"a": [1, None]}, "opts": {}})]
    save(steps, tmp_path / "found.json")
    assert load(tmp_path / "found.json") == steps


def test_what_node_refuses_is_reported_with_its_code(bullmq: Reference, valkey: Server, prefix: str) -> None:
    bench = bullmq.bench("q", url=valkey.url, prefix=prefix)
    with pytest.raises(Refused) as refused:
        bench.call("promote", id="nobody")
    assert refused.value.code == -3
    bench.close()


def test_the_node_process_ends_with_whoever_started_it() -> None:
    program = (
        "import sys; from tests.interop.reference import Reference; node = Reference();"
        "node.call('version'); print(node.pid, flush=True); sys.stdin.read()"
    )
    owner = subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert owner.stdout is not None
    node = psutil.Process(int(owner.stdout.readline()))
    owner.kill()
    owner.communicate()
    assert psutil.wait_procs([node], timeout=ENDED_WITHIN)[1] == []
