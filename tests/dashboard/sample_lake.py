"""A lake with a day of three queues, for images of the documentation: figures, errors, alerts, a gap and attempts."""

from __future__ import annotations

import random
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa

from toril.lake import Lake
from toril.lake.tables import TABLES
from toril.spark.pipeline.files.parquet_files import write_file

QUEUES = {"emails": 60, "invoices": 20, "reports": 4}


def sample_lake(folder: Path, now: datetime | None = None) -> Lake:
    """Makes a lake whose figures end with the hour of now."""
    lake, chance = Lake(folder), random.Random(7)
    end = (now or datetime.now(UTC)).replace(minute=0, second=0, microsecond=0)
    hours = [end - timedelta(hours=ago) for ago in range(24, 0, -1)]
    for day in sorted({one.date() for one in hours}):
        of_day = [one for one in hours if one.date() == day]
        _put(lake, "gold/queue_hour", [_hour(q, at, chance) for at in of_day for q in QUEUES], day=str(day))
        attempts = [one for at in of_day for one in _attempts("emails", at, chance)]
        _put(lake, "silver/attempts", attempts, day=str(day))
    _put(
        lake,
        "gold/queue_minute",
        [_minute(q, end, n) for q in QUEUES for n in range(400)],
        day=str(end.date()),
    )
    errors = (
        "SMTP 550: mailbox of user <n> is full",
        "connect ECONNREFUSED <ip>:<n>",
        "invoice <n> has no address",
    )
    first, last = hours[0], hours[-1]
    rows = [
        {
            "queue": queue,
            "fingerprint": f"{n:016x}",
            "pattern": text,
            "name": "welcome",
            "count": 40 * (n + 1),
        }
        | {
            "jobs": 30 * (n + 1),
            "first_at": first,
            "last_at": last,
            "sample_job_id": f"j{n}",
            "day": end.date(),
        }
        for n, (text, queue) in enumerate(zip(errors, QUEUES, strict=True))
    ]
    _put(lake, "gold/errors", rows, day=str(end.date()))
    alerts = [
        {
            "rule": "failure_rate",
            "queue": "emails",
            "subject": "",
            "raised_at": at,
            "value": 0.21,
            "threshold": 0.1,
        }
        | {"message": "21 % of the attempts fail"}
        for at in hours[13:16]
    ]
    _put(lake, "gold/alerts", alerts)
    begin = int(hours[5].timestamp() * 1000)
    gap = {"queue": "emails", "ts": hours[6], "from_id": f"{begin}-0", "until_id": "2-0", "lost": 812}
    _put(lake, "silver/gaps", [{**gap, "reason": "trimmed"}])
    return lake


def _put(lake: Lake, name: str, rows: list[dict[str, Any]], **partition: Any) -> None:
    log = lake.ensure(name)
    table = pa.Table.from_pylist(rows, schema=log.spec.schema)
    log.commit([write_file(lake, name, table, partition)], application="sample", version=log.version + 1)


def _figures(queue: str, scale: float, chance: random.Random, *, bad: bool) -> dict[str, Any]:
    done = int(QUEUES[queue] * scale * (0.6 + chance.random()))
    failed = int(done * (0.25 if bad else 0.02))
    names = dict.fromkeys(TABLES["gold/queue_hour"].schema.names)
    wait, run = 40 * (8 if bad else 1) * (0.5 + chance.random()), 120 * (0.5 + chance.random())
    times = {f"wait_{name}_ms": wait * by for name, by in (("p50", 1), ("p95", 4), ("p99", 9))}
    times |= {f"run_{name}_ms": run * by for name, by in (("p50", 1), ("p95", 2), ("p99", 5))}
    counts = {"completed": done, "failed": failed, "retried": failed // 2, "stalled": 0, "suspended": 0}
    return {**names, **counts, "attempts": done + failed, **times, "queue": queue}


def _hour(queue: str, at: datetime, chance: random.Random) -> dict[str, Any]:
    bad = queue == "emails" and 13 <= (at.hour % 24) < 16
    return {**_figures(queue, 60, chance, bad=bad), "hour": at, "day": at.date()}


def _minute(queue: str, end: datetime, number: int) -> dict[str, Any]:
    figures = _figures(queue, 1, random.Random(number), bad=False)
    figures.pop("hour")
    at = end - timedelta(minutes=400 - number)
    return {**figures, "minute": at, "day": end.date()}


def _attempts(queue: str, at: datetime, chance: random.Random) -> list[dict[str, Any]]:
    names = dict.fromkeys(TABLES["silver/attempts"].schema.names)
    found = []
    for number in range(60):
        ready = at + timedelta(seconds=60 * number)
        wait, run = chance.expovariate(1 / 900) * 1000, chance.expovariate(1 / 300) + 20
        active = ready + timedelta(milliseconds=wait)
        ended = active + timedelta(milliseconds=run)
        outcome = "failed" if chance.random() < 0.04 else "completed"
        found.append(
            {**names, "queue": queue, "job_id": f"{at:%H}-{number}", "attempt": 1, "outcome": outcome}
            | {"ready_at": ready, "active_at": active, "ended_at": ended, "wait_ms": int(wait)}
            | {"run_ms": int(run), "day": at.date()}
        )
    return found
