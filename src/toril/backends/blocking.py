"""Calls of a BullMQ worker without an event loop: settling, sweeping, reporting, and the next runs of schedulers.

Guarantee: outcomes are encoded and written as those of `BullmqBackend`. An outcome is accepted once: a second one under
the same lock is refused.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Mapping, Sequence
from typing import Final

from toril.backends._bullmq_delivery import BullmqConfig, BullmqDelivery
from toril.backends._outcome_encoding import OutcomeEncoder, requeue_settlement
from toril.backends._worker_report import publish_report
from toril.backends.base import FinishedJob
from toril.backends.next_run import next_step
from toril.commands import groups, locks
from toril.commands.locks import Sweep
from toril.commands.worker import Pickup, Settlement, settle
from toril.errors import TorilError
from toril.protocol.backoff import Backoff
from toril.protocol.keys import QueueKeys
from toril.protocol.outcome import Outcome, Undecided, decide_outcome, no_retry
from toril.protocol.record import JobRecord
from toril.protocol.worker_options import WorkerOptions
from toril.transport import BlockingTransport

# Bounds of one call: well under the time that other clients of the server notice.
SETTLED_PER_CALL: Final = 500
_SUSPECTS_PER_STEP: Final = 500


class BlockingBackend:
    """One BullMQ queue, for code without an event loop."""

    def __init__(self, keys: QueueKeys, transport: BlockingTransport, config: BullmqConfig) -> None:
        self.keys = keys
        self._transport = transport
        self._config = config
        self._encoder = OutcomeEncoder(config)
        self._pickup = Pickup(token=str(uuid.uuid4()), lock_ms=config.lock_ms, worker=config.worker_id)

    def settle(self, finished: Sequence[FinishedJob[BullmqDelivery]]) -> list[TorilError | None]:
        """Writes outcomes in order; returns why each was refused, or None."""
        ack_errors: list[TorilError | None] = []
        for start in range(0, len(finished), SETTLED_PER_CALL):
            part = [self._settlement(one) for one in finished[start : start + SETTLED_PER_CALL]]
            now_ms = self._transport.now_ms()
            call = settle(
                self.keys, part, capacity=0, pickup=self._pickup, now_ms=now_ms, has_group_limits=True
            )
            ack_errors += self._transport.run(call).ack_errors
        return ack_errors

    def _settlement(self, one: FinishedJob[BullmqDelivery]) -> Settlement:
        made = self._encoder.settlement_of(one.delivery, one.outcome, self._pickup)
        return made or requeue_settlement(one.delivery)  # a rate limit or a wait for children: it runs again

    def begin_scheduler_runs(self, records: Sequence[JobRecord]) -> None:
        """Creates the next jobs of the schedulers that created these; raises when the server cannot be reached."""
        steps = [
            step
            for one in records
            if b"rjk" in one.fields
            and (step := next_step(self.keys, one, self._transport.now_ms())) is not None
        ]
        if steps:
            self._transport.run_many(steps)

    def sweep(self) -> list[str]:
        """Recovers jobs of dead workers; returns their ids. Does nothing when a worker has swept just now."""
        config, began = self._config, time.monotonic()
        sweep = Sweep(str(uuid.uuid4()), round(config.heartbeat * 1000))
        left = self._transport.run(
            locks.sweep_begin(
                self.keys, now_ms=self._transport.now_ms(), interval_ms=config.stalled_ms, sweep=sweep
            )
        )
        moved: list[str] = []
        while left > 0 and time.monotonic() - began < config.heartbeat:
            step = locks.sweep_step(
                self.keys, max_stalled=config.max_stalled, suspects=_SUSPECTS_PER_STEP, sweep=sweep
            )
            part, left = self._transport.run(step)
            moved += part
        self._transport.run(groups.sweep(self.keys))
        return moved

    def publish_report(self, figures: Mapping[str, object]) -> None:
        """Publishes the worker report."""
        publish_report(self._transport, self.keys, self._config, figures)


def outcome_of(error: BaseException, delivery: BullmqDelivery, options: WorkerOptions) -> Outcome:
    """The outcome of a failed attempt, by the rules of a worker. A backoff that is a function is not known here."""
    try:
        backoff = Backoff.from_wire(delivery.record.opts.get("backoff"))
        attempts = delivery.max_attempts
    except TorilError:
        backoff, attempts = None, 1  # malformed options: the error of the attempt itself is more useful
    outcome = decide_outcome(
        error,
        attempts_made=delivery.attempts_made,
        max_attempts=attempts,
        backoff=backoff,
        options=options,
    )
    if isinstance(outcome, Undecided):
        return no_retry(
            error,
            TorilError(
                "the backoff of the job is a function of a Worker, and this program has none; give it backoffs=…"
            ),
        )
    return outcome


def reject_reason(record: JobRecord) -> str | None:
    """Why a job must fail without being run; None if it may run."""
    if b"name" not in record.fields:
        return "the job's data is gone: it was removed while it waited"
    return record.deferred_failure if b"defa" in record.fields else None


__all__ = ["BlockingBackend", "BullmqConfig", "outcome_of", "reject_reason"]
