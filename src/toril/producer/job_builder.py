"""From what the caller gave to what the scripts take.

Guarantee: everything that can be refused is refused here, before any I/O.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, Final, Literal

from toril.commands.add import Existing, JobToAdd
from toril.errors import CrossSlot, InvalidOption
from toril.jobs import Job, JobCalls
from toril.producer._ids import new_id
from toril.protocol.codec import PayloadCodec, check_size, to_json
from toril.protocol.keys import QueueKeys, check_text, hash_tag_of
from toril.protocol.options import JobOptions, NewJob, merge
from toril.protocol.record import JobRecord

Ids = Literal["uuid", "counter"]


class Nothing:
    """Stands for data that was not given: Node stores `{}` then, and `null` only for a given null."""


NOTHING: Final = Nothing()


class PreparedJob:
    """A job that was checked and waits to be sent."""

    __slots__ = ("_wire", "data", "id", "name", "options", "parent_key", "stamped_ms", "waits_for_children")

    def __init__(
        self, name: str, data: bytes, options: JobOptions, wire: Mapping[str, Any], job_id: str
    ) -> None:
        self.name = name
        self.data = data
        self.options = options
        self.id = job_id  # empty: the queue's counter gives one
        self.parent_key: str | None = None
        self.waits_for_children = False
        self.stamped_ms = 0
        self._wire = wire

    def stamped(self, now_ms: int) -> JobToAdd:
        """The job as the scripts take it, created now unless its options say when."""
        self.stamped_ms = self._wire.get("timestamp", now_ms)
        return JobToAdd(
            name=self.name,
            data=self.data,
            options=self._wire,
            timestamp=self.stamped_ms,
            id=self.id,
            parent=self.options.parent_wire(),
            parent_key=self.parent_key,
            packed=self.options.packed,
            waits_for_children=self.waits_for_children,
        )

    def record(self, job_id: str) -> JobRecord:
        """The record of the job once it was added, as its hash would give it."""
        wire = self._wire
        fields = {
            b"name": self.name.encode(),
            b"data": self.data,
            b"opts": to_json(wire),
            b"timestamp": b"%d" % self.stamped_ms,
            b"delay": b"%d" % (wire.get("delay") or 0),
            b"priority": b"%d" % (wire.get("priority") or 0),
        }
        if self.parent_key is not None:
            fields[b"parent"] = to_json(self.options.parent_wire())
            fields[b"parentKey"] = self.parent_key.encode()
        if "de" in wire:
            fields[b"deid"] = wire["de"]["id"].encode()
        return JobRecord(job_id, fields)

    def job(self, answer: str | Existing, calls: JobCalls) -> Job[Any]:
        """The job that the server answered for: this one, or the one that existed."""
        if isinstance(answer, str):
            return Job(self.record(answer), calls)
        if not answer.hash:
            return Job(self.record(answer.id), calls, added=False)
        return Job(JobRecord.from_flat(answer.id, answer.hash), calls, added=False)


class JobBuilder:
    """Checks jobs by the rules of one queue."""

    __slots__ = ("_cluster", "_default_wire", "_defaults", "_ids", "_keys", "_payload")

    def __init__(
        self,
        keys: QueueKeys,
        *,
        defaults: JobOptions,
        ids: Ids,
        payload: PayloadCodec[Any] | None,
        cluster: bool,
    ) -> None:
        if ids not in ("uuid", "counter"):
            raise InvalidOption("ids", f"is {ids!r}", 'choose "uuid" or "counter"')
        if defaults.job_id is not None:
            raise InvalidOption("defaults", "give all jobs one id", "give job_id to `add`")
        self._keys = keys
        self._defaults = defaults
        self._default_wire = defaults.to_wire()
        self._ids = ids
        self._payload = payload
        self._cluster = cluster

    def without_defaults(self, names: Collection[str]) -> JobBuilder:
        """The same rules without the queue's defaults for these options."""
        kept = {name: value for name, value in self._defaults.given_fields().items() if name not in names}
        return JobBuilder(
            self._keys,
            defaults=JobOptions.of(kept),
            ids=self._ids,
            payload=self._payload,
            cluster=self._cluster,
        )

    def draft(self, name: str, data: Any, given: JobOptions | Mapping[str, Any] | None) -> PreparedJob:
        """One job, checked."""
        check_text("name", name)
        options = merge(self._defaults, given)
        wire = self._default_wire if options is self._defaults else options.to_wire()
        options.packed  # noqa: B018  # made once for all jobs with these options, and refused here if it must be
        raw = self._encoded(data)
        check_size(raw, wire, size_limit=options.size_limit)
        if options.repeat is not None:
            raise InvalidOption("repeat", "cannot be given to a single job", "use queue.schedulers.upsert(…)")
        draft = PreparedJob(name, raw, options, wire, options.job_id or self._new_id())
        if options.parent is not None:
            draft.parent_key = self._parent_key(options.parent.queue_key, options.parent.id)
        return draft

    def draft_each(self, job: NewJob | tuple[Any, ...]) -> PreparedJob:
        """One job of many: a `NewJob`, or a tuple of name, data and options."""
        match job:
            case NewJob(name, data, options):
                return self.draft(name, data, options)
            case (name,):
                return self.draft(name, NOTHING, None)
            case (name, data):
                return self.draft(name, data, None)
            case (name, data, options):
                return self.draft(name, data, options)
        raise InvalidOption(
            "jobs", f"hold a {type(job).__name__}", "give NewJob(name, data, options) or (name, data)"
        )

    def _new_id(self) -> str:
        return new_id() if self._ids == "uuid" else ""

    def _encoded(self, data: Any) -> bytes:
        if data is NOTHING:
            data = {}
        return self._payload.encode(data) if self._payload is not None else to_json(data)

    def _parent_key(self, queue_key: str, job_id: str) -> str:
        if self._cluster and hash_tag_of(f"{queue_key}:") != hash_tag_of(self._keys.base):
            raise CrossSlot(
                f"the parent's queue {queue_key!r} is in another slot than {self._keys.qualified!r}"
            )
        return f"{queue_key}:{job_id}"
