"""Makes the jobs that the results of a worker become in another queue.

Guarantee: on a cluster, a queue in another slot is refused before any I/O.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from toril.commands.add import JobToAdd
from toril.commands.command import Command
from toril.commands.forward import settle_and_forward
from toril.commands.worker import FetchReply, Settlement
from toril.errors import CrossSlot, InvalidOption, MalformedValue
from toril.protocol.json_types import JsonObject
from toril.protocol.keys import QueueKeys, hash_tag_of
from toril.protocol.record import JobRecord
from toril.protocol.results_to import RESULT_OF, ResultsTo


@dataclass(frozen=True, slots=True)
class ResultForwarder:
    """The results of one queue, which go to another."""

    keys: QueueKeys
    target: QueueKeys
    results_to: ResultsTo

    @classmethod
    def between(cls, keys: QueueKeys, results_to: ResultsTo, *, is_cluster: bool) -> ResultForwarder:
        """Checks that the other queue is another one, and can be written in the same call."""
        prefix = keys.prefix if results_to.prefix is None else results_to.prefix
        target = QueueKeys(results_to.queue, prefix, hash_tag=keys.hash_tag).resolve(cluster=is_cluster)
        if target.base == keys.base:
            raise InvalidOption("results_to", "is the queue of the worker itself", "name another queue")
        if is_cluster and hash_tag_of(target.base) != hash_tag_of(keys.base):
            raise CrossSlot(
                f"the queue of results_to {target.qualified!r} is in another slot than {keys.qualified!r}"
            )
        return cls(keys, target, results_to)

    def forwarding(
        self,
        command: Command[FetchReply],
        settlements: Sequence[Settlement],
        records: Mapping[str, JobRecord],
        now_ms: int,
    ) -> Command[FetchReply]:
        """The call, which also adds the results of the jobs that it completes. `records` are the jobs by id."""
        forwards = [
            (place, self._job(records[one.job_id], now_ms))
            for place, one in enumerate(settlements)
            if one.kind == "completed"
        ]
        return settle_and_forward(command, self.target, forwards) if forwards else command

    def _job(self, source: JobRecord, now_ms: int) -> JobToAdd:
        wire: JsonObject = {
            **self.results_to.options.to_wire(),
            RESULT_OF: self.keys.job(source.id),
            **_trace_context(source),
        }
        return JobToAdd(
            name=self.results_to.name or source.name,
            data=b"",  # the script takes the result itself
            options=wire,
            timestamp=now_ms,
            id=uuid.uuid4().hex,
        )


def _trace_context(source: JobRecord) -> JsonObject:
    """The job continues the trace in which its source was added."""
    try:
        carrier = source.opts.get("tm")
    except MalformedValue:
        return {}
    return {"tm": carrier} if isinstance(carrier, str) else {}
