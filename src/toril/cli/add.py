"""`toril add`: adds one or several jobs."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer

from toril.cli import _add_options as cli_options
from toril.cli._json_input import parse_json
from toril.cli._options import AsJson, Env, Prefix, QueueArgument, RedisUrl
from toril.cli._output import batches_with_progress, emit, print_line, warn
from toril.cli._target import QueueName, Target
from toril.errors import InvalidOption
from toril.jobs import Job
from toril.protocol.backoff import Backoff
from toril.protocol.envelope import DEFAULT_MAX_ATTEMPTS
from toril.protocol.options import JobOptions, NewJob


def add_to(app: typer.Typer) -> None:
    app.command("add")(add)


def add(
    queue: QueueArgument,
    name: cli_options.Name,
    data: cli_options.Data = "{}",
    lines: cli_options.Lines = None,
    count: cli_options.Count = 1,
    delay: cli_options.Delay = None,
    priority: cli_options.Priority = None,
    attempts: cli_options.Attempts = None,
    backoff: cli_options.Backoff = None,
    job_id: cli_options.JobId = None,
    lifo: cli_options.Lifo = False,
    expires: cli_options.Expires = None,
    group: cli_options.Group = None,
    wait: cli_options.Wait = None,
    redis: RedisUrl = None,
    prefix: Prefix = None,
    env: Env = "prod",
    as_json: AsJson = False,
) -> None:
    """Add a job, the same job many times, or a job for each line of a file."""
    where = QueueName.parse(queue)
    target = Target.of(redis, prefix, env)
    payloads = list(_payloads(data, lines, count))
    if job_id is not None and len(payloads) > 1:
        raise InvalidOption("job-id", "is given for many jobs", "leave it out, or add one job")
    if where.kind != "bullmq":
        _reject_options(
            where,
            priority=priority,
            backoff=backoff,
            lifo=lifo or None,
            wait=wait,
            expires=expires,
            group=group,
        )
        ids = asyncio.run(_add_envelopes(target, where, name, payloads, delay, attempts, job_id))
        _print(where, ids, [], None, as_json=as_json)
        return
    options = _job_options(
        backoff,
        delay=delay,
        priority=priority,
        attempts=attempts,
        job_id=job_id,
        lifo=lifo or None,
        expires=expires,
        group=group,
    )
    jobs, results = asyncio.run(_add_jobs(target, where, name, payloads, options, wait))
    existing = [job.id for job in jobs if not job.added]
    _print(where, [job.id for job in jobs], existing, results, as_json=as_json)


def _job_options(backoff: str | None, **given: float | str | None) -> dict[str, object]:
    """Returns the options that were given, by name."""
    options: dict[str, object] = {name: value for name, value in given.items() if value is not None}
    if backoff is not None:
        options["backoff"] = _backoff(backoff)
    return options


def _payloads(data: str, lines: Path | None, count: int) -> Iterator[object]:
    if lines is None:
        payload = parse_json(data, "data")
        yield from (payload for _ in range(count))
        return
    text = sys.stdin.read() if str(lines) == "-" else lines.read_text(encoding="utf-8")
    for number, line in enumerate(text.splitlines(), 1):
        if line.strip():
            yield parse_json(line, f"line {number}")


def _backoff(text: str) -> Backoff:
    kind, _, pause = text.partition(":")
    try:
        seconds = float(pause or 1.0)
    except ValueError:
        problem = f"{text!r} has no seconds"
        raise InvalidOption("backoff", problem, "write exponential:2 or fixed:0.5") from None
    if kind == "fixed":
        return Backoff.fixed(seconds)
    if kind == "exponential":
        return Backoff.exponential(seconds)
    custom = Backoff.custom(kind, seconds)
    warn(f"backoff {kind!r} is neither fixed nor exponential: workers need a function of that name")
    return custom


def _reject_options(where: QueueName, **options: object) -> None:
    given = [name for name, value in options.items() if value is not None]
    if given:
        raise InvalidOption(f"--{given[0]}", f"is not offered by {where.kind} queues", "leave it out")


async def _add_jobs(
    target: Target,
    where: QueueName,
    name: str,
    payloads: list[Any],
    options: dict[str, Any],
    wait: float | None,
) -> tuple[list[Job], list[Any] | None]:
    settings = JobOptions(**options)
    async with target.bullmq(where, "add") as queue:
        jobs: list[Job] = []
        for batch in batches_with_progress(payloads, "adding"):
            jobs += await queue.add_bulk([NewJob(name, one, settings) for one in batch])
        if wait is None:
            return jobs, None
        results = await asyncio.gather(*(job.wait_until_finished(timeout=wait) for job in jobs))
        return jobs, list(results)


async def _add_envelopes(
    target: Target,
    where: QueueName,
    name: str,
    payloads: list[Any],
    delay: float | None,
    attempts: int | None,
    job_id: str | None,
) -> list[str]:
    max_attempts = DEFAULT_MAX_ATTEMPTS if attempts is None else attempts
    async with target.envelopes(where) as queue:
        if job_id is not None:
            return [
                (
                    await queue.add(name, payloads[0], delay=delay, job_id=job_id, max_attempts=max_attempts)
                ).job_id
            ]
        ids: list[str] = []
        for batch in batches_with_progress(payloads, "adding"):
            added = await queue.add_bulk(
                [(name, one) for one in batch], delay=delay, max_attempts=max_attempts
            )
            ids += (one.job_id for one in added)
        return ids


def _print(
    where: QueueName, ids: list[str], existing: list[str], results: list[Any] | None, *, as_json: bool
) -> None:
    """`existing`: jobs that were in the queue before."""
    if as_json:
        more = {} if results is None else {"results": results}
        emit({"queue": str(where), "ids": ids, "existing": existing, **more})
        return
    if existing:
        warn(f"{len(existing)} of {len(ids)} jobs existed already and were not added")
    if results is not None:
        for result in results:
            print_line(json.dumps(result, ensure_ascii=False))
    elif len(ids) == 1:
        print_line(ids[0])
    else:
        print_line(f"{len(ids) - len(existing)} jobs added to {where}")
