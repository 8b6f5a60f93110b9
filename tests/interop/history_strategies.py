"""What random histories are made of: jobs, options, values and spans that both sides must store alike.

Spans are multiples of ten seconds (see `GRAIN_MS`). Options that toril refuses before any I/O are not drawn:
they never reach the wire.
"""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

SPANS = st.sampled_from([10_000, 20_000, 40_000, 120_000])

_TEXT = st.text(st.characters(codec="utf-8"), max_size=6)
_SCALARS = st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.floats(-1e9, 1e9, width=32) | _TEXT
_VALUES = st.recursive(
    _SCALARS, lambda part: st.lists(part, max_size=3) | st.dictionaries(_TEXT, part, max_size=3), max_leaves=6
)

DATA = st.dictionaries(_TEXT, _VALUES, max_size=3)
RESULTS = _VALUES
PROGRESS = st.integers(0, 100) | st.dictionaries(_TEXT, _SCALARS, max_size=2)

ERRORS = st.fixed_dictionaries(
    {
        "name": st.sampled_from(["Error", "Error", "UnrecoverableError"]),
        "message": st.sampled_from(["no route", "bad request", "ünïcode 💥", ""]),
        "stack": st.sampled_from(["Error: no route\n    at handler", "trace"]),
    }
)

_BACKOFFS = st.fixed_dictionaries(
    {"type": st.sampled_from(["fixed", "exponential"]), "delay": st.sampled_from([10_000, 20_000])}
)
_KEEPS = st.one_of(
    st.booleans(),
    st.integers(1, 3),
    st.fixed_dictionaries({"count": st.integers(1, 3)}),
    st.fixed_dictionaries({"age": st.sampled_from([10, 60]), "count": st.integers(1, 3)}),
    st.fixed_dictionaries({"age": st.sampled_from([10, 60])}),
)
_DEDUPLICATIONS = st.fixed_dictionaries(
    {"id": st.sampled_from(["same-0", "same-1"])}, optional={"replace": st.just(True)}
) | st.fixed_dictionaries(
    {"id": st.sampled_from(["same-0", "same-1"]), "ttl": st.sampled_from([10_000, 60_000])},
    optional={"extend": st.just(True), "replace": st.just(True)},
)


def _with_delay(opts: dict[str, Any]) -> dict[str, Any]:
    """To a debounced job that has no delay we give one: both sides must be told that it has none."""
    how = opts.get("deduplication", {})
    return {"delay": 0, **opts} if how.get("extend") and how.get("replace") else opts


_OPTIONS = st.fixed_dictionaries(
    {"attempts": st.integers(1, 3)},
    optional={
        "jobId": st.integers(0, 9).map(lambda number: f"job-{number}"),
        "priority": st.sampled_from([1, 2, 3, 2**21]),
        "delay": SPANS,
        "lifo": st.just(True),
        "backoff": _BACKOFFS,
        "removeOnComplete": _KEEPS,
        "removeOnFail": _KEEPS,
        "stackTraceLimit": st.integers(0, 2),
        "keepLogs": st.sampled_from([2, 50]),
        "deduplication": _DEDUPLICATIONS,
    },
).map(_with_delay)

JOBS = st.fixed_dictionaries({"name": st.sampled_from(["mail", "resize"]), "data": DATA, "opts": _OPTIONS})

REPEATS = st.sampled_from([{"every": 10_000}, {"every": 60_000}, {"pattern": "0 3 * * *", "tz": "UTC"}])

# Without jobId: a flow's jobs get given ids, or each side would invent its own.
_FLOW_OPTIONS = ("attempts", "backoff", "removeOnComplete", "removeOnFail", "priority", "delay", "lifo")
_CHILD_OPTIONS = (*_FLOW_OPTIONS, "deduplication")
ON_FAILURE = (
    "failParentOnFailure",
    "ignoreDependencyOnFailure",
    "removeDependencyOnFailure",
    "continueParentOnFailure",
)


def flows_of(jobs: st.SearchStrategy[dict[str, Any]]) -> st.SearchStrategy[dict[str, Any]]:
    """Flows of up to three generations; `flow_of` makes one that can be added."""
    return st.fixed_dictionaries(
        {
            "parent": jobs,
            "children": st.lists(st.tuples(jobs, st.lists(jobs, max_size=2)), min_size=1, max_size=3),
            "failure": st.sampled_from([None, *ON_FAILURE]),
        }
    )


FLOWS = flows_of(JOBS)


def flow_of(serial: int, drawn: dict[str, Any]) -> dict[str, Any]:
    """Up to three generations on one queue, as FlowProducer takes them.

    A child that has no children may be deduplicated unless it is the first: toril refuses a flow whose parent is
    deduplicated or has only such children, because it would never run. Node adds it.
    """
    flags = {drawn["failure"]: True} if drawn["failure"] else {}
    children = []
    for number, (child, grandchildren) in enumerate(drawn["children"]):
        job_id = f"flow-{serial}-{number}"
        node = _node(child, job_id, flags, deduplicated=number > 0 and not grandchildren)
        if grandchildren:
            node["children"] = [
                _node(job, f"{job_id}-{n}", flags, deduplicated=n > 0) for n, job in enumerate(grandchildren)
            ]
        children.append(node)
    return {**_node(drawn["parent"], f"flow-{serial}", {}), "children": children}


def child_of(parent: str, job: dict[str, Any], failure: str | None) -> dict[str, Any]:
    """A job for an existing parent of the same queue, as `add` takes it."""
    options = {name: value for name, value in job["opts"].items() if name in _CHILD_OPTIONS}
    flags = {failure: True} if failure else {}
    opts = {**options, **flags, "parent": {"id": parent, "queue": "bull:q"}}
    return {"name": job["name"], "data": job["data"], "opts": opts}


def _node(
    job: dict[str, Any], job_id: str, flags: dict[str, bool], *, deduplicated: bool = False
) -> dict[str, Any]:
    kept = _CHILD_OPTIONS if deduplicated else _FLOW_OPTIONS
    options = {name: value for name, value in job["opts"].items() if name in kept}
    return {
        "name": job["name"],
        "queueName": "q",
        "data": job["data"],
        "opts": {**options, **flags, "jobId": job_id},
    }
