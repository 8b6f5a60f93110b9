"""Jobs, workers and schedulers whose every text is meant for a browser, and values that are too large or too deep.

The corpus of `tests/hostile_corpus.py` is meant for every output; this one for pages.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Final

import redis

TEXTS: Final = (
    "</script><script>alert(1)</script>",
    '<img src=x onerror="alert(1)" hx-get="/audit" hx-trigger="load" hx-on:load="alert(1)">',
    '"><div hx-get="/audit" hx-trigger="load" hx-target="body" sse-connect="/live">',
    "' hx-on::load='alert(1)' data-x='",
    "a{{7*7}}{% raw %}${7*7}#{7*7}",
    "javascript:alert(1)//",
    "../../audit",
    "a%2Fb%2e%2e%2f%00",
    "~2F~2E~2E~2Faudit",
    "a?state=failed&id=1#top",
    "</textarea></title></style><svg onload=alert(1)>",
    "\u202egpj.exe\u2066\u2069\u200f",
    "a\x00b\x1b[2J",
    "<!--",
    "]]>",
    "&lt;script&gt;alert(1)&lt;/script&gt;",
    "data: x\n\nevent: away\ndata: forged",
)
# Bytes as JavaScript writes half of a pair.
LONE_SURROGATE: Final = b"a\xed\xa0\x80b"
HUGE_NUMBERS: Final = (
    "9223372036854775808",
    "18446744073709551616",
    "-9223372036854775809",
    "1e308",
    "1e999",
)
LARGE: Final = 10 * 1024 * 1024
DEPTH: Final = 10_000
QUEUE: Final = "shop"
_NUMBERS: Final = (
    "timestamp",
    "processedOn",
    "finishedOn",
    "delay",
    "priority",
    "atm",
    "ats",
    "stc",
    "attemptsMade",
)


@dataclass(slots=True)
class PlantedMarkup:
    """What was written."""

    queues: list[str] = field(default_factory=list)  # with hostile names; each has a failed job
    ids: list[str] = field(default_factory=list)  # failed jobs of the queue with the plain name
    large_id: str = "large"
    deep_id: str = "deep"
    numbers_id: str = "numbers-0"


def plant_markup(client: redis.Redis, prefix: str) -> PlantedMarkup:
    """Writes the corpus under a prefix."""
    planted = PlantedMarkup()
    pipe = client.pipeline(transaction=False)
    base = f"{prefix}:{QUEUE}"
    for number, text in enumerate(TEXTS):
        if ":" not in text:
            planted.queues.append(text)
            pipe.hset(f"{prefix}:{text}:meta", mapping={"version": "bullmq:5.0.0"})
            _failed(pipe, f"{prefix}:{text}", text, text, number)
        planted.ids.append(text)
        _failed(pipe, base, text, text, number)
        pipe.rpush(f"{base}:{text}:logs", text, LONE_SURROGATE)
        pipe.sadd(f"{base}:{text}:dependencies", f"{base}:{TEXTS[number - 1]}", f"{prefix}:{text}:{text}")
        pipe.zadd(f"{base}:toril:workers", {text: 4e15})
        report = {"worker": text, "state": text, "at": 2**63, "jobs": 2**63, "memory": 2**64, "uptime": 1e300}
        pipe.set(f"{base}:toril:worker:{text}", json.dumps(report))
        pipe.zadd(f"{base}:repeat", {text: float(2**63)})
        pipe.hset(f"{base}:repeat:{text}", mapping={"name": text, "pattern": text, "tz": text, "data": text})
    pipe.hset(f"{base}:meta", mapping={"version": "bullmq:5.0.0"})
    _large_and_deep(pipe, base)
    pipe.execute()
    return planted


def _failed(pipe: redis.client.Pipeline, base: str, job_id: str, text: str, number: int) -> None:
    fields: dict[str, str | bytes] = {
        "name": text,
        "data": json.dumps({text: [text, 2**63, 1.10]}),
        "opts": json.dumps({"attempts": 3, "tm": text, "parent": {"id": text, "queue": text}}),
        "timestamp": "1700000000000",
        "finishedOn": str(1_700_000_000_000 + number),
        "failedReason": text,
        "stacktrace": json.dumps([text]),
        "returnvalue": json.dumps(text),
        "progress": json.dumps(text),
        "pb": text,
        "rjk": text,
        "deid": text,
        "parentKey": f"{base}:{text}",
        "parent": json.dumps({"id": text, "queueKey": base}),
        text: text,
    }
    pipe.hset(f"{base}:{job_id}", mapping=fields)  # type: ignore[arg-type]
    pipe.zadd(f"{base}:failed", {job_id: 1_700_000_000_000 + number})


def _large_and_deep(pipe: redis.client.Pipeline, base: str) -> None:
    deep = "[" * DEPTH + "]" * DEPTH
    half = '{"a":"\\ud800","b":' + "9" * 400 + "}"
    jobs: dict[str, dict[str, str | bytes]] = {
        "large": {
            "name": "x",
            "data": json.dumps("x" * LARGE),
            "failedReason": "y" * LARGE,
            "timestamp": "1",
        },
        "deep": {
            "name": "x",
            "data": deep,
            "opts": deep,
            "stacktrace": deep,
            "parent": deep,
            "progress": deep,
        },
        "surrogate": {
            "name": LONE_SURROGATE,
            "data": half,
            "failedReason": LONE_SURROGATE,
            "pb": LONE_SURROGATE,
        },
    }
    for number, value in enumerate(HUGE_NUMBERS):
        jobs[f"numbers-{number}"] = {
            "name": "x",
            "data": f'{{"n":{value}}}',
            **dict.fromkeys(_NUMBERS, value),
        }
    for job_id, fields in jobs.items():
        pipe.hset(f"{base}:{job_id}", mapping=fields)  # type: ignore[arg-type]
        pipe.zadd(f"{base}:failed", {job_id: float(2**63)})
        pipe.zadd(f"{base}:delayed", {job_id: 1e300})
        pipe.lpush(f"{base}:active", job_id)
