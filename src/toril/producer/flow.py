"""FlowProducer: families of jobs, where a parent runs when its children are done.

Guarantee: a flow is added in one step, whole or not at all; nobody sees a parent without its children. What can be
refused without the server is refused before any I/O; on a cluster that includes queues that do not share a hash tag.
What only the server knows (a parent that does not exist, a child of another parent, a deduplicated parent) it checks
before it adds the first job of the flow.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Generic, Self, TypeVar

from toril.commands import read
from toril.commands.add import Existing, add_flows
from toril.errors import Closed, InvalidOption, TorilError
from toril.jobs import Job, JobCalls
from toril.producer._add_batcher import MAX_BYTES, MAX_JOBS, CallLedger
from toril.producer._trace_context import carrying
from toril.producer.job_builder import JobBuilder, PreparedJob
from toril.protocol.keys import QueueKeys, check_text, hash_tag_of
from toril.protocol.option_names import knows_its_options
from toril.protocol.options import JobOptions, ParentRef
from toril.protocol.record import JobRecord
from toril.telemetry.hooks import NO_METRICS, MetricsCollector, Tracer
from toril.transport import AsyncTransport, ConnectionPolicy
from toril.transport.waiting import Closing

J = TypeVar("J")

NO_OPTIONS: Final = JobOptions()
# A family is walked no deeper: deeper ones are loops or mistakes.
_DEEPEST: Final = 200


@knows_its_options("an argument of FlowNode")
@dataclass(frozen=True, slots=True)
class FlowNode:
    """A job that has not been added yet, with the jobs it waits for."""

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
    """A job with its children, as added or as found."""

    job: J
    children: list[JobNode[J]]

    def walk(self) -> Iterable[J]:
        """All jobs of the family, parents first."""
        yield self.job
        for child in self.children:
            yield from child.walk()


class _Planned:
    """A node on its way into the queue."""

    __slots__ = ("answer", "calls", "children", "draft", "parent")

    def __init__(self, draft: PreparedJob, calls: JobCalls, parent: _Planned | None) -> None:
        self.draft = draft
        self.calls = calls
        self.parent = parent
        self.children: list[_Planned] = []
        self.answer: str | Existing = ""  # what the server said of it

    @property
    def key(self) -> str:
        return self.calls.keys.job(self.draft.id)

    def family(self) -> list[_Planned]:
        """Parents before children, one generation after the other, as Node sends them."""
        ordered: list[_Planned] = []
        generation = [self]
        while generation:
            ordered += generation
            generation = [child for one in generation for child in one.children]
        return ordered

    def added(self) -> JobNode[Job[Any]]:
        """The family as the server has it."""
        job: Job[Any] = self.draft.job(self.answer, self.calls)
        return JobNode(job, [child.added() for child in self.children])


@knows_its_options("an argument of FlowProducer")
class FlowProducer:
    """Adds flows to the queues of one server.

    flow = await FlowProducer().add(FlowNode("parent", queue="a", children=[FlowNode("child", queue="b")]))
    """

    def __init__(
        self,
        *,
        redis: Any = None,
        prefix: str = "bull",
        hash_tag: bool | None = None,
        defaults: JobOptions = NO_OPTIONS,
        policy: ConnectionPolicy | None = None,
        metrics: MetricsCollector | None = None,
        tracer: Tracer | None = None,
    ) -> None:
        self._transport = AsyncTransport(redis, policy=policy)
        self._metrics = metrics or NO_METRICS
        self._tracer = tracer
        self._prefix = prefix
        self._hash_tag = hash_tag
        self._defaults = defaults
        self._calls_by_queue: dict[tuple[str, str], JobCalls] = {}
        self._producer = uuid.uuid4().hex
        self._lanes: list[str] = []  # names of ledgers that no call uses now
        self._lanes_made = 0
        self._sequences: dict[str, CallLedger] = {}
        self._closing = Closing(self._shut, "toril-close-flows")
        self._closed = False

    # --- adding ---------------------------------------------------------------------------------------------

    async def add(self, flow: FlowNode) -> JobNode[Job[Any]]:
        """Adds a job and all its children, and theirs, in one step: all of them, or none when one is refused.

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

    async def add_bulk(self, flows: Iterable[FlowNode]) -> list[JobNode[Job[Any]]]:
        """Adds several flows, each whole or not at all. All are checked before the first is sent.

        If the server refuses some, the others are added all the same and the first refusal is raised.
        """
        given = [_check(flow) for flow in flows]
        if self._tracer is None:
            return await self._add_all(given)
        with self._tracer.adding("", [flow.name for flow in given], operation="addBulkFlows") as span:
            added = await self._add_all(given)
            span.added([root.job.id for root in added])
            return added

    async def _add_all(self, flows: Sequence[FlowNode]) -> list[JobNode[Job[Any]]]:
        if self._closed:
            raise Closed("the flow producer was closed")
        roots = [self._plan(flow) for flow in flows]
        refused: dict[int, TorilError] = {}
        for group in (part for slot in self._in_one_slot(roots) for part in _bounded(slot)):
            refused |= await self._send(group)
        added = [root.added() for root in roots if id(root) not in refused]
        for job in (job for root in added for job in root.walk() if job.added):
            self._metrics.increment_jobs_added(job.queue_name)
        if refused:
            raise _first_refusal(roots, refused)
        return added

    def _in_one_slot(self, roots: Sequence[_Planned]) -> list[list[_Planned]]:
        groups: dict[str, list[_Planned]] = {}
        for root in roots:
            tag = hash_tag_of(root.calls.keys.base) if self._transport.is_cluster else ""
            groups.setdefault(tag, []).append(root)
        return list(groups.values())

    def _plan(self, root: FlowNode) -> _Planned:
        """Checks a whole family without I/O; not by recursion, for families may be deep."""
        planned = self._draft(root, None)
        todo = [(root, planned, 1)]
        while todo:
            node, parent, depth = todo.pop()
            if depth > _DEEPEST:
                raise InvalidOption("children", f"are nested deeper than {_DEEPEST}", "flatten the flow")
            for child in node.children:
                one = self._draft(child, parent)
                parent.children.append(one)
                todo.append((child, one, depth + 1))
        return planned

    def _draft(self, node: FlowNode, parent: _Planned | None) -> _Planned:
        if self._tracer is None:
            return self._planned(node, parent, None)
        with self._tracer.adding(node.queue, [node.name], operation="addNode") as span:
            planned = self._planned(node, parent, span.carrier)
            span.added([planned.draft.id])
            return planned

    def _planned(self, node: FlowNode, parent: _Planned | None, carrier: str | None) -> _Planned:
        calls = self._calls(node.queue, node.prefix or self._prefix)
        drafter = JobBuilder(
            calls.keys, defaults=self._defaults, ids="uuid", payload=None, cluster=self._transport.is_cluster
        )
        given = dict(carrying(node.options, carrier))
        if parent is not None:
            given["parent"] = ParentRef(parent.draft.id, parent.calls.keys.qualified)
        draft = drafter.draft(node.name, node.data, given)
        draft.waits_for_children = bool(node.children)
        planned = _Planned(draft, calls, parent)
        if draft.options.job_id is not None:
            _refuse_own_ancestor(planned)
        return planned

    def _calls(self, queue: str, prefix: str) -> JobCalls:
        calls = self._calls_by_queue.get((prefix, queue))
        if calls is None:
            keys = QueueKeys(queue, prefix, self._hash_tag).resolve(cluster=self._transport.is_cluster)
            self._calls_by_queue[prefix, queue] = calls = JobCalls(self._transport, keys)
        return calls

    async def _send(self, roots: Sequence[_Planned]) -> dict[int, TorilError]:
        """Adds flows in one call and notes the answers; the refusals by the root's identity."""
        now_ms = await self._transport.now_ms()
        families = [root.family() for root in roots]
        flows = [[(one.calls.keys, one.draft.stamped(now_ms)) for one in family] for family in families]
        name = self._lanes.pop() if self._lanes else self._new_lane()
        try:
            ledger = self._lane(roots[0].calls.keys, name).next_entry()
            answers = await self._transport.run(add_flows(flows, ledger))
        finally:
            self._lanes.append(name)
        refused: dict[int, TorilError] = {}
        for root, family, answer in zip(roots, families, answers, strict=True):
            if isinstance(answer, TorilError):
                refused[id(root)] = answer
            else:
                for one, told in zip(family, answer, strict=True):
                    one.answer = told
        return refused

    def _new_lane(self) -> str:
        self._lanes_made += 1
        return f"ledger:{self._producer}:{self._lanes_made}"

    def _lane(self, keys: QueueKeys, name: str) -> CallLedger:
        """The ledger of a lane lies beside the first queue of the flow: a cluster wants it in the same slot."""
        key = keys.toril(name)
        return self._sequences.setdefault(key, CallLedger(key))

    # --- looking --------------------------------------------------------------------------------------------

    async def get_flow(
        self,
        job_id: str,
        queue: str,
        *,
        prefix: str | None = None,
        depth: int = 10,
        max_children: int = 20,
    ) -> JobNode[Job[Any]] | None:
        """A job with its children, down to `depth` and at most `max_children` of each kind for each job."""
        calls = self._calls(queue, prefix or self._prefix)
        flat = await self._transport.run(read.get_job(calls.keys, job_id))
        if not flat:
            return None
        job: Job[Any] = Job(JobRecord.from_flat(job_id, flat), calls)
        node: JobNode[Job[Any]] = JobNode(job, [])
        if depth <= 1:
            return node
        found = await job.get_dependencies()
        kinds = (list(found.processed), found.unprocessed, found.failed, list(found.ignored))
        for key in (key for kind in kinds for key in kind[:max_children]):
            child = await self._child(key, depth - 1, max_children)
            if child is not None:
                node.children.append(child)
        return node

    async def _child(self, key: str, depth: int, max_children: int) -> JobNode[Job[Any]] | None:
        qualified, _, job_id = key.rpartition(":")
        prefix, _, queue = qualified.rpartition(":")
        if not prefix:
            return None
        name = queue[1:-1] if self._calls_are_tagged(queue) else queue
        return await self.get_flow(job_id, name, prefix=prefix, depth=depth, max_children=max_children)

    def _calls_are_tagged(self, queue: str) -> bool:
        return (
            self._transport.is_cluster
            and self._hash_tag is None
            and queue.startswith("{")
            and queue.endswith("}")
        )

    # --- life -----------------------------------------------------------------------------------------------

    async def close(self) -> None:
        """Ends what waits for jobs and closes the connections. May be called twice."""
        self._closed = True
        await self._closing.finish()

    async def _shut(self) -> None:
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


def _refuse_own_ancestor(planned: _Planned) -> None:
    """A job that waits for itself would wait for ever."""
    ancestor = planned.parent
    while ancestor is not None:
        if ancestor.key == planned.key:
            raise InvalidOption(
                "job_id", f"{planned.draft.id!r} is the id of an ancestor in the flow", "give another"
            )
        ancestor = ancestor.parent


def _bounded(roots: Sequence[_Planned]) -> Iterator[list[_Planned]]:
    """Whole flows, as many as one call should have."""
    if len(roots) == 1:
        yield list(roots)
        return
    part: list[_Planned] = []
    jobs = size = 0
    for root in roots:
        family = root.family()
        more = sum(len(one.draft.data) for one in family)
        if part and (jobs + len(family) > MAX_JOBS or size + more > MAX_BYTES):
            yield part
            part, jobs, size = [], 0, 0
        part.append(root)
        jobs, size = jobs + len(family), size + more
    if part:
        yield part


def _first_refusal(roots: Sequence[_Planned], refused: dict[int, TorilError]) -> TorilError:
    error = next(refused[id(root)] for root in roots if id(root) in refused)
    if len(roots) > 1:
        error.add_note(f"{len(refused)} of {len(roots)} flows were not added")
    return error
