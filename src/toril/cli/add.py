"""`toril add`: adds one or several jobs."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import typer

from toril.cli._add_options import AddOptions, Name
from toril.cli._json_input import parse_json
from toril.cli._option_groups import with_option_groups
from toril.cli._options import AsJson, KeyOptions, QueueArgument
from toril.cli._output import batches_with_progress, emit, print_line, warn
from toril.cli._target import QueueName, Target
from toril.errors import InvalidOption
from toril.jobs import Job
from toril.protocol.backoff import Backoff
from toril.protocol.envelope import DEFAULT_MAX_ATTEMPTS
from toril.protocol.options import JobOptions, NewJob

_BULLMQ_ONLY = ("priority", "backoff", "lifo", "wait", "expires", "group")
_JOB_OPTIONS = ("delay", "priority", "attempts", "job_id", "lifo", "expires", "group")


def add_to(app: typer.Typer) -> None:
    app.command("add")(with_option_groups(add))


def add(
    *,
    queue: QueueArgument,
    name: Name,
    options: AddOptions,
    keys: KeyOptions,
    as_json: AsJson = False,
) -> None:
    """Add a job, the same job many times, or a job for each line of a file."""
    where, target = QueueName.parse(queue), keys.target()
    payloads = list(_payloads(options.data, options.lines, options.count))
    if options.job_id is not None and len(payloads) > 1:
        raise InvalidOption("job-id", "is given for many jobs", "leave it out, or add one job")
    if where.kind != "bullmq":
        _reject_bullmq_options(where, options)
        ids = asyncio.run(_add_envelopes(target, where, name, payloads, options))
        _print(where, ids, [], None, as_json=as_json)
        return
    jobs, results = asyncio.run(_add_jobs(target, where, name, payloads, options))
    existing = [job.id for job in jobs if not job.added]
    _print(where, [job.id for job in jobs], existing, results, as_json=as_json)


def _job_options(options: AddOptions) -> JobOptions:
    """Returns the options of a job that were given."""
    given = {name: value for name, value in _given(options).items() if name in _JOB_OPTIONS}
    if options.backoff is not None:
        given["backoff"] = _backoff(options.backoff)
    return JobOptions(**given)


def _given(options: AddOptions) -> dict[str, Any]:
    return {name: value for name, value in asdict(options).items() if value not in (None, False)}


def _payloads(data: str, lines: Path | None, count: int) -> Iterator[object]:
    if lines is None:
        payload = parse_json(data, "data")
        yield from (payload for _ in range(count))
        return
    text = sys.stdin.read() if str(lines) == "-" else lines.read_text(encoding="utf-8")
    # Not `splitlines`: JSON may contain other separators of lines than a line feed.
    for number, line in enumerate(text.split("\n"), 1):
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


def _reject_bullmq_options(where: QueueName, options: AddOptions) -> None:
    for name in _given(options):
        if name in _BULLMQ_ONLY:
            raise InvalidOption(f"--{name}", f"is not offered by {where.kind} queues", "leave it out")


async def _add_jobs(
    target: Target,
    where: QueueName,
    name: str,
    payloads: list[Any],
    options: AddOptions,
) -> tuple[list[Job], list[Any] | None]:
    settings = _job_options(options)
    async with target.bullmq(where, "add") as queue:
        jobs: list[Job] = []
        for batch in batches_with_progress(payloads, "adding"):
            jobs += await queue.add_bulk([NewJob(name, one, settings) for one in batch])
        if options.wait is None:
            return jobs, None
        results = await asyncio.gather(*(job.wait_until_finished(timeout=options.wait) for job in jobs))
        return jobs, list(results)


async def _add_envelopes(
    target: Target, where: QueueName, name: str, payloads: list[Any], options: AddOptions
) -> list[str]:
    delay, job_id = options.delay, options.job_id
    max_attempts = DEFAULT_MAX_ATTEMPTS if options.attempts is None else options.attempts
    async with target.envelopes(where) as queue:
        if job_id is not None:
            one = await queue.add(name, payloads[0], delay=delay, job_id=job_id, max_attempts=max_attempts)
            return [one.job_id]
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
