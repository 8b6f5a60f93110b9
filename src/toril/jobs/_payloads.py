"""Payloads of a job before and after the codecs of its queue."""

from __future__ import annotations

from toril.jobs._operations import Operation, ThreadCall
from toril.jobs.calls import BlockingJobCalls, JobCalls
from toril.protocol.codecs import PayloadField
from toril.protocol.record import JobRecord

AnyCalls = JobCalls | BlockingJobCalls


def plain_field(calls: AnyCalls, record: JobRecord, name: bytes, where: PayloadField) -> bytes | None:
    """A field of a record as it was before the codecs; None if there is nothing to decode."""
    raw, codecs = record.fields.get(name), calls.codecs
    return None if codecs is None or not raw else codecs.decode(record.name, raw, where)


def encode(calls: AnyCalls, name: str, raw: bytes, where: PayloadField) -> Operation[bytes]:
    """The JSON of a payload after the codecs."""
    codecs = calls.codecs
    if codecs is None:
        return raw
    encoded: bytes = yield ThreadCall(lambda: codecs.encode(name, raw, where))
    return encoded


def decode_result(calls: AnyCalls, name: str, raw: bytes | None) -> Operation[bytes | None]:
    """The JSON of a result as it was before the codecs."""
    codecs = calls.codecs
    if codecs is None or not raw:
        return raw
    decoded: bytes = yield ThreadCall(lambda: codecs.decode(name, raw, "result"))
    return decoded
