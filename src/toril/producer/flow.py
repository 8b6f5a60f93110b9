"""FlowProducer: trees of jobs, where a parent runs when its children are done.

Guarantee: a flow is added in one step, completely or not at all. What can be checked without the server is checked
before any I/O; on a cluster that includes queues that do not share a hash tag. The server checks the rest (a parent
that does not exist, a child of another parent, a deduplicated parent) before it adds the first job of the flow.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Generic, Self, TypeVar

from toril.commands import read
from toril.commands.add import Existing, add_flows
from toril.errors import Closed, InvalidOption, TorilError
from toril.jobs import Job, JobCalls
from toril.producer._add_batcher import MAX_BYTES, MAX_JOBS, CallLedger
from toril.producer._trace_context import with_trace_context
from toril.producer.job_builder import JobBuilder, PreparedJob
from toril.protocol.codecs import GivenCodecs, QueueCodecs
from toril.protocol.keys import QueueKeys, check_queue_name, check_text, hash_tag_of
from toril.protocol.option_names import knows_its_options
from toril.protocol.options import JobOptions, ParentRef, merge
from toril.protocol.record import JobRecord
from toril.telemetry.hooks import NO_METRICS, MetricsCollector, Tracer
from toril.transport import AsyncTransport, ConnectionPolicy
from toril.transport.waiting import Closing

J = TypeVar("J")

NO_OPTIONS: Final = JobOptions()
NO_QUEUES: Final[Mapping[str, JobOptions]] = {}
NO_CODECS: Final[Mapping[str, GivenCodecs]] = {}
# Deeper flows are loops or mistakes.
_DEEPEST: Final = 200


@knows_its_options("an argument of FlowNode")
@dataclass(frozen=True, slots=True)
class FlowNode:
    """A job to be added, with its children."""

    name: str
    queue: str = field(kw_only=True)
    data: Any = field(default_factory=dict, kw_only=True)
    options: JobOptions | None = field(default=None, kw_only=True)  # None: the defaults of the producer
    children: Sequence[FlowNode] = field(default=(), kw_only=True)
    prefix: str | None = field(default=None, kw_only=True)  # None: the producer's

    def __post_init__(self) -> None:
        check_text("name", self.name)
        for child in self.children:
            if not isinstance(child, FlowNode):
                raise InvalidOption("children", f"hold a {type(child).__name__}", "give FlowNode(…) objects")


@dataclass(frozen=True, slots=True)
class JobNode(Generic[J]):
    """A job with its children, as added or as read."""

    job: J
    children: list[JobNode[J]]

    def walk(self) -> Iterable[J]:
        """Returns all jobs of the flow, parents first."""
        yield self.job
        for child in self.children:
            yield from child.walk()


class _PlannedJob:
    """A job of a flow that is being added."""

    __slots__ = ("builder", "calls", "children", "parent", "prepared", "reply")

    def __init__(
        self, prepared: PreparedJob, calls: JobCalls, parent: _PlannedJob | None, builder: JobBuilder
    ) -> None:
        self.prepared = prepared
        self.builder = builder
        self.calls = calls
        self.parent = parent
        self.children: list[_PlannedJob] = []
        self.reply: str | Existing = ""  # the server's reply

    @property
    def key(self) -> str:
        return self.calls.keys.job(self.prepared.id)

    def members(self) -> list[_PlannedJob]:
        """Returns this job and all below it, level by level, as Node sends them."""
        ordered: list[_PlannedJob] = []
        level = [self]
        while level:
            ordered += level
            level = [child for one in level for child in one.children]
        return ordered

    def added(self) -> JobNode[Job]:
        """Returns the flow as the server has it."""
        job: Job = self.prepared.job(self.reply, self.calls)
        return JobNode(job, [child.added() for child in self.children])


@knows_its_options("an argument of FlowProducer")
class FlowProducer:
    """Adds flows to the queues of one server.

    flow = await FlowProducer().add(FlowNode("parent", queue="a", children=[FlowNode("child", queue="b")]))
    """

    def __init__(
        self,
        *,
        redis: object = None,
        prefix: str = "bull",
        hash_tag: bool | None = None,
        defaults: JobOptions = NO_OPTIONS,
        queue_defaults: Mapping[str, JobOptions] = NO_QUEUES,
        codecs: GivenCodecs = None,
        queue_codecs: Mapping[str, GivenCodecs] = NO_CODECS,
        policy: ConnectionPolicy | None = None,
        metrics: MetricsCollector | None = None,
        tracer: Tracer | None = None,
    ) -> None:
        """`defaults` are the options of jobs that do not set them; `queue_defaults`, by queue, replace some of them.

        `codecs` are those of all queues, except of those in `queue_codecs`.
        """
        self._queue_defaults = {
            check_queue_name(queue): merge(defaults, options) for queue, options in queue_defaults.items()
        }
        self._transport = AsyncTransport(redis, policy=policy)
        self._metrics = metrics or NO_METRICS
        self._tracer = tracer
        self._prefix = prefix
        self._hash_tag = hash_tag
        self._defaults = defaults
        self._codecs = QueueCodecs.of(codecs)
        self._queue_codecs = {
            check_queue_name(queue): QueueCodecs.of(given) for queue, given in queue_codecs.items()
        }
        self._calls_by_queue: dict[tuple[str, str], JobCalls] = {}
        self._producer = uuid.uuid4().hex
        self._free_ledgers: list[str] = []  # names of ledgers that no call uses now
        self._ledgers_made = 0
        self._call_ledgers: dict[str, CallLedger] = {}
        self._closing = Closing(self._close_all, "toril-close-flows")
        self._closed = False

    # --- adding ---------------------------------------------------------------------------------------------

    async def add(self, flow: FlowNode) -> JobNode[Job]:
        """Adds a job and all jobs below it in one step: all of them, or none when one is refused.

        A job of the flow that existed already is returned as it is stored, with `added` False.
        """
        _check(flow)
        if self._tracer is None:
            (added,) = await self._add_all([flow])
            return added
        with self._tracer.adding(flow.queue, [flow.name], operation="addFlow") as span:
            (added,) = await self._add_all([flow])
            span.added([added.job.id])
            return added

    async def add_bulk(self, flows: Iterable[FlowNode]) -> list[JobNode[Job]]:
        """Adds several flows, each completely or not at all. All are checked before the first is sent.

        If the server refuses some, the others are added all the same and the first refusal is raised.
        """
        given = [_check(flow) for flow in flows]
        if self._tracer is None:
            return await self._add_all(given)
        with self._tracer.adding("", [flow.name for flow in given], operation="addBulkFlows") as span:
            added = await self._add_all(given)
            span.added([root.job.id for root in added])
            return added

    async def _add_all(self, flows: Sequence[FlowNode]) -> list[JobNode[Job]]:
        if self._closed:
            raise Closed("the flow producer was closed; make a new FlowProducer")
        roots = [self._plan(flow) for flow in flows]
        if self._codecs is not None or self._queue_codecs:
            for one in (member for root in roots for member in root.members()):
                await one.builder.encode([one.prepared])
        refused: dict[int, TorilError] = {}
        for group in (part for slot in self._in_one_slot(roots) for part in _bounded(slot)):
            refused |= await self._send(group)
        added = [root.added() for root in roots if id(root) not in refused]
        for job in (job for root in added for job in root.walk() if job.added):
            self._metrics.increment_jobs_added(job.queue_name)
        if refused:
            raise _first_refusal(roots, refused)
        return added

    def _in_one_slot(self, roots: Sequence[_PlannedJob]) -> list[list[_PlannedJob]]:
        groups: dict[str, list[_PlannedJob]] = {}
        for root in roots:
            tag = hash_tag_of(root.calls.keys.base) if self._transport.is_cluster else ""
            groups.setdefault(tag, []).append(root)
        return list(groups.values())

    def _plan(self, root: FlowNode) -> _PlannedJob:
        """Checks a flow without I/O; not by recursion, because flows may be deep."""
        planned = self._planned_and_traced(root, None)
        todo = [(root, planned, 1)]
        while todo:
            node, parent, depth = todo.pop()
            if depth > _DEEPEST:
                raise InvalidOption("children", f"are nested deeper than {_DEEPEST}", "flatten the flow")
            for child in node.children:
                one = self._planned_and_traced(child, parent)
                parent.children.append(one)
                todo.append((child, one, depth + 1))
        return planned

    def _planned_and_traced(self, node: FlowNode, parent: _PlannedJob | None) -> _PlannedJob:
        if self._tracer is None:
            return self._planned(node, parent, None)
        with self._tracer.adding(node.queue, [node.name], operation="addNode") as span:
            planned = self._planned(node, parent, span.carrier)
            span.added([planned.prepared.id])
            return planned

    def _planned(self, node: FlowNode, parent: _PlannedJob | None, carrier: str | None) -> _PlannedJob:
        calls = self._calls(node.queue, node.prefix or self._prefix)
        job_builder = JobBuilder(
            calls.keys,
            defaults=self._queue_defaults.get(node.queue, self._defaults),
            ids="short",
            payload=None,
            cluster=self._transport.is_cluster,
            codecs=calls.codecs,
        )
        given = dict(with_trace_context(node.options, carrier))
        if parent is not None:
            given["parent"] = ParentRef(parent.prepared.id, parent.calls.keys.qualified)
        prepared = job_builder.build(node.name, node.data, given)
        prepared.waits_for_children = bool(node.children)
        planned = _PlannedJob(prepared, calls, parent, job_builder)
        if prepared.options.job_id is not None:
            _refuse_own_ancestor(planned)
        if parent is not None:
            _refuse_keep_last(prepared.options)
        return planned

    def _calls(self, queue: str, prefix: str) -> JobCalls:
        calls = self._calls_by_queue.get((prefix, queue))
        if calls is None:
            keys = QueueKeys(queue, prefix, self._hash_tag).resolve(cluster=self._transport.is_cluster)
            codecs = self._queue_codecs.get(queue, self._codecs)
            self._calls_by_queue[prefix, queue] = calls = JobCalls(self._transport, keys, codecs=codecs)
        return calls

    async def _send(self, roots: Sequence[_PlannedJob]) -> dict[int, TorilError]:
        """Adds flows in one call and sets their replies; returns the refusals by the identity of the root."""
        now_ms = await self._transport.now_ms()
        trees = [root.members() for root in roots]
        flows = [[(one.calls.keys, one.prepared.to_add(now_ms)) for one in members] for members in trees]
        name = self._free_ledgers.pop() if self._free_ledgers else self._new_ledger_name()
        try:
            ledger = self._ledger(roots[0].calls.keys, name).next_entry()
            replies = await self._transport.run(add_flows(flows, ledger))
        finally:
            self._free_ledgers.append(name)
        refused: dict[int, TorilError] = {}
        for root, members, reply in zip(roots, trees, replies, strict=True):
            if isinstance(reply, TorilError):
                refused[id(root)] = reply
            else:
                for one, job_reply in zip(members, reply, strict=True):
                    one.reply = job_reply
        return refused

    def _new_ledger_name(self) -> str:
        self._ledgers_made += 1
        return f"ledger:{self._producer}:{self._ledgers_made}"

    def _ledger(self, keys: QueueKeys, name: str) -> CallLedger:
        """Returns the ledger of that name at the first queue of the flow: on a cluster it must be in the same slot."""
        key = keys.toril(name)
        return self._call_ledgers.setdefault(key, CallLedger(key))

    # --- reading --------------------------------------------------------------------------------------------

    async def get_flow(
        self,
        job_id: str,
        queue: str,
        *,
        prefix: str | None = None,
        depth: int = 10,
        max_children: int = 20,
    ) -> JobNode[Job] | None:
        """Returns a job with its children, down to `depth` and at most `max_children` of each kind for each job."""
        calls = self._calls(queue, prefix or self._prefix)
        flat = await self._transport.run(read.get_job(calls.keys, job_id))
        if not flat:
            return None
        job: Job = Job(JobRecord.from_flat(job_id, flat), calls)
        node: JobNode[Job] = JobNode(job, [])
        if depth <= 1:
            return node
        found = await job.get_dependencies()
        kinds = (list(found.processed), found.unprocessed, found.failed, list(found.ignored))
        for key in (key for kind in kinds for key in kind[:max_children]):
            child = await self._child(key, depth - 1, max_children)
            if child is not None:
                node.children.append(child)
        return node

    async def _child(self, key: str, depth: int, max_children: int) -> JobNode[Job] | None:
        qualified, _, job_id = key.rpartition(":")
        prefix, _, queue = qualified.rpartition(":")
        if not prefix:
            return None
        name = queue[1:-1] if self._has_hash_tag(queue) else queue
        return await self.get_flow(job_id, name, prefix=prefix, depth=depth, max_children=max_children)

    def _has_hash_tag(self, queue: str) -> bool:
        return (
            self._transport.is_cluster
            and self._hash_tag is None
            and queue.startswith("{")
            and queue.endswith("}")
        )

    # --- closing --------------------------------------------------------------------------------------------

    async def close(self) -> None:
        """Ends waits for jobs and closes the connections. May be called twice."""
        self._closed = True
        await self._closing.finish()

    async def _close_all(self) -> None:
        try:
            for calls in self._calls_by_queue.values():
                await calls.close()
        finally:
            await self._transport.close()

    async def __aenter__(self) -> Self:
        try:
            await self._transport.connect()
        except BaseException as error:
            await self.__aexit__(None, error, None)
            raise
        return self

    async def __aexit__(self, _: object, error: object, __: object) -> None:
        self._closed = True
        await self._closing.after(error)


def _check(flow: object) -> FlowNode:
    if not isinstance(flow, FlowNode):
        raise InvalidOption(
            "flow", f"is a {type(flow).__name__}", "give FlowNode(name, queue=…, children=[…])"
        )
    return flow


def _refuse_keep_last(options: JobOptions) -> None:
    """The parent would not know of a child that is added later."""
    if options.deduplication is not None and options.deduplication.keep_last_if_active:
        problem = "cannot be used for a job with a parent"
        raise InvalidOption("deduplication.keep_last_if_active", problem, "give it to the root of the flow")


def _refuse_own_ancestor(planned: _PlannedJob) -> None:
    """Raises if a job has the id of one of its ancestors: it would wait for itself."""
    ancestor = planned.parent
    while ancestor is not None:
        if ancestor.key == planned.key:
            raise InvalidOption(
                "job_id", f"{planned.prepared.id!r} is the id of an ancestor in the flow", "give another"
            )
        ancestor = ancestor.parent


def _bounded(roots: Sequence[_PlannedJob]) -> Iterator[list[_PlannedJob]]:
    """Splits flows into the calls that add them; a flow is never split."""
    if len(roots) == 1:
        yield list(roots)
        return
    part: list[_PlannedJob] = []
    jobs = size = 0
    for root in roots:
        members = root.members()
        more = sum(len(one.prepared.data) for one in members)
        if part and (jobs + len(members) > MAX_JOBS or size + more > MAX_BYTES):
            yield part
            part, jobs, size = [], 0, 0
        part.append(root)
        jobs, size = jobs + len(members), size + more
    if part:
        yield part


def _first_refusal(roots: Sequence[_PlannedJob], refused: dict[int, TorilError]) -> TorilError:
    error = next(refused[id(root)] for root in roots if id(root) in refused)
    if len(roots) > 1:
        error.add_note(f"{len(refused)} of {len(roots)} flows were not added")
    return error
