"""Queues found by their keys: with both transports, on single servers and on a cluster."""

from __future__ import annotations

import pytest

from toril import ListQueue, Queue, StreamQueue
from toril.commands.command import plain
from toril.transport import AsyncTransport, BlockingTransport
from toril.transport.discovery import FoundQueue, QueueKind, QueueSearch, blocking_search, find_queues

KINDS: tuple[QueueKind, ...] = ("bullmq", "list", "stream")


@pytest.fixture(params=["valkey_url", "cluster_url"])
def any_url(request: pytest.FixtureRequest) -> str:
    url: str = request.getfixturevalue(request.param)
    return url


async def test_both_transports_find_the_same_queues(any_url: str, prefix: str) -> None:
    async with (
        Queue("emails", redis=any_url, prefix=prefix) as queue,
        ListQueue("images", redis=any_url, prefix=prefix) as images,
        StreamQueue("sounds", redis=any_url, prefix=prefix) as sounds,
    ):
        await queue.add("send", {})
        await images.add("resize", {})
        await sounds.add("mix", {})
        async with AsyncTransport(any_url) as transport:
            found = await find_queues(transport, prefix=prefix)
        with BlockingTransport(any_url) as blocking:
            searches = [QueueSearch(kind=kind, prefix=prefix, env="prod") for kind in KINDS]
            same = {one for search in searches for one, _ in blocking_search(blocking, search)}
    assert sorted(same) == found
    assert [str(one) for one in found] == ["emails", "list:images", "stream:sounds"]


async def test_a_hash_tag_in_a_key_is_part_of_the_layout_not_of_the_name(
    valkey_url: str, prefix: str
) -> None:
    keys = (f"{prefix}:{{emails}}:meta", f"{prefix}:prod:queue:{{images}}:dlq")
    async with AsyncTransport(valkey_url) as transport:
        for key in keys:
            await transport.run(plain(bool, "HSET", key, "field", "value"))
        found = await find_queues(transport, prefix=prefix)
    assert found == [
        FoundQueue("bullmq", "emails", prefix, hash_tag=True),
        FoundQueue("list", "images", prefix, "prod", hash_tag=True),
    ]
    assert all(key.startswith(one.keys.base) for key, one in zip(keys, found, strict=True))


@pytest.mark.parametrize("key", ["bull:a:b:meta", "bull:a:metadata", "bull::meta", "other:a:meta"])
def test_keys_of_other_things_belong_to_no_queue(key: str) -> None:
    assert QueueSearch(kind="bullmq", prefix="bull").queue_of(key) is None


def test_the_rest_of_a_key_is_what_follows_the_name() -> None:
    search = QueueSearch(kind="stream", prefix="msaas", env="prod")
    assert search.queue_of("msaas:prod:stream:a:x:y") == (FoundQueue("stream", "a", "msaas", "prod"), ":x:y")
    assert QueueSearch(kind="list", prefix="m*[s]", env="a?").pattern == r"m\*\[s\]:a\?:queue:*"
