"""A job on its way from one queue to another: what it is called there, and what it becomes.

Guarantee: every field travels along and comes back. What the other kind has no place for goes into one it has: the
envelope's meta and unknown fields into a job's `_meta`, options that only BullMQ knows into the envelope's `opts`.

    list, stream → BullMQ   payload becomes data (its `_meta` the envelope's meta), attempts left become attempts
    BullMQ → list, stream   data becomes the payload; data that is no object stands under "data"
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from toril.errors import InvalidOption, NotSerializable
from toril.protocol.codec import to_json
from toril.protocol.duration import ms_to_datetime
from toril.protocol.envelope import Envelope, Meta, utc_text
from toril.protocol.keys import QueueKeys, check_job_id
from toril.protocol.record import JobRecord

MOVES = "moves"  # of the envelope's meta: how often the job was moved
_OWN_OPTIONS = ("attempts", "delay", "timestamp", "jobId")  # these travel as fields of the envelope
_META = "_meta"  # of a job's data
_UNKNOWN = "_unknown"  # of `_meta`: the envelope's unknown fields
_BARE = "bare"  # of the envelope: its payload holds data that was no object
_NAMESPACE = uuid.UUID("5d1c1a52-6f5a-5c0e-9a0e-7f0b8f6b9a11")


@dataclass(frozen=True, slots=True)
class TransferJob:
    """A job on its way; `mark` is its name in the book of arrivals, the same whenever it is sent again."""

    envelope: Envelope
    mark: str
    due_ms: int | None = None
    delivery: Any = None  # of a job that was waiting
    text: bytes = b""  # of one that was scheduled, as it lies in its queue


def mark_of(envelope: Envelope, *more: str) -> str:
    """Tells a job from all others that ever left its queue, and from itself on a later journey (it has moved since).

    Attempts may grow on the way, and a scheduled job may become a waiting one: the mark stays as it is.
    """
    identity = hashlib.sha256(dataclasses.replace(envelope, attempts=0).rewritten()).hexdigest()[:24]
    return " ".join((envelope.job_id, identity, *more))


def as_moved(envelope: Envelope) -> Envelope:
    """The envelope as it arrives: moved once more."""
    before = envelope.meta.extra.get(MOVES)
    moves = before + 1 if isinstance(before, int) else 1
    meta = dataclasses.replace(envelope.meta, extra={**envelope.meta.extra, MOVES: moves})
    return dataclasses.replace(envelope, meta=meta)


# --- from BullMQ -------------------------------------------------------------------------------------------------


def envelope_of(record: JobRecord, keys: QueueKeys) -> Envelope:
    """A BullMQ job as an envelope."""
    data = record.data
    bare = not isinstance(data, Mapping)
    payload = {"data": data} if bare else dict(data)
    meta, unknown = _unpacked(payload) or (_new_meta(record, keys), {})
    options = {name: value for name, value in record.opts.items() if name not in _OWN_OPTIONS}
    more = {**({"opts": options} if options else {}), **({_BARE: True} if bare else {})}
    return Envelope(
        job_id=record.id,
        task_type=record.name,
        payload=payload,
        attempts=record.attempts_made,
        max_attempts=max(1, record.max_attempts),
        meta=meta,
        extra={**unknown, **more},
    )


def _unpacked(payload: dict[str, Any]) -> tuple[Meta, dict[str, Any]] | None:
    """What a bridge put into the data, taken out of it; what else has that name stays."""
    known = payload.get(_META)
    if not isinstance(known, Mapping):
        return None
    fields = dict(known)
    unknown = fields.pop(_UNKNOWN, {})
    theirs = {_META: fields.pop(_META)} if _META in fields else {}
    try:
        meta = Meta(
            correlation_id=fields.pop("correlation_id"),
            user_id=fields.pop("user_id", None),
            enqueue_ts=fields.pop("enqueue_ts"),
            source=fields.pop("source"),
            extra=fields,
        )
    except (KeyError, InvalidOption):
        return None
    del payload[_META]
    payload.update(theirs)
    return meta, unknown if isinstance(unknown, dict) else {}


def _new_meta(record: JobRecord, keys: QueueKeys) -> Meta:
    """The same for the same job, however often it is sent."""
    return Meta(
        correlation_id=str(uuid.uuid5(_NAMESPACE, f"{keys.base}{record.id} {record.timestamp_ms}")),
        enqueue_ts=utc_text(ms_to_datetime(record.timestamp_ms)),
        source=f"bullmq:{keys.name}"[:255],
    )


# --- to BullMQ ---------------------------------------------------------------------------------------------------


def data_of(envelope: Envelope) -> bytes:
    """The data of the job that an envelope becomes."""
    payload = envelope.payload
    if envelope.extra.get(_BARE) is True and set(payload) == {"data"}:
        return _json(payload["data"])
    unknown = {name: value for name, value in envelope.extra.items() if name not in ("opts", _BARE)}
    packed = {
        **envelope.meta.as_dict(),
        **({_UNKNOWN: unknown} if unknown else {}),
        **({_META: payload[_META]} if _META in payload else {}),
    }
    return _json({**payload, _META: packed})


def _json(value: Any) -> bytes:
    try:
        return to_json(value)
    except NotSerializable:  # halves of characters: Node escapes them, too
        return json.dumps(value, allow_nan=False, separators=(",", ":")).encode("ascii")


def options_of(envelope: Envelope, due_ms: int | None, now_ms: int) -> dict[str, Any]:
    """BullMQ's options: those the job had there once, and what the envelope says."""
    kept = envelope.extra.get("opts")
    options = dict(kept) if isinstance(kept, Mapping) else {}
    options["attempts"] = max(1, envelope.max_attempts - envelope.attempts)
    options.setdefault("backoff", {"type": "exponential", "delay": 1000, "maxDelay": 300_000})
    if due_ms is not None and due_ms > now_ms:
        options["delay"] = due_ms - now_ms
    return options


def job_id_of(transfer_job: TransferJob, *, taken: bool) -> str:
    """The same id, or one that BullMQ can take; another one if it is `taken` by a different job."""
    job_id = transfer_job.envelope.job_id
    try:
        check_job_id(job_id)
    except InvalidOption:
        job_id = f"moved-{job_id.replace(':', '-')}"[:200]
        taken = taken or len(job_id) == 200
    return (
        f"{job_id[:200]}-{hashlib.sha256(transfer_job.mark.encode()).hexdigest()[:16]}" if taken else job_id
    )
