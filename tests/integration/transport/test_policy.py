"""One policy for everything that takes a redis URL, and clear words about one that makes no sense."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from tests.servers import Server
from toril import (
    ConnectionPolicy,
    FlowNode,
    FlowProducer,
    InvalidOption,
    ListQueue,
    ListWorker,
    Queue,
    QueueEvents,
    StreamQueue,
    StreamWorker,
    Worker,
    WorkerOptions,
    sync,
)
from toril.errors import RedisUnavailable

DURATIONS = ("connect_timeout", "command_timeout", "block_margin", "reconnect_delay", "max_reconnect_delay")
# Far below the defaults, under which each of these would take longer than MAX_WAIT_SECONDS.
SHORT = ConnectionPolicy(
    connect_timeout=0.1, command_timeout=0.1, call_attempts=1, max_reconnect_attempts=1, reconnect_delay=0.01
)
MAX_WAIT_SECONDS = 4.0


def nothing(_: Any) -> None:
    """A handler that never gets a job here."""


@pytest.fixture
def frozen(start_valkey: Callable[..., Server]) -> Server:
    """A server that accepts connections and answers nothing."""
    server = start_valkey()
    server.freeze()
    return server


@pytest.mark.parametrize(
    ("field", "value", "problem"),
    [
        *[(name, value, "is ") for name in DURATIONS for value in (0, -1, 0.0001)],
        *[(name, value, "finite") for name in DURATIONS for value in (math.nan, math.inf, -math.inf)],
        *[(name, value, "is a ") for name in DURATIONS for value in ("5", None, True)],
        ("max_reconnect_delay", 0.01, "below reconnect_delay"),
        *[("reconnect_jitter", value, "is ") for value in (1, -0.1, math.nan, math.inf, "0.2", None, True)],
        *[("max_reconnect_attempts", value, "is ") for value in (-1, 1.5, math.inf, math.nan, "3", True)],
        *[("call_attempts", value, "is ") for value in (0, -1, 2.5, math.inf, None)],
        *[("max_connections", value, "is ") for value in (0, -1, 2.5, None)],
    ],
)
def test_a_value_that_makes_no_sense_is_refused_by_the_name_of_its_field(
    field: str, value: Any, problem: str
) -> None:
    with pytest.raises(InvalidOption) as refused:
        ConnectionPolicy(**{field: value})
    assert refused.value.field == field
    assert str(refused.value).startswith(field)
    assert problem in str(refused.value)
    assert "give" in str(refused.value)


def test_durations_may_be_given_as_timedelta() -> None:
    policy = ConnectionPolicy(
        connect_timeout=timedelta(milliseconds=250), max_reconnect_delay=timedelta(minutes=1)
    )
    assert (policy.connect_timeout, policy.max_reconnect_delay) == (0.25, 60.0)


def test_the_defaults_are_those_of_the_documents() -> None:
    policy = ConnectionPolicy()
    assert (policy.reconnect_delay, policy.max_reconnect_delay, policy.reconnect_jitter) == (0.1, 30.0, 0.2)
    assert (policy.max_reconnect_attempts, policy.call_attempts, policy.max_connections) == (0, 5, 20)
    assert (policy.connect_timeout, policy.command_timeout, policy.block_margin) == (5.0, 5.0, 2.0)


def test_the_spread_comes_after_the_cap_so_that_those_who_wait_longest_do_not_come_back_together() -> None:
    policy = ConnectionPolicy()
    assert policy.delay_before(50, lambda: 0.0) == pytest.approx(24)
    assert policy.delay_before(50, lambda: 1.0) == pytest.approx(36)
    assert ConnectionPolicy(reconnect_jitter=0).delay_before(50) == 30


@pytest.mark.parametrize("make", [Queue, ListQueue, StreamQueue])
async def test_queues_keep_to_their_policy(frozen: Server, make: Any) -> None:
    with pytest.raises(RedisUnavailable):
        async with asyncio.timeout(MAX_WAIT_SECONDS), make("q", redis=frozen.url, policy=SHORT) as queue:
            await queue.add("a", {})


async def test_flows_keep_to_their_policy(frozen: Server) -> None:
    with pytest.raises(RedisUnavailable):
        async with asyncio.timeout(MAX_WAIT_SECONDS), FlowProducer(redis=frozen.url, policy=SHORT) as flows:
            await flows.add(FlowNode("a", queue="q"))


@pytest.mark.parametrize("make", [Worker, ListWorker, StreamWorker])
async def test_workers_keep_to_their_policy(frozen: Server, make: Any) -> None:
    worker = make("q", nothing, redis=frozen.url, policy=SHORT)
    with pytest.raises(RedisUnavailable):
        await asyncio.wait_for(worker.run(), MAX_WAIT_SECONDS)


@pytest.mark.parametrize("make", [sync.Queue, sync.ListQueue, sync.StreamQueue])
def test_blocking_queues_keep_to_their_policy(frozen: Server, make: Any) -> None:
    started = time.monotonic()
    with pytest.raises(RedisUnavailable), make("q", redis=frozen.url, policy=SHORT) as queue:
        queue.add("a", {})
    assert time.monotonic() - started < MAX_WAIT_SECONDS


@pytest.mark.parametrize("make", [sync.Worker, sync.ListWorker, sync.StreamWorker])
def test_blocking_workers_keep_to_their_policy(frozen: Server, make: Any) -> None:
    started = time.monotonic()
    with pytest.raises(RedisUnavailable):
        make("q", nothing, redis=frozen.url, policy=SHORT).run()
    assert time.monotonic() - started < MAX_WAIT_SECONDS


async def test_events_end_with_the_error_when_the_limit_is_reached(
    start_valkey: Callable[..., Server], prefix: str, caplog: pytest.LogCaptureFixture
) -> None:
    server = start_valkey()
    policy = ConnectionPolicy(call_attempts=1, max_reconnect_attempts=2, reconnect_delay=0.01)
    async with QueueEvents("q", redis=server.url, prefix=prefix, policy=policy) as events:
        server.kill()
        with pytest.raises(RedisUnavailable):
            await asyncio.wait_for(anext(aiter(events)), MAX_WAIT_SECONDS)
    assert [one.message for one in caplog.records if one.levelname == "ERROR"] == [
        "events of q: Redis is unreachable after 2 attempts"
    ]


@pytest.mark.parametrize("make", [Worker, ListWorker, StreamWorker, sync.Worker, sync.ListWorker])
@pytest.mark.parametrize(
    "option", [{"reconnect_delay": 1}, {"max_reconnect_delay": 60}, {"max_reconnect_attempts": 3}]
)
def test_a_worker_hears_of_reconnecting_in_one_place_only(make: Any, option: dict[str, Any]) -> None:
    (name,) = option
    with pytest.raises(InvalidOption, match=f"policy: is given together with {name}"):
        make("q", nothing, policy=ConnectionPolicy(), **option)
    with pytest.raises(InvalidOption, match=f"policy: is given together with {name}"):
        make("q", nothing, policy=ConnectionPolicy(), options=WorkerOptions(**option))


@pytest.mark.parametrize("make", [Worker, ListWorker, StreamWorker])
def test_single_options_of_a_worker_become_its_policy(make: Any) -> None:
    worker = make("q", nothing, reconnect_delay=1, max_reconnect_delay=60, max_reconnect_attempts=3)
    assert worker.policy == ConnectionPolicy(
        reconnect_delay=1, max_reconnect_delay=60, max_reconnect_attempts=3
    )
    assert make("q", nothing, policy=SHORT, concurrency=7).policy is SHORT


@pytest.mark.parametrize("make", [Queue, ListQueue, StreamQueue, QueueEvents])
def test_something_else_than_a_policy_is_refused(make: Any) -> None:
    with pytest.raises(InvalidOption, match="policy: is a dict"):
        make("q", policy={"connect_timeout": 1})
    with pytest.raises(InvalidOption, match="policy: is a dict"):
        Worker("q", nothing, policy={"connect_timeout": 1})  # type: ignore[arg-type]
