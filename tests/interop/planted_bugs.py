"""Bugs of the kind that a client of the wire could have, planted on purpose after each step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import redis

from tests.interop.adapters import Spoil
from tests.interop.steps import Step


def _keys(client: redis.Redis, pattern: str) -> Any:
    return client.keys(pattern)


def _events(client: redis.Redis) -> Any:
    return client.xrange("bull:q:events")


def _rewrite_last_event(client: redis.Redis, change: Callable[[dict[bytes, bytes]], object]) -> None:
    last: Any = client.xrevrange("bull:q:events", count=1)
    for event_id, fields in last:
        change(fields)
        client.xdel("bull:q:events", event_id)
        client.xadd("bull:q:events", fields)


def priority_off_by_one(client: redis.Redis, _: Step) -> None:
    rows: Any = client.zrange("bull:q:prioritized", 0, -1)
    for member in rows:
        score: Any = client.zscore("bull:q:prioritized", member)
        if int(score) % 2**32 < 2**31:  # once for each entry: a spoilt score is marked by its lower half
            client.zadd("bull:q:prioritized", {member: score + 2**32 + 2**31})


def active_event_without_prev(client: redis.Redis, step: Step) -> None:
    if step.op == "pick_up":
        _rewrite_last_event(client, lambda fields: fields.pop(b"prev", None))


def completed_event_is_missing(client: redis.Redis, step: Step) -> None:
    if step.op == "complete":
        for event_id, fields in _events(client):
            if fields[b"event"] == b"completed":
                client.xdel("bull:q:events", event_id)


def lock_in_seconds_instead_of_milliseconds(client: redis.Redis, step: Step) -> None:
    if step.op == "pick_up":
        for key in _keys(client, "bull:q:*:lock"):
            client.pexpire(key, 30_000_000)


def attempts_under_the_old_name(client: redis.Redis, step: Step) -> None:
    if step.op == "fail" and client.exists(f"bull:q:{step.args['id']}"):
        client.hset(f"bull:q:{step.args['id']}", "attemptsMade", 1)


def marker_is_forgotten(client: redis.Redis, step: Step) -> None:
    if step.op.startswith("add"):
        client.delete("bull:q:marker")


def delay_without_its_sequence(client: redis.Redis, _: Step) -> None:
    rows: Any = client.zrange("bull:q:delayed", 0, -1, withscores=True)
    for member, score in rows:
        client.zadd("bull:q:delayed", {member: score // 4096})


def options_lose_the_given_id(client: redis.Redis, step: Step) -> None:
    if step.op == "add" and "jobId" in step.args["opts"]:
        key = f"bull:q:{step.args['opts']['jobId']}"
        opts: Any = client.hget(key, "opts")
        if opts:
            client.hset(key, "opts", opts.replace(b'"jobId"', b'"job_id"'))


def log_line_is_forgotten(client: redis.Redis, step: Step) -> None:
    if step.op == "log":
        client.rpop(f"bull:q:{step.args['id']}:logs")


BUGS: list[Spoil] = [
    priority_off_by_one,
    active_event_without_prev,
    completed_event_is_missing,
    lock_in_seconds_instead_of_milliseconds,
    attempts_under_the_old_name,
    marker_is_forgotten,
    delay_without_its_sequence,
    options_lose_the_given_id,
    log_line_is_forgotten,
]
