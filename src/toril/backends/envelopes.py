"""What list and stream queues share: deliveries of envelopes, and how an outcome settles them.

Guarantee: every message that is fetched reaches a handler or the dead letters, readable or not, and no job is
delivered more than once beyond the attempts it asks for.

    attempts made = attempts in the envelope + deliveries without an outcome (their worker died)
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import assert_never

from toril.commands.envelope_settle import FetchedEnvelope
from toril.commands.envelopes import SettlementKind
from toril.errors import (
    MalformedValue,
    NotSerializable,
    PermanentError,
    RedisOutOfMemory,
    RedisUnavailable,
    TorilError,
)
from toril.protocol.duration import ms_to_datetime
from toril.protocol.envelope import DeadLetter, DlqReason, Envelope, dlq_reason, error_text
from toril.protocol.outcome import (
    Completed,
    Failed,
    Outcome,
    Postponed,
    RateLimited,
    Requeued,
    Retry,
    UnknownName,
    WaitingForChildren,
)
from toril.protocol.refusals import META_FIELD, Refusals

# How long an idle worker blocks in one call. A job that is scheduled for sooner than this may start that much late.
LONGEST_WAIT = 0.5
STALLED_ERROR = "stalled"  # `last_error` of a job whose workers died
SPENT_ERROR = "no attempts left"  # … of a message that had none left


class EnvelopeDelivery:
    """A fetched message: `reference` finds it in its queue, `fence` distinguishes this delivery from a later one."""

    __slots__ = (
        "attempts_made",
        "envelope",
        "fence",
        "id",
        "lock_lost",
        "max_attempts",
        "name",
        "reference",
        "text",
    )

    def __init__(self, envelope: Envelope, taken: FetchedEnvelope) -> None:
        self.id = envelope.job_id
        self.name = envelope.task_type
        self.envelope = envelope
        self.text = taken.text
        self.reference = taken.reference
        self.fence = taken.fence
        self.attempts_made = envelope.attempts + taken.unsettled_deliveries
        self.max_attempts = envelope.max_attempts
        self.lock_lost = False

    @property
    def refusals(self) -> Refusals | None:
        return Refusals.from_meta(self.envelope.meta.extra.get(META_FIELD))


@dataclass(frozen=True, slots=True)
class SettleFields:
    """An outcome as arguments of the scripts."""

    kind: SettlementKind
    due_ms: int = 0
    text: bytes = b""


def settle_fields(
    delivery: EnvelopeDelivery, outcome: Outcome, now_ms: int, result_ms: int = 0
) -> SettleFields:
    """How an outcome settles a message; its result (JSON) is kept for `result_ms`.

    A message that can be read and not be written again (numbers out of range) becomes a dead letter, unchanged.
    """
    try:
        return _settle_fields(delivery, outcome, now_ms, result_ms)
    except NotSerializable as error:
        return _unchanged_dead_letter(delivery, error, now_ms)


def _unchanged_dead_letter(delivery: EnvelopeDelivery, error: NotSerializable, now_ms: int) -> SettleFields:
    envelope = Envelope.of_unreadable(delivery.text, entry_id=delivery.envelope.job_id[:200])
    return dead_letter_fields(envelope, "validation_error", error_text(error), now_ms)


def _settle_fields(delivery: EnvelopeDelivery, outcome: Outcome, now_ms: int, result_ms: int) -> SettleFields:
    match outcome:
        case Completed():
            return SettleFields("done", result_ms, outcome.value) if result_ms else _DONE
        case Failed():
            return _failed(delivery, outcome, now_ms)
        case Retry():
            return _scheduled_fields(
                "retry", _with_attempts(delivery, delivery.attempts_made + 1), outcome.delay, now_ms
            )
        case Postponed():
            return _scheduled_fields(
                "later", _with_attempts(delivery, delivery.attempts_made), outcome.delay, now_ms
            )
        case RateLimited():
            return _scheduled_fields(
                "later", _with_attempts(delivery, delivery.attempts_made), outcome.delay or 0.0, now_ms
            )
        case UnknownName():
            return _scheduled_fields("later", _with_refusals(delivery, outcome), outcome.delay, now_ms)
        case Requeued():
            return SettleFields("again", text=_with_attempts(delivery, delivery.attempts_made))
        case WaitingForChildren():
            reason = "jobs of list and stream queues have no children: use a BullMQ queue"
            return _failed(delivery, Failed(reason, error=PermanentError(reason)), now_ms)
        case _:
            assert_never(outcome)


_DONE = SettleFields("done")


def _with_attempts(delivery: EnvelopeDelivery, attempts: int) -> bytes:
    envelope = delivery.envelope
    if attempts == envelope.attempts and META_FIELD not in envelope.meta.extra:
        return delivery.text
    return dataclasses.replace(_without_refusals(envelope), attempts=attempts).rewritten()


def _with_refusals(delivery: EnvelopeDelivery, outcome: UnknownName) -> bytes:
    """The text with a record of its refusals."""
    note = {META_FIELD: outcome.refusals.to_meta()}
    return delivery.envelope.rewritten_with(attempts=delivery.attempts_made, note=note)


def _without_refusals(envelope: Envelope) -> Envelope:
    """The envelope without the record of refusals: a worker had a handler for its name."""
    meta = envelope.meta
    if META_FIELD not in meta.extra:
        return envelope
    rest = {name: value for name, value in meta.extra.items() if name != META_FIELD}
    return dataclasses.replace(envelope, meta=dataclasses.replace(meta, extra=rest))


def _scheduled_fields(kind: SettlementKind, text: bytes, delay: float, now_ms: int) -> SettleFields:
    # A job that is due now is scheduled, too: a repeated call recognises its text in the sorted set.
    return SettleFields(kind, now_ms + max(0, round(delay * 1000)), text)


_EXHAUSTED = ("transient_exhausted", "timeout", "stalled")


def _failed(delivery: EnvelopeDelivery, outcome: Failed, now_ms: int) -> SettleFields:
    envelope = dataclasses.replace(_without_refusals(delivery.envelope), attempts=delivery.attempts_made + 1)
    error = outcome.error
    exhausted = outcome.kind in _EXHAUSTED
    reason: DlqReason = (
        "max_attempts_exceeded" if exhausted else dlq_reason(error or PermanentError(), exhausted=False)
    )
    last_error = outcome.reason if error is None else error_text(error)
    return dead_letter_fields(envelope, reason, last_error, now_ms)


def dead_letter_fields(envelope: Envelope, reason: DlqReason, last_error: str, now_ms: int) -> SettleFields:
    """Moves a message to the dead letters."""
    letter = DeadLetter.from_envelope(envelope, reason, last_error, now=ms_to_datetime(now_ms))
    return SettleFields("dead", text=letter.to_bytes())


def read_envelope(text: bytes, entry_id: str) -> tuple[Envelope, MalformedValue | None]:
    """The envelope of a message; for one that cannot be read, a replacement and the reason."""
    try:
        return Envelope.from_bytes(text), None
    except MalformedValue as error:
        return Envelope.of_unreadable(text, entry_id=entry_id), error


def reject_fields(
    delivery: EnvelopeDelivery, problem: MalformedValue | None, max_attempts: int | None, now_ms: int
) -> SettleFields | None:
    """The dead letter of a message that must not be run: it cannot be read, or has no attempt left.

    A job whose worker died in its last attempt gets one more: the job may not have caused it.
    """
    envelope = delivery.envelope
    if problem is not None:
        return dead_letter_fields(envelope, "validation_error", error_text(problem), now_ms)
    limit = max_attempts or envelope.max_attempts
    if envelope.attempts < limit and delivery.attempts_made <= limit:
        return None
    ended = dataclasses.replace(envelope, attempts=delivery.attempts_made)
    why = STALLED_ERROR if delivery.attempts_made > envelope.attempts else SPENT_ERROR
    try:
        return dead_letter_fields(ended, "max_attempts_exceeded", why, now_ms)
    except NotSerializable as error:
        return _unchanged_dead_letter(delivery, error, now_ms)


def fetch_error(text: str) -> TorilError | None:
    """Why the server returned no jobs; None if it gave no reason."""
    if not text:
        return None
    return RedisOutOfMemory(text) if "OOM" in text else RedisUnavailable(text)
