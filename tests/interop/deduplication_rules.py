"""Random histories of a queue whose jobs use the deduplication modes of BullMQ 6.7.0.

Only operations of which both generations leave the same keys are used: 6.7.0 pauses queues in another way.
"""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import initialize, rule

from tests.interop.adapters import QUEUE
from tests.interop.history_strategies import (
    DATA,
    ERRORS,
    ON_FAILURE,
    RESULTS,
    SPANS,
    child_of,
    flow_of,
    flows_of,
)
from tests.interop.random_history import FINISHED, LOCK_MS, PICK, SOMETIMES, WORKERS, RandomHistory, has

_IDS = st.sampled_from(["same-0", "same-1"])
_MODES = st.one_of(
    st.fixed_dictionaries({"id": _IDS}, optional={"replace": st.just(True)}),
    st.fixed_dictionaries(
        {"id": _IDS, "ttl": st.sampled_from([10_000, 60_000])}, optional={"extend": st.just(True)}
    ),
    st.fixed_dictionaries(
        {"id": _IDS, "keepLastIfActive": st.just(True)}, optional={"replace": st.just(True)}
    ),
    st.fixed_dictionaries({"id": _IDS, "reschedule": st.just(True)}, optional={"ttl": st.just(60_000)}),
)
_OPTIONS = st.fixed_dictionaries(
    {"attempts": st.integers(1, 3), "deduplication": _MODES},
    optional={
        "jobId": st.integers(0, 19).map(lambda number: f"job-{number}"),
        "priority": st.sampled_from([1, 2, 3]),
        "delay": SPANS,
        "lifo": st.just(True),
        "backoff": st.just({"type": "fixed", "delay": 10_000}),
        "removeOnComplete": st.booleans() | st.integers(1, 2),
        "removeOnFail": st.booleans() | st.integers(1, 2),
    },
)
_JOBS = st.fixed_dictionaries({"name": st.sampled_from(["mail", "resize"]), "data": DATA, "opts": _OPTIONS})


def _plain(job: dict[str, Any]) -> dict[str, Any]:
    """6.7.0 refuses a deduplicated child; 5.62.0 and toril add it."""
    options = {name: value for name, value in job["opts"].items() if name != "deduplication"}
    return {**job, "opts": options}


_FLOWS = flows_of(_JOBS.map(_plain))


class DeduplicationHistory(RandomHistory):
    """Duplicates come while the first job waits, is active, is delayed or has ended."""

    def may_remove_jobs(self) -> bool:
        """Whether each job that is stored to follow another one has its deduplication key.

        Without it 6.7.0 keeps what was to follow a removed job for ever; toril drops it.
        """
        keys = self.lockstep.keyspace
        stored = [key for key in keys if key.startswith(f"bull:{QUEUE}:dn:")]
        return all(key.replace(":dn:", ":de:") in keys for key in stored)

    @initialize(jobs=st.lists(_JOBS, min_size=1, max_size=4))
    def open(self, jobs: list[dict[str, Any]]) -> None:
        self.lockstep.begin()
        self.do("add_bulk", jobs=jobs)

    @rule(job=_JOBS)
    def add(self, job: dict[str, Any]) -> None:
        self.do("add", **job)

    @rule(jobs=st.lists(_JOBS, min_size=1, max_size=4))
    def add_bulk(self, jobs: list[dict[str, Any]]) -> None:
        self.do("add_bulk", jobs=jobs)

    @has("add_flow")
    @rule(flow=_FLOWS)
    def add_flow(self, flow: dict[str, Any]) -> None:
        self.flows += 1
        self.do("add_flow", flow=flow_of(self.flows, flow))

    @has("add", jobs=1)
    @rule(pick=PICK, anywhere=SOMETIMES, job=_JOBS, failure=st.sampled_from([None, *ON_FAILURE]))
    def add_child(self, pick: int, anywhere: bool, job: dict[str, Any], failure: str | None) -> None:
        self.do("add", **child_of(self.target(pick, anywhere, "active"), _plain(job), failure))

    @rule(worker=WORKERS)
    def pick_up(self, worker: str) -> None:
        token = self.token()
        self.take(self.do("pick_up", token=token, worker=worker), token)

    @rule(pick=PICK, value=RESULTS, fetch_next=st.booleans(), worker=WORKERS)
    def complete(self, pick: int, value: Any, fetch_next: bool, worker: str) -> None:
        if self.held:
            self.settle("complete", pick, False, value=value, fetch_next=fetch_next, worker=worker)

    @rule(pick=PICK, error=ERRORS, worker=WORKERS)
    def fail(self, pick: int, error: dict[str, str], worker: str) -> None:
        # 6.7.0 fetches with a retry as well, 5.62.0 with a finish only.
        if self.held:
            self.settle("fail", pick, False, error=error, fetch_next=False, worker=worker)

    @rule(
        burst=st.lists(_JOBS, min_size=1, max_size=3),
        worker=WORKERS,
        value=RESULTS,
        error=st.none() | ERRORS,
        fetch_next=st.booleans(),
    )
    def duplicates_of_an_active_job(
        self,
        burst: list[dict[str, Any]],
        worker: str,
        value: Any,
        error: dict[str, str] | None,
        fetch_next: bool,
    ) -> None:
        """Jobs are added while one is active, which ends then."""
        token = self.token()
        self.take(self.do("pick_up", token=token, worker=worker), token)
        for job in burst:
            self.do("add", **job)
        for job_id in [job_id for job_id, held in self.held.items() if held == token]:
            end: dict[str, Any] = {"value": value} if error is None else {"error": error}
            op = "complete" if error is None else "fail"
            fetches = fetch_next and error is None and self.may_finish(job_id, token)
            self.held.pop(job_id)
            self.take(self.do(op, id=job_id, token=token, fetch_next=fetches, worker=worker, **end), token)

    @has("retry", jobs=1)
    @rule(
        pick=PICK,
        state=st.sampled_from(FINISHED),
        reset=st.fixed_dictionaries({"made": st.booleans(), "started": st.booleans()}),
    )
    def retry(self, pick: int, state: str, reset: dict[str, bool]) -> None:
        job_id = self.target(pick, False, state)
        # 6.7.0 sends a job with a priority back to `prioritized`, 5.62.0 and toril to `wait`.
        if self.field(job_id, "priority") in (None, "0"):
            self.do("retry", id=job_id, state=state, reset=reset)

    @has("promote", jobs=1)
    @rule(pick=PICK)
    def promote(self, pick: int) -> None:
        self.do("promote", id=self.target(pick, False, "delayed"))

    @has("change_delay", jobs=1)
    @rule(pick=PICK, delay=SPANS)
    def change_delay(self, pick: int, delay: int) -> None:
        self.do("change_delay", id=self.target(pick, False, "delayed"), delay=delay)

    @has("remove", jobs=1)
    @rule(pick=PICK, children=st.booleans())
    def remove(self, pick: int, children: bool) -> None:
        if self.may_remove_jobs():
            self.do("remove", id=self.target(pick, True), children=children)

    @has("clean", jobs=3)
    @rule(
        grace=st.sampled_from([0, 10_000]), state=st.sampled_from(["wait", "delayed", "failed", "completed"])
    )
    def clean(self, grace: int, state: str) -> None:
        if self.may_remove_jobs():
            self.do("clean", grace=grace, limit=0, state=state)

    @has("drain", jobs=4)
    @rule(delayed=st.booleans())
    def drain(self, delayed: bool) -> None:
        if self.may_remove_jobs():
            self.do("drain", delayed=delayed)

    @has("remove_deduplication", jobs=1)
    @rule(same=_IDS)
    def remove_deduplication(self, same: str) -> None:
        self.do("remove_deduplication", id=same)

    @has("set_concurrency", jobs=2)
    @rule(concurrency=st.none() | st.integers(1, 3))
    def set_concurrency(self, concurrency: int | None) -> None:
        self.do("set_concurrency", concurrency=concurrency)

    @has("sweep_stalled")
    @rule(pick=PICK)
    def worker_dies(self, pick: int) -> None:
        """Its lock runs out, one sweep suspects its job, the next one takes it back.

        Not while a job is stored to follow another one: a sweep of toril adds those that 6.7.0 leaves behind.
        """
        if self.held and not any(key.startswith(f"bull:{QUEUE}:dn:") for key in self.lockstep.keyspace):
            job_id = sorted(self.held)[pick % len(self.held)]
            self.held.pop(job_id)
            self.do("lose_lock", id=job_id)
            for _ in range(2):
                self.do("sweep_stalled")
                self.do("advance", ms=2 * LOCK_MS)

    @rule(span=SPANS)
    def advance(self, span: int) -> None:
        self.do("advance", ms=span)
