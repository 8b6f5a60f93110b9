"""Schedulers: they add jobs by a cron pattern or at an interval.

Guarantee: a scheduler has one next job, added when the last one begins; changing the scheduler replaces it. Workers of
any client library add the next jobs.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, TypeVar, cast

from toril.backends.next_run import next_time
from toril.commands import read, schedulers
from toril.commands.command import Command
from toril.commands.envelopes import LATEST_MS
from toril.commands.schedulers import SchedulerToAdd
from toril.errors import InvalidOption, JobNotFound, MalformedValue, PlainPayload, UnreadablePayload
from toril.jobs import Job, JobCalls
from toril.producer._base import check_count
from toril.producer._connection import QueueConnection
from toril.producer._trace_context import with_trace_context
from toril.producer.job_builder import NO_DATA, JobBuilder, PreparedJob, refuse_group
from toril.protocol.codec import from_json
from toril.protocol.duration import Duration, datetime_to_ms, ms_to_datetime, to_ms, to_seconds
from toril.protocol.keys import QueueKeys, check_text
from toril.protocol.option_names import knows_its_names
from toril.protocol.options import JobOptions
from toril.protocol.record import JobRecord
from toril.protocol.repeat_rules import DEFAULT_RULES, RepeatRules
from toril.telemetry.hooks import Tracer

V = TypeVar("V")

# Options of single jobs: the scheduler sets them for its jobs, or its jobs have none.
_OF_SINGLE_JOBS: Final = {
    "delay": "set when jobs are due with `cron`, `every` or `start`",
    "job_id": "its jobs get their ids from the scheduler's id",
    "deduplication": "a scheduler has one next job at a time",
    "parent": "add such jobs with `queue.add` or FlowProducer",
    "timestamp": "each is created when the one before it begins",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Scheduler:
    """A scheduler as it is stored."""

    id: str
    name: str
    next_run: datetime | None
    cron: str | None
    every: float | None  # seconds
    tz: str | None
    start: datetime | None
    end: datetime | None
    limit: int | None
    offset: float | None  # seconds by which the times of an interval are shifted
    runs: int  # jobs added so far
    data: Any
    options: JobOptions


class Schedulers:
    """The schedulers of one queue: `queue.schedulers`."""

    def __init__(
        self,
        keys: QueueKeys,
        calls: JobCalls,
        job_builder: JobBuilder,
        connection: QueueConnection,
        tracer: Tracer | None = None,
        rules: RepeatRules = DEFAULT_RULES,
    ) -> None:
        self._keys = keys
        self._rules = rules
        self._calls = calls
        self._job_builder = job_builder.without_defaults(_OF_SINGLE_JOBS)
        self._connection = connection
        self._tracer = tracer

    async def _run(self, command: Command[V]) -> V:
        (value,) = await self._connection.run_all(command)
        return cast("V", value)

    @knows_its_names("an argument of upsert")
    async def upsert(
        self,
        scheduler_id: str,
        *,
        cron: str | None = None,
        every: Duration | None = None,
        tz: str | None = None,
        start: datetime | None = None,
        end: datetime | None = None,
        limit: int | None = None,
        immediately: bool = False,
        offset: Duration | None = None,
        name: str | None = None,
        data: object = NO_DATA,
        options: JobOptions | Mapping[str, object] | None = None,
    ) -> Job:
        """Creates or changes a scheduler; returns its next job.

        `cron` is a pattern, read in the time zone `tz` (default: that of this machine, as in Node); `every` is an
        interval. With an interval the first job is due at once, or at `start`, or, with an `offset`, that much after
        the next multiple of the interval; with a pattern at the next time that matches, or now if `immediately`.
        `options` are those of the jobs, except `delay`, `job_id`, `deduplication`, `parent` and `timestamp`, which are
        refused; the queue's defaults for these are left out.
        """
        check_scheduler_id(scheduler_id)
        _check_template(options)
        prepared = self._job_builder.build(name or scheduler_id, data, options)
        refuse_group(prepared)
        await self._job_builder.encode([prepared])
        repeat = _repeat(self._rules, cron, every, tz, start, end, limit)
        if offset is not None:
            repeat["offset"] = _offset(offset, repeat)
        if cron is not None and "H" in cron:
            repeat["hashSeed"] = scheduler_id  # so that clients of BullMQ 6 compute the same times
        if self._tracer is None:
            return await self._upsert(scheduler_id, prepared, repeat, immediately, None)
        with self._tracer.adding(self._keys.name, [prepared.name]) as span:
            carrier = with_trace_context(prepared.options, span.carrier).get("telemetry_metadata")
            job = await self._upsert(scheduler_id, prepared, repeat, immediately, carrier)
            span.added([job.id])
            return job

    async def _upsert(
        self,
        scheduler_id: str,
        prepared: PreparedJob,
        repeat: Mapping[str, Any],
        immediately: bool,
        carrier: str | None,
    ) -> Job:
        now_ms = await self._connection.ensure_open()
        scheduler = SchedulerToAdd(
            id=scheduler_id,
            name=prepared.name,
            data=prepared.data,
            options=prepared.options.to_wire(),
            repeat=repeat,
            next_ms=self._first(scheduler_id, prepared.name, repeat, immediately, now_ms),
            now_ms=now_ms,
            carrier=carrier,
        )
        job_id, _ = await self._run(schedulers.add_scheduler(self._keys, scheduler))
        flat = await self._run(read.get_job(self._keys, job_id))
        if not flat:
            raise JobNotFound(job_id, command="addJobScheduler")
        return Job(JobRecord.from_flat(job_id, flat), self._calls)

    def _first(
        self, scheduler_id: str, name: str, repeat: Mapping[str, Any], immediately: bool, now_ms: int
    ) -> int | None:
        if repeat.get("endDate") and now_ms > repeat["endDate"]:
            raise InvalidOption("end", "has passed", "give a time in the future")
        if immediately and repeat.get("startDate"):
            raise InvalidOption("immediately", "cannot be combined with start", "choose one of them")
        if "pattern" not in repeat:
            return None
        due: int | None = now_ms
        if not immediately:
            due = next_time(repeat, now_ms, self._rules, series=scheduler_id, name=name)
        if due is None:
            raise InvalidOption("cron", "matches no time before its end", "check the pattern and the end")
        return due

    async def get(self, scheduler_id: str) -> Scheduler | None:
        """Returns a scheduler by its id; None when there is none."""
        fields, next_ms = await self._connection.run_all(
            schedulers.get_scheduler(self._keys, scheduler_id),
            schedulers.next_run_ms(self._keys, scheduler_id),
        )
        return None if next_ms is None else self._scheduler(scheduler_id, fields, next_ms)

    async def list(self, start: int = 0, end: int = -1, *, ascending: bool = True) -> list[Scheduler]:
        """Returns all schedulers, soonest first."""
        command = schedulers.list_schedulers(self._keys, start=start, end=end, ascending=ascending)
        rows = await self._run(command)
        wanted = (schedulers.get_scheduler(self._keys, row[0]) for row in rows)
        fields = await self._connection.run_all(*wanted)
        return [self._scheduler(row[0], found, row[1]) for row, found in zip(rows, fields, strict=True)]

    def _scheduler(self, scheduler_id: str, fields: Mapping[str, str], next_ms: int) -> Scheduler:
        return _scheduler(scheduler_id, self._decoded(scheduler_id, fields), next_ms)

    def _decoded(self, scheduler_id: str, fields: Mapping[str, str]) -> Mapping[str, str]:
        """The fields with the data as it was before the codecs; data that cannot be decoded stays as it is stored."""
        codecs, data = self._calls.codecs, fields.get("data")
        if codecs is None or not data:
            return fields
        try:
            raw = codecs.decode(fields.get("name", scheduler_id), data.encode(errors="replace"), "data")
        except (PlainPayload, UnreadablePayload):
            return fields
        return {**fields, "data": raw.decode()}

    async def remove(self, scheduler_id: str) -> bool:
        """Removes a scheduler and its next job; returns False when there was none. An active job continues."""
        return await self._run(schedulers.remove_scheduler(self._keys, scheduler_id))

    async def declared_by(self, owner: str) -> set[str]:
        """Returns the ids of the schedulers that an application declared at its last start."""
        return await self._run(schedulers.declared_schedulers(self._keys, owner))

    async def set_declared_by(self, owner: str, ids: Iterable[str]) -> None:
        """Stores the ids of the schedulers that an application declares."""
        await self._run(schedulers.set_declared_schedulers(self._keys, owner, ids))

    async def count(self) -> int:
        """Returns how many schedulers the queue has."""
        return await self._run(schedulers.count_schedulers(self._keys))


def check_scheduler_id(scheduler_id: object) -> str:
    """Checks that an id can be a part of the ids of its jobs."""
    text = check_text("scheduler_id", scheduler_id)
    if ":" in text:
        raise InvalidOption("scheduler_id", 'contains ":"', 'use "-" or "_" instead')
    return text


def check_schedule(
    cron: str | None,
    every: Duration | None,
    tz: str | None,
    start: datetime | None,
    end: datetime | None,
    limit: int | None,
) -> None:
    """Raises if a schedule is not valid."""
    _repeat(DEFAULT_RULES, cron, every, tz, start, end, limit)


def _check_template(options: JobOptions | Mapping[str, object] | None) -> None:
    given = options.given_fields() if isinstance(options, JobOptions) else options or {}
    for name, remedy in _OF_SINGLE_JOBS.items():
        if given.get(name):
            raise InvalidOption(f"options.{name}", "is not an option of the jobs of a scheduler", remedy)


def _repeat(
    rules: RepeatRules,
    cron: str | None,
    every: Duration | None,
    tz: str | None,
    start: datetime | None,
    end: datetime | None,
    limit: int | None,
) -> dict[str, object]:
    """Checks the schedule; returns it under BullMQ's names."""
    if cron is None and every is None:
        raise InvalidOption("cron", "and every are both left out", "give exactly one of them")
    if cron is not None and every is not None:
        raise InvalidOption("cron", "and every exclude each other", "give exactly one of them")
    repeat: dict[str, object] = {}
    if cron is not None:
        rules.check(cron, tz)
        repeat["pattern"] = cron
    elif every is not None:
        repeat["every"] = to_ms(to_seconds("every", every, positive=True))
    if tz is not None:
        repeat["tz"] = tz
    if start is not None:
        repeat["startDate"] = datetime_to_ms("start", start)
    if end is not None:
        repeat["endDate"] = datetime_to_ms("end", end)
    if limit is not None:
        repeat["limit"] = check_count("limit", limit, least=1)
    return repeat


def _offset(offset: Duration, repeat: Mapping[str, Any]) -> int:
    offset_ms = to_ms(to_seconds("offset", offset, positive=True))
    every_ms = repeat.get("every")
    if every_ms is None:
        raise InvalidOption("offset", "is for an interval", "give every=, or leave it out")
    if offset_ms >= every_ms:
        raise InvalidOption("offset", "is not below every", "give a part of the interval")
    return offset_ms


def _scheduler(scheduler_id: str, fields: Mapping[str, str], next_ms: int) -> Scheduler:
    every, offset = _number(fields, "every"), _number(fields, "offset")
    return Scheduler(
        id=scheduler_id,
        name=fields.get("name", scheduler_id),
        next_run=ms_to_datetime(next_ms),
        cron=fields.get("pattern"),
        every=None if every is None else every / 1000,
        tz=fields.get("tz"),
        start=_time(fields, "startDate"),
        end=_time(fields, "endDate"),
        limit=_number(fields, "limit"),
        offset=None if offset is None else offset / 1000,
        runs=_number(fields, "ic") or 0,
        data=_data(fields),
        options=_options(fields),
    )


def _data(fields: Mapping[str, str]) -> object:
    """Returns the data of the jobs; text that does not parse is returned as it is, so that it can be seen."""
    text = fields.get("data") or "{}"
    try:
        return from_json(text, field="data")
    except MalformedValue:
        return text


def _options(fields: Mapping[str, str]) -> JobOptions:
    """Returns the options of the jobs; the defaults if they do not parse, which doctor reports."""
    try:
        return JobOptions.from_wire(from_json(fields.get("opts") or "{}", field="opts"))
    except (MalformedValue, InvalidOption):
        return JobOptions()


def _number(fields: Mapping[str, str], name: str) -> int | None:
    """A number of a stored scheduler; None also for what is none, which doctor reports."""
    try:
        return int(float(fields.get(name) or ""))
    except (ValueError, OverflowError):
        return None


def _time(fields: Mapping[str, str], name: str) -> datetime | None:
    value = _number(fields, name)
    return ms_to_datetime(value) if value is not None and 0 <= value <= LATEST_MS else None
