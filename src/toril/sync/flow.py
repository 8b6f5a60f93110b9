"""`FlowProducer` for code without an event loop: the same names, blocking."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping

from toril.jobs import BlockingJob, BlockingJobCalls
from toril.jobs import Job as AsyncJob
from toril.producer import FlowNode, JobNode
from toril.producer import FlowProducer as AsyncFlowProducer
from toril.producer.flow import NO_CODECS, NO_OPTIONS, NO_QUEUES
from toril.protocol.codecs import GivenCodecs
from toril.protocol.compatibility import BULLMQ_PREFIX
from toril.protocol.json_types import JsonValue
from toril.protocol.option_names import knows_its_options
from toril.protocol.options import JobOptions
from toril.sync._facade import Facade
from toril.telemetry.hooks import MetricsCollector, Tracer
from toril.transport import BlockingTransport, ConnectionPolicy


@knows_its_options("an argument of FlowProducer")
class FlowProducer(Facade[AsyncFlowProducer]):
    """Adds flows: trees of jobs, in which a parent runs after its children."""

    def __init__(
        self,
        *,
        redis: object = None,
        prefix: str = BULLMQ_PREFIX,
        hash_tag: bool | None = None,
        defaults: JobOptions = NO_OPTIONS,
        queue_defaults: Mapping[str, JobOptions] = NO_QUEUES,
        codecs: GivenCodecs = None,
        queue_codecs: Mapping[str, GivenCodecs] = NO_CODECS,
        policy: ConnectionPolicy | None = None,
        metrics: MetricsCollector | None = None,
        tracer: Tracer | None = None,
    ) -> None:
        super().__init__(
            functools.partial(
                AsyncFlowProducer,
                prefix=prefix,
                hash_tag=hash_tag,
                defaults=defaults,
                queue_defaults=queue_defaults,
                codecs=codecs,
                queue_codecs=queue_codecs,
                policy=policy,
                metrics=metrics,
                tracer=tracer,
            ),
            redis,
        )
        self._transport = BlockingTransport(self.address, policy=policy)

    def add(self, flow: FlowNode) -> JobNode[BlockingJob[JsonValue]]:
        """Adds a job and all its children, and theirs, in one step: all of them, or none when one is refused."""
        return self._blocking(self._call(self._inner.add, flow))

    def add_bulk(self, flows: Iterable[FlowNode]) -> list[JobNode[BlockingJob[JsonValue]]]:
        """Adds several flows, each whole or not at all. All are checked before the first is sent."""
        return [self._blocking(node) for node in self._call(self._inner.add_bulk, flows)]

    def get_flow(
        self,
        job_id: str,
        queue: str,
        *,
        prefix: str | None = None,
        depth: int = 10,
        max_children: int = 20,
    ) -> JobNode[BlockingJob[JsonValue]] | None:
        """Returns a job with its children, down to `depth` and at most `max_children` of each kind for each job."""
        found = self._call(
            self._inner.get_flow, job_id, queue, prefix=prefix, depth=depth, max_children=max_children
        )
        return None if found is None else self._blocking(found)

    def close(self) -> None:
        """Closes the connections. May be called twice."""
        super().close()
        self._transport.close()

    async def _end(self) -> None:
        await self._inner.close()

    def _blocking(self, node: JobNode[AsyncJob[JsonValue]]) -> JobNode[BlockingJob[JsonValue]]:
        calls = BlockingJobCalls(self._transport, node.job.keys, codecs=node.job.codecs)
        job: BlockingJob[JsonValue] = BlockingJob(node.job.record, calls, added=node.job.added)
        return JobNode(job, [self._blocking(child) for child in node.children])
