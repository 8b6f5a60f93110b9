"""`table=work`: jobs taken with their lock, as rows.

Guarantee: a micro-batch that is replayed, a task that is repeated and a second action on the same DataFrame get the
jobs of the first one that are not settled yet, and take no other. Readers keep nothing that matters: the nonce in
Spark's checkpoint names the leases, and the leases are in Redis.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.streaming.datasource import ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from toril.backends.base import FinishedJob
from toril.backends.blocking import BlockingBackend, outcome_of, reject_reason
from toril.backends.bullmq import BullmqDelivery
from toril.commands.command import plain
from toril.commands.leases import OPEN_MS, take_leased
from toril.commands.worker import Pickup
from toril.errors import InvalidOption, PermanentError, TorilError
from toril.protocol.keys import QueueKeys
from toril.protocol.record import JobRecord
from toril.protocol.worker_options import WorkerOptions
from toril.spark.python import Portable
from toril.spark.sources.discovery import QueueSelection
from toril.spark.sources.readers import open_transport
from toril.spark.sources.server_choice import check_reachable, require_driver_jvm
from toril.spark.worker.job_columns import JobColumns, work_schema
from toril.spark.worker.lease_names import Lease, leases_of
from toril.spark.worker.lease_renewer import LeaseRenewer, close_all, close_settled, config_of, renew_all
from toril.spark.worker.stop_signal import stop_key
from toril.spark.worker.work_options import BATCH_LOCK, STREAM_LOCK, WorkOptions
from toril.transport import BlockingTransport

_SCORES_PER_MS: Final = 4096  # of the set of delayed jobs


@dataclass(frozen=True, slots=True)
class WorkOffset:
    """The end of a micro-batch: what it may take from each queue, and the nonce of its leases."""

    number: int
    owner: str
    nonce: str = ""
    shares: Mapping[str, int] = field(default_factory=dict)

    @classmethod
    def parse(cls, offset: Mapping[str, Any]) -> WorkOffset:
        return cls(int(offset["number"]), offset["owner"], offset["nonce"], dict(offset["shares"]))

    def as_dict(self) -> dict[str, Any]:
        return {
            "number": self.number,
            "owner": self.owner,
            "nonce": self.nonce,
            "shares": dict(self.shares),
        }


class WorkPartition(InputPartition):
    """The leases that one task takes."""

    def __init__(self, leases: Sequence[Lease]) -> None:
        super().__init__(None)
        self.leases = list(leases)


def partitions_of(leases: Sequence[Lease], count: int) -> list[InputPartition]:
    """Deals leases out in turn: tasks that run side by side then settle jobs of about the same age."""
    return [WorkPartition(leases[start::count]) for start in range(min(count, len(leases)))]


class WorkReader(Portable):
    """What batch and stream reads of work have in common."""

    lock: float

    def __init__(self, options: WorkOptions, schema: StructType) -> None:
        self.options = options
        self.schema = schema

    def worker_name(self) -> str:
        return self.options.worker or self.options.run or "spark"

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Takes the jobs of a partition's leases, in a task."""
        require_driver_jvm(self.options.jvm)
        expected = to_arrow_schema(self.schema, timezone="UTC")
        with open_transport(self.options.url) as transport:
            for lease in partition.leases if isinstance(partition, WorkPartition) else ():
                table = self._take(transport, lease)
                yield from table.select(expected.names).cast(expected).to_batches()

    def _take(self, transport: BlockingTransport, lease: Lease) -> pa.Table:
        token = lease.token
        pickup = Pickup(token=token, lock_ms=round(self.lock * 1000), worker=self.worker_name())
        command = take_leased(
            lease.keys, lease.name, capacity=lease.size, pickup=pickup, now_ms=transport.now_ms()
        )
        reply = transport.run(command)
        taken = [BullmqDelivery(JobRecord.from_flat(one, flat), token) for one, flat in reply.jobs]
        backend = BlockingBackend(lease.keys, transport, config_of(self.worker_name(), self.lock))
        backend.begin_scheduler_runs([one.record for one in taken])
        columns = JobColumns(lease.queue, self.options.data_type())
        whole = [one for one in taken if reject_reason(one.record) is None]
        data, misfits = columns.data_of(whole)
        errors: dict[str, BaseException] = {whole[at].id: error for at, error in misfits.items()}
        errors |= {
            one.id: PermanentError(why) for one in taken if (why := reject_reason(one.record)) is not None
        }
        self._fail(backend, [(one, errors[one.id]) for one in taken if one.id in errors])
        kept = [at for at in range(len(whole)) if at not in misfits]
        if misfits:
            data = data.take(pa.array(kept, pa.int64()))
        return columns.table([whole[at] for at in kept], data, lease.first)

    def _fail(self, backend: BlockingBackend, failed: Sequence[tuple[BullmqDelivery, BaseException]]) -> None:
        """Jobs that cannot become rows fail here: no query would ever settle them."""
        options = WorkerOptions()
        backend.settle([FinishedJob(one, outcome_of(error, one, options)) for one, error in failed])


class WorkBatchReader(WorkReader, DataSourceReader):
    """`spark.read`: one set of jobs for each run. Nobody renews their locks."""

    def __init__(self, options: WorkOptions, schema: StructType) -> None:
        if options.run is None:
            remedy = 'set option("run", NAME): the same run gets the same jobs, however often it is read'
            raise InvalidOption("run", "is missing", remedy)
        super().__init__(options, schema)
        self.lock = options.lock_duration or BATCH_LOCK

    def partitions(self) -> Sequence[InputPartition]:
        check_reachable(self.options.url)
        with open_transport(self.options.url) as transport:
            queues = queues_of(QueueSelection(self.options.source()).existing(transport))
            leases: list[Lease] = []
            left = self.options.max_jobs
            for queue, keys in queues.items():
                nonce, share = run_share(transport, keys, str(self.options.run), left)
                leases += leases_of(str(self.options.run), nonce, {queue: share}, queues)
                left -= share
        return partitions_of(leases, self.options.partitions)


class WorkStreamReader(WorkReader, DataSourceStreamReader, SupportsTriggerAvailableNow):
    """`spark.readStream`: jobs as they come. Its offsets are made by `latestOffset` and read by `partitions`."""

    def __init__(self, options: WorkOptions, schema: StructType) -> None:
        super().__init__(options, schema)
        self.lock = options.lock_duration or STREAM_LOCK
        self._selection = QueueSelection(options.source())
        self._transport: BlockingTransport | None = None  # of the planning process; never pickled in use
        self._renewer: LeaseRenewer | None = None
        self._left: int | None = None  # jobs that `availableNow` may still take

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_transport": None, "_renewer": None}

    @property
    def transport(self) -> BlockingTransport:
        if self._transport is None:
            check_reachable(self.options.url)
            self._transport = open_transport(self.options.url)
        return self._transport

    def queues(self) -> dict[str, QueueKeys]:
        """The queues that exist now."""
        return queues_of(self._selection.queues(self.transport))

    def _renew(self, owner: str) -> None:
        """Starts the renewal of leases: a replay begins with `partitions`, everything else with `latestOffset`."""
        if self._renewer is None:
            config = config_of(self.worker_name(), self.lock, self.options.max_stalled_count)
            self._renewer = LeaseRenewer(self.options.url, config, self)
        self._renewer.start(owner)

    # --- offsets --------------------------------------------------------------------------------------------

    def initialOffset(self) -> dict[str, Any]:
        return WorkOffset(0, self.options.worker or secrets.token_hex(8)).as_dict()

    def getDefaultReadLimit(self) -> ReadLimit:
        return ReadMaxRows(self.options.max_jobs)

    def prepareForTriggerAvailableNow(self) -> None:
        self._left = sum(ready_jobs(self.transport, keys) for keys in self.queues().values())

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """The end of the next micro-batch; the start if there is nothing to take. All up to the start is committed."""
        begin = WorkOffset.parse(start)
        self._renew(begin.owner)
        queues = self.queues()
        if begin.nonce:
            self._close_committed(queues, begin)
        shares = self._shares(queues, begin.owner, limit)
        if not shares:
            return start
        if self._left is not None:
            self._left -= sum(shares.values())
        return WorkOffset(begin.number + 1, begin.owner, secrets.token_hex(8), shares).as_dict()

    def _close_committed(self, queues: Mapping[str, QueueKeys], begin: WorkOffset) -> None:
        """Closes the leases of committed micro-batches; jobs whose rows a stateful operator holds stay locked."""
        for keys in queues.values():
            if self.options.give_back == "commit":
                close_all(self.transport, keys, begin.owner, nonce=begin.nonce, dropped=self.options.dropped)
            else:
                close_settled(self.transport, keys, begin.owner, round(self.lock * 1000))

    def _shares(self, queues: Mapping[str, QueueKeys], owner: str, limit: ReadLimit) -> dict[str, int]:
        """How many jobs to take from each queue: at most as many as wait, and as the limits allow."""
        if self._is_stopping(queues):
            return {}
        lock_ms = round(self.lock * 1000)
        held = sum(renew_all(self.transport, keys, owner, lock_ms) for keys in queues.values())
        room = min(self.options.max_jobs, self.options.max_unsettled - held)
        if isinstance(limit, ReadMaxRows):
            room = min(room, limit.max_rows)
        if self._left is not None:
            room = min(room, self._left)
        shares: dict[str, int] = {}
        for queue, keys in queues.items():
            share = min(ready_jobs(self.transport, keys), room)
            if share > 0:
                shares[queue] = share
                room -= share
        return shares

    def _is_stopping(self, queues: Mapping[str, QueueKeys]) -> bool:
        worker = self.options.worker
        return worker is not None and any(
            self.transport.run(plain(bool, "EXISTS", stop_key(keys, worker))) for keys in queues.values()
        )

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        del start  # the end alone names the leases: a replay has another start
        until = WorkOffset.parse(end)
        self._renew(until.owner)
        cluster = self.transport.is_cluster
        keys = {
            queue: QueueKeys(queue, self.options.prefix).resolve(cluster=cluster) for queue in until.shares
        }
        leases = list(leases_of(until.owner, until.nonce, until.shares, keys))
        return partitions_of(leases, self.options.partitions)

    def commit(self, end: dict[str, Any]) -> None:
        """Nothing to do: `latestOffset` closes the leases of a committed micro-batch."""

    def stop(self) -> None:
        if self._renewer is not None:
            self._renewer.stop()
        if self._transport is not None:
            self._transport.close()


def queues_of(found: Mapping[str, object]) -> dict[str, QueueKeys]:
    return {queue: keys for queue, keys in found.items() if isinstance(keys, QueueKeys)}


def ready_jobs(transport: BlockingTransport, keys: QueueKeys) -> int:
    """How many jobs could be taken now."""
    due = transport.now_ms() * _SCORES_PER_MS
    counts = transport.run_many(
        [
            plain(int, "LLEN", keys.wait),
            plain(int, "ZCARD", keys.prioritized),
            plain(int, "ZCOUNT", keys.delayed, "-inf", due),
        ]
    )
    for one in counts:
        if isinstance(one, TorilError):
            raise one
    return sum(counts)


def run_share(transport: BlockingTransport, keys: QueueKeys, run: str, most: int) -> tuple[str, int]:
    """The nonce of a run and how many jobs of a queue it may take; the first read decides, others follow."""
    key = keys.toril(f"work:run:{run}")
    share = min(most, ready_jobs(transport, keys))
    transport.run(plain(bool, "SET", key, f"{secrets.token_hex(8)} {share}", "NX", "PX", OPEN_MS))
    text = transport.run(plain(bytes, "GET", key)).decode()
    nonce, _, known = text.partition(" ")
    return nonce, int(known)


def source_schema(options: WorkOptions) -> pa.Schema:
    return work_schema(options.data_type())
