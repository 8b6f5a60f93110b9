"""Changes of many jobs where another program stored something else under the keys of some: the others are changed."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Iterator
from typing import Final

import pytest
import redis

from toril import Queue
from toril.errors import JobLocked, MalformedValue

KINDS: Final = ("no-hash", "deduplication", "parent")
LISTS: Final = ("wait", "paused", "active")
GOOD: Final = ("first", "last")


def plant(client: redis.Redis, base: str, state: str, kinds: tuple[str, ...] = KINDS) -> list[str]:
    """Stores good jobs in a state, and between them some whose keys, or those they name, have another type."""
    ids = [GOOD[0], *kinds, GOOD[1]]
    for number, job_id in enumerate(ids):
        if job_id == "no-hash":
            client.set(f"{base}:{job_id}", "a string")
        else:
            fields = ["name", "n", "data", "{}", "opts", "{}", "timestamp", "1700000000000"]
            client.hset(f"{base}:{job_id}", items=fields)
        if job_id == "deduplication":
            client.hset(f"{base}:{job_id}", "deid", "d")
            client.hset(f"{base}:de:d", "not", "an id")
        if job_id == "parent":
            client.hset(f"{base}:{job_id}", "parentKey", f"{base}:p")
            client.hset(f"{base}:p", "name", "p")
            client.set(f"{base}:p:dependencies", "no set")
        if state in LISTS:
            client.lpush(f"{base}:{state}", job_id)
        else:
            client.zadd(f"{base}:{state}", {job_id: 1_700_000_000_000 + number})
    return ids


def members(client: redis.Redis, base: str, state: str) -> set[str]:
    key = f"{base}:{state}"
    found: list[bytes] = (
        client.execute_command("LRANGE", key, 0, -1)
        if state in LISTS
        else client.execute_command("ZRANGE", key, 0, -1)
    )
    return {one.decode() for one in found}


@pytest.fixture
async def queue(server_url: str, prefix: str) -> AsyncIterator[Queue]:
    async with Queue("planted", redis=server_url, prefix=prefix) as opened:
        yield opened


@pytest.fixture
def client(server_url: str) -> Iterator[redis.Redis]:
    with redis.Redis.from_url(server_url) as opened:
        yield opened


@pytest.fixture
def base(prefix: str) -> str:
    return f"{prefix}:planted"


@pytest.mark.parametrize(
    "state", ["completed", "failed", "delayed", "prioritized", "wait", "paused", "active"]
)
async def test_clean_removes_what_it_can_and_names_the_rest(
    queue: Queue, client: redis.Redis, base: str, state: str, caplog: pytest.LogCaptureFixture
) -> None:
    plant(client, base, state)
    with caplog.at_level(logging.WARNING, "toril.queue"):
        assert sorted(await queue.clean(state=state)) == sorted(GOOD)
    assert members(client, base, state) == set(KINDS)
    assert client.exists(f"{base}:first", f"{base}:last") == 0 and client.get(f"{base}:no-hash")
    (message,) = caplog.messages
    assert "clean of planted left 3 jobs" in message and all(kind in message for kind in KINDS)


async def test_drain_removes_what_it_can_and_loses_nothing(
    queue: Queue, client: redis.Redis, base: str, caplog: pytest.LogCaptureFixture
) -> None:
    for state in ("wait", "delayed", "prioritized"):
        plant(client, base, state)
    with caplog.at_level(logging.WARNING, "toril.queue"):
        assert await queue.drain(delayed=True) == 3 * len(GOOD)
    assert all(members(client, base, state) == set(KINDS) for state in ("wait", "delayed", "prioritized"))
    assert "drain of planted left 3 jobs" in caplog.text and all(kind in caplog.text for kind in KINDS)


@pytest.mark.parametrize("state", ["failed", "completed"])
async def test_a_retry_moves_all_jobs_but_those_without_a_hash(
    queue: Queue, client: redis.Redis, base: str, state: str, caplog: pytest.LogCaptureFixture
) -> None:
    ids = plant(client, base, state)
    with caplog.at_level(logging.WARNING, "toril.queue"):
        assert await queue.retry_jobs(state="failed" if state == "failed" else "completed") == len(ids) - 1
    assert members(client, base, state) == {"no-hash"}
    assert members(client, base, "wait") == {*ids} - {"no-hash"}
    assert "retry of planted left 1 job as before" in caplog.text and "no-hash" in caplog.text


async def test_a_retry_of_selected_jobs_goes_on_behind_a_bad_one(
    queue: Queue, client: redis.Redis, base: str, caplog: pytest.LogCaptureFixture
) -> None:
    ids = plant(client, base, "failed")
    client.hset(f"{base}:first", "opts", "{no json")
    with caplog.at_level(logging.WARNING, "toril.queue"):
        assert await queue.retry_jobs(where=lambda _: True) == len(ids) - 1
    assert members(client, base, "failed") == {"no-hash"} and "no-hash" in caplog.text


async def test_a_limit_of_a_retry_counts_moved_jobs_only(
    queue: Queue, client: redis.Redis, base: str
) -> None:
    plant(client, base, "failed", ("no-hash",))
    assert await queue.retry_jobs(limit=2) == 2
    assert members(client, base, "failed") == {"no-hash"}


async def test_promote_leaves_what_no_worker_could_read(
    queue: Queue, client: redis.Redis, base: str, caplog: pytest.LogCaptureFixture
) -> None:
    ids = plant(client, base, "delayed")
    with caplog.at_level(logging.WARNING, "toril.queue"):
        assert await queue.promote_jobs() == len(ids) - 1
    assert members(client, base, "delayed") == {"no-hash"} and "promote of planted left 1 job" in caplog.text


async def test_many_bad_keys_in_front_do_not_end_a_change(
    queue: Queue, client: redis.Redis, base: str
) -> None:
    pipe = client.pipeline()
    for number in range(1_500):  # more than one call examines
        pipe.set(f"{base}:bad-{number}", "x")
        pipe.zadd(f"{base}:failed", {f"bad-{number}": number})
    pipe.execute()
    plant(client, base, "failed", ())
    assert await queue.retry_jobs() == 2
    assert await queue.clean(state="failed") == []
    assert client.zcard(f"{base}:failed") == 1_500


async def test_a_queue_with_bad_keys_can_be_obliterated(queue: Queue, client: redis.Redis, base: str) -> None:
    for state in (*LISTS, "delayed", "prioritized", "completed", "failed"):
        plant(client, base, state)
    await queue.obliterate(force=True)
    left = {key.decode().removeprefix(f"{base}:") for key in client.scan_iter(match=f"{base}:*", count=1000)}
    # What the jobs named is not theirs, and stays.
    assert left == {"de:d", "p", "p:dependencies"}


@pytest.mark.parametrize("kind", KINDS)
async def test_a_job_whose_keys_are_bad_is_removed_by_its_id(
    queue: Queue, client: redis.Redis, base: str, kind: str
) -> None:
    ids = plant(client, base, "failed")
    client.set(f"{base}:{kind}:lock", "token")
    with pytest.raises(JobLocked):
        await queue.remove(kind)
    client.delete(f"{base}:{kind}:lock")
    await queue.remove(kind)
    assert members(client, base, "failed") == {*ids} - {kind} and not client.exists(f"{base}:{kind}")


async def test_a_key_that_is_no_hash_is_named_when_it_is_asked_for(
    queue: Queue, client: redis.Redis, base: str
) -> None:
    plant(client, base, "failed")
    with pytest.raises(MalformedValue, match="job no-hash: its key is malformed: it holds another type"):
        await queue.get_job("no-hash")


async def test_an_error_of_the_whole_call_is_raised(queue: Queue, client: redis.Redis, base: str) -> None:
    plant(client, base, "failed")
    client.delete(f"{base}:events")
    client.set(f"{base}:events", "no stream")
    with pytest.raises(Exception, match="WRONGTYPE"):
        await queue.clean(state="failed")
