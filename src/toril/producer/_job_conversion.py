"""Conversion of jobs that are moved between queues of different kinds.

Guarantee: no field is lost, also if the job is moved back. A field that the other kind lacks is stored in one it has:
the envelope's meta and unknown fields in `_meta` of the data, options that only BullMQ has in the envelope's `opts`.

    list, stream → BullMQ   payload becomes data (its `_meta` the envelope's meta), attempts left become attempts
    BullMQ → list, stream   data becomes the payload; data that is no object is stored as `data`
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

MOVES = "moves"  # in the envelope's meta: how often the job was moved
_OWN_OPTIONS = ("attempts", "delay", "timestamp", "jobId")  # these are fields of the envelope
_META = "_meta"  # in a job's data
_UNKNOWN = "_unknown"  # in `_meta`: the envelope's unknown fields
_BARE = "bare"  # in the envelope: its payload holds data that was no object
_NAMESPACE = uuid.UUID("5d1c1a52-6f5a-5c0e-9a0e-7f0b8f6b9a11")


@dataclass(frozen=True, slots=True)
class TransferJob:
    """A job that is moved. `transfer_id` identifies it in the target's ledger, also when it is sent again."""

    envelope: Envelope
    transfer_id: str
    due_ms: int | None = None
    delivery: Any = None  # of a waiting job
    text: bytes = b""  # of a scheduled job, as it is stored


def transfer_id_of(envelope: Envelope, *more: str) -> str:
    """Returns an id that no other job of the queue has, nor the same job after another move.

    It does not depend on the attempts, nor on whether the job is scheduled or waiting: both may change meanwhile.
    """
    identity = hashlib.sha256(dataclasses.replace(envelope, attempts=0).rewritten()).hexdigest()[:24]
    return " ".join((envelope.job_id, identity, *more))


def as_moved(envelope: Envelope) -> Envelope:
    """Returns the envelope with its count of moves increased."""
    before = envelope.meta.extra.get(MOVES)
    moves = before + 1 if isinstance(before, int) else 1
    meta = dataclasses.replace(envelope.meta, extra={**envelope.meta.extra, MOVES: moves})
    return dataclasses.replace(envelope, meta=meta)


# --- from BullMQ -------------------------------------------------------------------------------------------------


def envelope_of(record: JobRecord, keys: QueueKeys) -> Envelope:
    """Returns the envelope of a BullMQ job."""
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


def _unpacked(payload: dict[str, object]) -> tuple[Meta, dict[str, object]] | None:
    """Removes and returns what a move stored in `_meta`; a `_meta` of the application stays."""
    known = payload.get(_META)
    if not isinstance(known, Mapping):
        return None
    fields = dict(known)
    unknown = fields.pop(_UNKNOWN, {})
    original = {_META: fields.pop(_META)} if _META in fields else {}
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
    payload.update(original)
    return meta, unknown if isinstance(unknown, dict) else {}


def _new_meta(record: JobRecord, keys: QueueKeys) -> Meta:
    """Returns a meta that is always the same for the same job."""
    return Meta(
        correlation_id=str(uuid.uuid5(_NAMESPACE, f"{keys.base}{record.id} {record.timestamp_ms}")),
        enqueue_ts=utc_text(ms_to_datetime(record.timestamp_ms)),
        source=f"bullmq:{keys.name}"[:255],
    )


# --- to BullMQ ---------------------------------------------------------------------------------------------------


def data_of(envelope: Envelope) -> bytes:
    """Returns the data of the BullMQ job for an envelope."""
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


def _json(value: object) -> bytes:
    try:
        return to_json(value)
    except NotSerializable:  # lone surrogates: Node escapes them, too
        return json.dumps(value, allow_nan=False, separators=(",", ":")).encode("ascii")


def options_of(envelope: Envelope, due_ms: int | None, now_ms: int) -> dict[str, object]:
    """Returns BullMQ's options: those that the job had before, and those of the envelope."""
    kept = envelope.extra.get("opts")
    options = dict(kept) if isinstance(kept, Mapping) else {}
    options["attempts"] = max(1, envelope.max_attempts - envelope.attempts)
    options.setdefault("backoff", {"type": "exponential", "delay": 1000, "maxDelay": 300_000})
    if due_ms is not None and due_ms > now_ms:
        options["delay"] = due_ms - now_ms
    return options


def job_id_of(transfer_job: TransferJob, *, taken: bool) -> str:
    """Returns the id for BullMQ: the same if it is valid there and not `taken` by another job."""
    job_id = transfer_job.envelope.job_id
    try:
        check_job_id(job_id)
    except InvalidOption:
        job_id = f"moved-{job_id.replace(':', '-')}"[:200]
        taken = taken or len(job_id) == 200
    return (
        f"{job_id[:200]}-{hashlib.sha256(transfer_job.transfer_id.encode()).hexdigest()[:16]}"
        if taken
        else job_id
    )
