"""Queue: adds jobs, and has the methods that read and change a queue.

Guarantee: options and data are checked before any I/O; a job whose `add` returned is in Redis, once, whatever happened
to the connection meanwhile. A queue belongs to one event loop; it connects with its first use, or when it is entered.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from typing import Final, Self, Unpack, overload

from toril.commands.add import Added
from toril.errors import Closed, InvalidOption, TorilError
from toril.jobs import Job, JobCalls
from toril.jobs.type_variables import T
from toril.producer._add_batcher import AddBatcher
from toril.producer._connection import QueueConnection
from toril.producer._groups import Groups
from toril.producer._inspection import Inspection
from toril.producer._management import Management
from toril.producer._trace_context import each_with_trace_context, name_of, with_trace_context
from toril.producer.job_builder import NO_DATA, GivenJob, Ids, JobBuilder, PreparedJob
from toril.producer.schedulers import Schedulers
from toril.protocol.codec import PayloadCodec
from toril.protocol.codecs import GivenCodecs, QueueCodecs
from toril.protocol.cron import CronGeneration
from toril.protocol.keys import QueueKeys
from toril.protocol.option_names import knows_its_options
from toril.protocol.options import JobOptions, JobOptionsDict
from toril.protocol.repeat_rules import RepeatRules, RepeatStrategy
from toril.telemetry.hooks import NO_METRICS, MetricsCollector, Tracer
from toril.transport import AsyncTransport, ConnectionPolicy
from toril.transport.waiting import Closing

logger = logging.getLogger("toril.queue")

_DEFAULTS: Final = JobOptions()


@knows_its_options("an argument of Queue")
class Queue(Inspection[T], Management[T], Groups[T]):
    """A queue by name.

    async with Queue("emails") as queue:
        job = await queue.add("send", {"to": "a@b.c"}, attempts=5, delay=2.0)
    """

    @overload
    def __init__(
        self,
        name: str,
        *,
        redis: object = ...,
        prefix: str = ...,
        hash_tag: bool | None = ...,
        ids: Ids = ...,
        defaults: JobOptions = ...,
        payload: type[T] | PayloadCodec[T],
        policy: ConnectionPolicy | None = ...,
        events_max_len: int | None = ...,
        skip_meta: bool = ...,
        metrics: MetricsCollector | None = ...,
        tracer: Tracer | None = ...,
        cron_generation: CronGeneration = ...,
        repeat_strategy: RepeatStrategy | None = ...,
        codecs: GivenCodecs = ...,
    ) -> None: ...
    @overload
    def __init__(
        self: Queue,
        name: str,
        *,
        redis: object = ...,
        prefix: str = ...,
        hash_tag: bool | None = ...,
        ids: Ids = ...,
        defaults: JobOptions = ...,
        payload: Mapping[str, object] | None = ...,
        policy: ConnectionPolicy | None = ...,
        events_max_len: int | None = ...,
        skip_meta: bool = ...,
        metrics: MetricsCollector | None = ...,
        tracer: Tracer | None = ...,
        cron_generation: CronGeneration = ...,
        repeat_strategy: RepeatStrategy | None = ...,
        codecs: GivenCodecs = ...,
    ) -> None: ...
    def __init__(
        self,
        name: str,
        *,
        redis: object = None,
        prefix: str = "bull",
        hash_tag: bool | None = None,
        ids: Ids = "short",
        defaults: JobOptions = _DEFAULTS,
        payload: type[T] | PayloadCodec[T] | Mapping[str, object] | None = None,
        policy: ConnectionPolicy | None = None,
        events_max_len: int | None = None,
        skip_meta: bool = False,
        metrics: MetricsCollector | None = None,
        tracer: Tracer | None = None,
        cron_generation: CronGeneration = 5,
        repeat_strategy: RepeatStrategy | None = None,
        codecs: GivenCodecs = None,
    ) -> None:
        """`redis` is a URL or a redis-py client whose settings are used. None: the URL in TORIL_REDIS_URL, or else the
        embedded server in `./.toril`.

        `payload` is the model of the data: a dataclass, TypedDict, msgspec struct, pydantic model or JSON schema.
        `events_max_len` is about how many events Redis keeps; None keeps the stored value, or 10,000.
        `skip_meta` writes nothing into a queue that is only read. `cron_generation` and `repeat_strategy` decide how
        the patterns of schedulers are read: give the workers the same. `codecs` encode data, results and progress, see
        `toril.codecs`: give the workers the same.
        """
        if not isinstance(defaults, JobOptions):
            raise InvalidOption("defaults", f"is a {type(defaults).__name__}", "give JobOptions(...)")
        self._transport = AsyncTransport(redis, policy=policy)
        self.keys = QueueKeys(name, prefix, hash_tag).resolve(cluster=self._transport.is_cluster)
        codec = payload if isinstance(payload, PayloadCodec) or payload is None else PayloadCodec(payload)
        self.payload: PayloadCodec[T] | None = codec  # checks and encodes the data
        self.codecs = QueueCodecs.of(codecs)
        self._calls = JobCalls(self._transport, self.keys, codec, codecs=self.codecs)
        self._job_builder = JobBuilder(
            self.keys,
            defaults=defaults,
            ids=ids,
            payload=codec,
            cluster=self._transport.is_cluster,
            codecs=self.codecs,
        )
        self._connection = QueueConnection(
            self._transport, self.keys, events_max_len=events_max_len, skip_meta=skip_meta
        )
        self._batcher = AddBatcher(self._connection)
        rules = RepeatRules(cron_generation=cron_generation, repeat_strategy=repeat_strategy)
        self.schedulers = Schedulers(
            self.keys, self._calls, self._job_builder, self._connection, tracer, rules
        )
        self._metrics = metrics or NO_METRICS
        self._tracer = tracer
        self._closing = Closing(self._close_all, f"toril-close-{self.name}")

    def __repr__(self) -> str:
        return f"Queue({self.name!r}, {self._transport.address.label})"

    # --- adding ---------------------------------------------------------------------------------------------

    async def add(self, name: str, data: T = NO_DATA, **options: Unpack[JobOptionsDict]) -> Job[T]:  # type: ignore[assignment]
        """Adds a job. Options are those of `JobOptions`; what is left out follows the queue's defaults.

        Jobs that are added at the same time are sent in one call, in order. When a job of the same `job_id` or
        deduplication id exists, nothing is added: that job is returned, and its `added` is False.
        """
        if self._tracer is None:
            return await self._add(name, data, options)
        with self._tracer.adding(self.name, [name]) as span:
            job = await self._add(name, data, with_trace_context(options, span.carrier))
            span.added([job.id])
            return job

    async def _add(self, name: str, data: object, options: Mapping[str, object]) -> Job[T]:
        self._transport.check_event_loop()
        prepared_job = self._job_builder.build(name, data, options)
        if self.codecs is not None:
            await self._job_builder.encode([prepared_job])
        (added,) = await self._batcher.submit([prepared_job])
        return self._added(prepared_job, added)

    async def add_bulk(self, jobs: Iterable[GivenJob]) -> list[Job[T]]:
        """Adds many jobs, in order: `NewJob`s or tuples of name, data and options.

        All are checked before the first is sent. If the server refuses some, the others are added all the same and the
        first refusal is raised. A job that existed already is returned as it is stored, with `added` False.
        """
        if self._tracer is None:
            return await self._add_all([self._job_builder.build_each(job) for job in jobs])
        given = list(jobs)
        with self._tracer.adding(self.name, [name_of(job) for job in given], operation="addBulk") as span:
            sent = [self._job_builder.build_each(each_with_trace_context(job, span.carrier)) for job in given]
            added = await self._add_all(sent)
            span.added([job.id for job in added])
            return added

    async def _add_all(self, prepared: list[PreparedJob]) -> list[Job[T]]:
        self._transport.check_event_loop()
        await self._job_builder.encode(prepared)
        replies = await self._batcher.submit(prepared)
        refused = [reply for reply in replies if isinstance(reply, TorilError)]
        if refused:
            refused[0].add_note(f"{len(refused)} of {len(prepared)} jobs were not added")
        return [
            self._added(prepared_job, reply) for prepared_job, reply in zip(prepared, replies, strict=True)
        ]

    def _added(self, prepared_job: PreparedJob, reply: Added) -> Job[T]:
        if isinstance(reply, TorilError):
            raise reply
        job: Job[T] = prepared_job.job(reply, self._calls)
        if job.added:
            self._metrics.increment_jobs_added(self.name)
        return job

    # --- opening and closing ---------------------------------------------------------------------------------

    async def open(self) -> None:
        """Connects and writes the queue's meta. `async with` and the first call do it too."""
        if self._connection.closed:
            raise Closed(f"queue {self.name!r} was closed; make a new Queue")
        await self._connection.ensure_open()

    async def close(self) -> None:
        """Sends submitted jobs, ends waits for jobs and closes the connections. May be called twice."""
        self._connection.refuse_calls()
        await self._closing.finish()

    async def _close_all(self) -> None:
        try:
            await self._batcher.close()
            await self._calls.close()
        finally:
            await self._transport.close()

    async def __aenter__(self) -> Self:
        try:
            await self.open()
        except BaseException as error:
            await self.__aexit__(None, error, None)
            raise
        return self

    async def __aexit__(self, _: object, error: object, __: object) -> None:
        self._connection.refuse_calls()
        await self._closing.after(error)
