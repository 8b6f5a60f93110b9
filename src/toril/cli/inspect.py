"""`toril inspect`: one queue, its newest jobs, or one job."""

from __future__ import annotations

import asyncio
import json
from datetime import UTC, datetime
from typing import Annotated, Any

import typer

from toril.cli._completion import complete_job, complete_state
from toril.cli._options import AsJson, Env, Prefix, QueueArgument, RedisUrl
from toril.cli._output import emit, format_time, print_line, shorten, show, show_facts
from toril.cli._queue_facts import queue_facts, read_queues
from toril.cli._target import QueueName, Target
from toril.errors import JobNotFound
from toril.jobs import Job
from toril.protocol.codec import to_json
from toril.protocol.codecs import EncodedPayload
from toril.protocol.printable import one_line
from toril.protocol.record import JobRecord
from toril.transport import parse_address
from toril.transport.discovery import FoundQueue

# Characters of a value that are shown: about twenty lines.
MAX_SHOWN = 2_000
MAX_LINES = 100  # of stack traces and logs; `--json` and `toril logs` have all


_TIMES = ("timestamp", "processedOn", "finishedOn")


def add_to(app: typer.Typer) -> None:
    app.command("inspect")(inspect)


def inspect(
    queue: QueueArgument,
    job: Annotated[
        str | None,
        typer.Argument(metavar="[JOB]", help="The id of a job to show in full.", autocompletion=complete_job),
    ] = None,
    state: Annotated[
        str | None,
        typer.Option(
            "--state",
            help="List only jobs in this state: waiting, active, failed, …",
            autocompletion=complete_state,
        ),
    ] = None,
    limit: Annotated[int, typer.Option("--limit", min=1, help="Maximum number of jobs to list.")] = 20,
    redis: RedisUrl = None,
    prefix: Prefix = None,
    env: Env = "prod",
    as_json: AsJson = False,
) -> None:
    """Show a queue with its newest jobs, or one job in full."""
    where = QueueName.parse(queue)
    target = Target.of(redis, prefix, env)
    if where.kind != "bullmq":
        asyncio.run(_inspect_envelopes(target, where, job, limit, as_json=as_json))
    elif job is not None:
        asyncio.run(_inspect_job(target, where, job, as_json=as_json))
    else:
        asyncio.run(_inspect_queue(target, where, state, limit, as_json=as_json))


async def _inspect_job(target: Target, where: QueueName, job_id: str, *, as_json: bool) -> None:
    async with target.bullmq(where, "inspect", read_only=True) as queue:
        job = await queue.get_job(job_id)
        if job is None:
            raise JobNotFound(job_id)
        state = await queue.get_job_state(job_id)
        logs = await queue.get_job_logs(job_id)
    if as_json:
        emit({"state": state.value, **job.record.as_dict(), "logs": logs.lines})
        return
    facts = {"state": state.value, "data": _start_of(job.record, MAX_SHOWN), **_without_data(job.record)}
    shown = {name: _readable(name, value) for name, value in facts.items() if value not in (None, [], {})}
    show_facts(shown | ({"logs": "\n".join(map(one_line, logs.lines[-MAX_LINES:]))} if logs.lines else {}))


def _without_data(record: JobRecord) -> dict[str, Any]:
    """Returns all fields except the data, which may be large and is not decoded."""
    facts = JobRecord(
        record.id, {name: value for name, value in record.fields.items() if name != b"data"}
    ).as_dict()
    facts.pop("data", None)
    return facts


def _start_of(record: JobRecord, characters: int) -> str:
    raw = record.raw_data
    encoded = EncodedPayload.of(raw)
    if encoded is not None:
        return f"{encoded} (--json has it as it is stored)"
    text = raw[: characters * 4].decode(errors="replace")  # a character has four bytes at most
    return (
        text
        if len(text) <= characters and len(raw) <= characters * 4
        else f"{text[:characters]}… (--json has all)"
    )


def _readable(name: str, value: object) -> str:
    """Returns times in the local time zone, stack traces as Python prints them, and what encoded payloads are."""
    if name in _TIMES and isinstance(value, int):
        return _time(value)
    if name == "stacktrace" and isinstance(value, list):
        return "\n".join(_cell("\n".join(str(one).rstrip() for one in value)).splitlines()[:MAX_LINES])
    return one_line(_payload(value))


def _payload(value: object) -> str:
    encoded = EncodedPayload.of(to_json(value)) if isinstance(value, dict) else None
    return _cell(value) if encoded is None else str(encoded)


def _time(value: object) -> str:
    """Returns the time of Unix milliseconds; another program may have stored anything."""
    try:
        return format_time(datetime.fromtimestamp(float(str(value)) / 1000, UTC))
    except (ValueError, OverflowError, OSError):
        return shorten(value, 20)


def _cell(value: object) -> str:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= MAX_SHOWN else f"{text[:MAX_SHOWN]}… (--json has all)"


async def _inspect_queue(
    target: Target, where: QueueName, state: str | None, limit: int, *, as_json: bool
) -> None:
    async with target.bullmq(where, "inspect", read_only=True) as queue:
        counts = await queue.get_job_counts()
        paused, workers = await queue.is_paused(), await queue.get_workers()
        jobs = await queue.get_jobs(state, 0, limit - 1)
        states = {job.id: (await queue.get_job_state(job.id)).value for job in jobs[:limit]}
        known = await queue.get_version() is not None
    if as_json:
        rows = [{"state": states.get(job.id), **job.record.as_dict()} for job in jobs[:limit]]
        names = [one.worker_id or one.address for one in workers]
        emit(
            {
                "queue": str(where),
                "counts": counts.as_dict(),
                "paused": paused,
                "workers": names,
                "jobs": rows,
            }
        )
        return
    shown = ", ".join(f"{number} {name}" for name, number in counts.as_dict().items() if number)
    shown = shown or ("empty" if known else "empty, and never used (`toril queues` lists those that are)")
    print_line(f"{where}: {shown}{'; paused' if paused else ''}; {len(workers)} workers connected")
    _show_jobs(jobs[:limit], states)


def _show_jobs(jobs: list[Job], states: dict[str, str]) -> None:
    rows = [
        (
            job.id,
            job.name,
            states[job.id],
            shorten(job.record.text("attemptsMade") or job.record.text("atm") or "0", 10),
            _time(job.record.text("timestamp") or ""),
            _data_or_reason(job),
        )
        for job in jobs
    ]
    if rows:
        show(["job", "name", "state", "attempts", "added", "data or reason"], rows, right=["attempts"])


def _data_or_reason(job: Job) -> str:
    if job.failed_reason:
        return shorten(job.failed_reason, 60)
    encoded = EncodedPayload.of(job.record.raw_data)
    if encoded is not None:
        return str(encoded)
    return shorten(job.record.raw_data[:240].decode(errors="replace"), 60)


async def _inspect_envelopes(
    target: Target, where: QueueName, job_id: str | None, limit: int, *, as_json: bool
) -> None:
    cluster = parse_address(target.redis).is_cluster
    named = FoundQueue.named(str(where), prefix=target.prefix, env=target.env, cluster=cluster)
    overview = await read_queues(target, named)
    async with target.envelopes(where) as queue:
        scheduled = await queue.scheduled(limit)
        dead_letters = [one async for one in queue.dead_letters()][-limit:]
    envelopes = [("delayed", one.as_dict()) for one, _ in scheduled]
    envelopes += [("dead", one.as_dict()) for one in dead_letters]
    if job_id is not None:
        envelopes = [(state, one) for state, one in envelopes if one["job_id"] == job_id]
        if not envelopes:
            raise JobNotFound(
                job_id, hint="only delayed and dead jobs of list and stream queues can be looked up"
            )
    if as_json:
        emit(
            {**queue_facts(overview.queues[0]), "jobs": [{"state": state, **one} for state, one in envelopes]}
        )
        return
    print_line(
        f"{where}: " + ", ".join(f"{number} {name}" for name, number in overview.queues[0].states.items())
    )
    rows = [
        (
            one["job_id"],
            one["task_type"],
            state,
            one["attempts"],
            one.get("last_error") or _payload(one["payload"]),
        )
        for state, one in envelopes
    ]
    if rows:
        show(["job", "task", "state", "attempts", "payload or error"], rows, right=["attempts"])
