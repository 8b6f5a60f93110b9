"""Builds jobs for the add scripts from what the caller gave.

Guarantee: everything that can be checked without the server is checked here, before any I/O.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Final, Literal, TypeAlias

from toril.codecs.in_loop import encoded_all
from toril.commands.add import Existing, JobToAdd
from toril.errors import CrossSlot, InvalidOption
from toril.jobs import Job, JobCalls
from toril.producer._ids import new_short_id, new_uuid
from toril.protocol.codec import PayloadCodec, check_size, check_size_limit, to_json
from toril.protocol.codecs import QueueCodecs
from toril.protocol.keys import QueueKeys, check_text, hash_tag_of
from toril.protocol.options import JobOptions, NewJob, merge
from toril.protocol.record import JobRecord

Ids = Literal["uuid", "short", "counter"]
_NEW_ID: Final[dict[str, Callable[[], str]]] = {
    "uuid": new_uuid,
    "short": new_short_id,
    "counter": str,  # empty: the script takes the next number
}
GivenJob: TypeAlias = NewJob | tuple[Any, ...]
"""One of the jobs of `add_bulk`: a `NewJob`, or a tuple of name, data and options."""


class NoData:
    """Data that was not given: Node stores `{}` then, and `null` only for a given null."""


NO_DATA: Final = NoData()


class PreparedJob:
    """A job that was checked and waits to be sent."""

    __slots__ = ("_wire", "data", "id", "name", "options", "parent_key", "timestamp_ms", "waits_for_children")

    def __init__(
        self, name: str, data: bytes, options: JobOptions, wire: Mapping[str, Any], job_id: str
    ) -> None:
        self.name = name
        self.data = data
        self.options = options
        self.id = job_id  # empty: the script takes the next number of the queue
        self.parent_key: str | None = None
        self.waits_for_children = False
        self.timestamp_ms = 0
        self._wire = wire

    def to_add(self, now_ms: int) -> JobToAdd:
        """Returns the job for the scripts, created now unless its options contain a timestamp."""
        self.timestamp_ms = self._wire.get("timestamp", now_ms)
        return JobToAdd(
            name=self.name,
            data=self.data,
            options=self._wire,
            timestamp=self.timestamp_ms,
            id=self.id,
            parent=self.options.parent_wire(),
            parent_key=self.parent_key,
            packed=self.options.packed,
            waits_for_children=self.waits_for_children,
        )

    def record(self, job_id: str) -> JobRecord:
        """Returns the record of the added job, as its hash would give it."""
        wire = self._wire
        fields = {
            b"name": self.name.encode(),
            b"data": self.data,
            b"opts": to_json(wire),
            b"timestamp": b"%d" % self.timestamp_ms,
            b"delay": b"%d" % (wire.get("delay") or 0),
            b"priority": b"%d" % (wire.get("priority") or 0),
        }
        if self.parent_key is not None:
            fields[b"parent"] = to_json(self.options.parent_wire())
            fields[b"parentKey"] = self.parent_key.encode()
        if "de" in wire:
            fields[b"deid"] = wire["de"]["id"].encode()
        return JobRecord(job_id, fields)

    def job(self, reply: str | Existing, calls: JobCalls) -> Job:
        """Returns the job of a reply: this one, or the one that existed."""
        if isinstance(reply, str):
            return Job(self.record(reply), calls)
        if not reply.hash:
            return Job(self.record(reply.id), calls, added=False)
        return Job(JobRecord.from_flat(reply.id, reply.hash), calls, added=False)


def refuse_group(job: PreparedJob) -> None:
    """The jobs of schedulers are added by scripts that serve no groups."""
    if job.options.group is not None:
        raise InvalidOption("group", "cannot be given to a job of a scheduler", "add the job by queue.add(…)")


class JobBuilder:
    """Checks and builds the jobs of one queue."""

    __slots__ = ("_cluster", "_codecs", "_default_wire", "_defaults", "_ids", "_keys", "_new_id", "_payload")

    def __init__(
        self,
        keys: QueueKeys,
        *,
        defaults: JobOptions,
        ids: Ids,
        payload: PayloadCodec[Any] | None,
        cluster: bool,
        codecs: QueueCodecs | None = None,
    ) -> None:
        if ids not in tuple(_NEW_ID):
            raise InvalidOption("ids", f"is {ids!r}", 'choose "uuid", "short" or "counter"')
        if defaults.job_id is not None:
            raise InvalidOption("defaults", "give all jobs one id", "give job_id to `add`")
        self._keys = keys
        self._defaults = defaults
        self._default_wire = defaults.to_wire()
        self._ids = ids
        self._new_id = _NEW_ID[ids]
        self._payload = payload
        self._cluster = cluster
        self._codecs = codecs

    def without_defaults(self, names: Collection[str]) -> JobBuilder:
        """Returns a builder without the queue's defaults for these options."""
        kept = {name: value for name, value in self._defaults.given_fields().items() if name not in names}
        return JobBuilder(
            self._keys,
            defaults=JobOptions.of(kept),
            ids=self._ids,
            payload=self._payload,
            cluster=self._cluster,
            codecs=None if self._codecs is None else self._codecs.without_offload(),
        )

    @property
    def has_codecs(self) -> bool:
        """Whether built jobs must be encoded before they are sent."""
        return self._codecs is not None

    async def encode(self, jobs: Sequence[PreparedJob]) -> None:
        """Encodes the data of built jobs by the codecs of the queue; raises if one is too large all the same."""
        if self._codecs is None:
            return
        texts = await encoded_all(self._codecs, [(one.name, one.data) for one in jobs])
        for job, text in zip(jobs, texts, strict=True):
            job.data = text
            check_size(text, job.options.to_wire())

    def build(self, name: str, data: object, given: JobOptions | Mapping[str, object] | None) -> PreparedJob:
        """Checks one job."""
        check_text("name", name)
        options = merge(self._defaults, given)
        wire = self._default_wire if options is self._defaults else options.to_wire()
        _ = options.packed  # packed once for all jobs with these options; raises here
        raw = self._encoded(data)
        if self._codecs is None:
            check_size(raw, wire, size_limit=options.size_limit)
        else:  # the rest is checked when it is encoded
            check_size_limit(raw, options.size_limit)
        if options.repeat is not None:
            raise InvalidOption("repeat", "cannot be given to a single job", "use queue.schedulers.upsert(…)")
        prepared = PreparedJob(name, raw, options, wire, options.job_id or self._new_id())
        if options.parent is not None:
            prepared.parent_key = self._parent_key(options.parent.queue_key, options.parent.id)
        return prepared

    def build_each(self, job: GivenJob) -> PreparedJob:
        """Checks one job of many: a `NewJob`, or a tuple of name, data and options."""
        match job:
            case NewJob(name, data, options):
                return self.build(name, data, options)
            case (name,):
                return self.build(name, NO_DATA, None)
            case (name, data):
                return self.build(name, data, None)
            case (name, data, options):
                return self.build(name, data, options)
        raise InvalidOption(
            "jobs", f"hold a {type(job).__name__}", "give NewJob(name, data, options) or (name, data)"
        )

    def _encoded(self, data: object) -> bytes:
        if data is NO_DATA:
            data = {}
        return self._payload.encode(data) if self._payload is not None else to_json(data)

    def _parent_key(self, queue_key: str, job_id: str) -> str:
        if self._cluster and hash_tag_of(f"{queue_key}:") != hash_tag_of(self._keys.base):
            raise CrossSlot(
                f"the parent's queue {queue_key!r} is in another slot than {self._keys.qualified!r}"
            )
        return f"{queue_key}:{job_id}"
