"""Random lives of a queue, led on two sides at once (Hypothesis' stateful testing).

Each rule is one operation. Most are aimed at jobs in a fitting state, some at any job or at none, because
refusals must be alike too. What goes wrong is shrunk to the shortest way there.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    precondition,
    rule,
    run_state_machine_as_test,
)

from tests.interop.lives import (
    DATA,
    ERRORS,
    FLOWS,
    JOBS,
    PROGRESS,
    REPEATS,
    RESULTS,
    SPANS,
    flow_of,
)
from tests.interop.sides import QUEUE
from tests.interop.steps import Outcome, Step
from tests.interop.twins import Twins

F = TypeVar("F", bound=Callable[..., Any])

PICK = st.integers(0, 31)
SOMETIMES = st.sampled_from([False, False, False, True])
WORKERS = st.sampled_from(["w1", "w2"])
FINISHED = ("completed", "failed")
CLEANED = ("completed", "failed", "wait", "delayed", "prioritized", "active", "paused")
LOCK_MS = 30_000
PUMP = "token-of-the-pump"


def has(op: str, *, jobs: int = 0) -> Callable[[F], F]:
    """The rule is used only when both sides know the operation, and it has something to act on."""
    return precondition(lambda self: self.twins.can(op) and len(self.ids()) >= jobs)


class QueueLife(RuleBasedStateMachine):
    """One queue from its opening on. `twins` is given by a subclass."""

    twins: Twins

    def __init__(self) -> None:
        super().__init__()
        self.held: dict[str, str] = {}
        self.tokens = 0
        self.flows = 0

    @initialize(jobs=st.lists(JOBS, max_size=6))
    def open(self, jobs: list[dict[str, Any]]) -> None:
        self.twins.begin()
        if jobs:
            self.do("add_bulk", jobs=jobs)

    def do(self, op: str, **args: Any) -> Outcome:
        return self.twins.do(Step(op, args))

    def ids(self, *states: str) -> list[str]:
        """Ids in these states; all known jobs when no state is given."""
        if not states:
            return sorted(_jobs(self.twins))
        found: list[str] = []
        for state in states:
            entry = self.twins.keyspace.get(f"bull:{QUEUE}:{state}")
            rows: Any = [] if entry is None else entry.content
            found += [row if isinstance(row, str) else row[0] for row in rows]
        return found

    def target(self, pick: int, anywhere: bool, *states: str) -> str:
        """A job in a fitting state if there is one, and now and then any job, or one that does not exist."""
        fitting = [] if anywhere else self.ids(*states)
        candidates = fitting or [*self.ids(), "nobody"]
        return candidates[pick % len(candidates)]

    def token(self) -> str:
        self.tokens += 1
        return f"token-{self.tokens}"

    def take(self, outcome: Outcome, token: str) -> None:
        if outcome.refused is None and outcome.value is not None:
            self.held[outcome.value["id"]] = token

    def holder(self, pick: int, stranger: bool) -> tuple[str, str]:
        """A job to settle and the token to do it with; a stranger's token is not the lock's."""
        if not self.held:
            return self.target(pick, stranger, "active"), "no-token"
        job_id = sorted(self.held)[pick % len(self.held)]
        return job_id, "no-token" if stranger else self.held[job_id]

    def may_finish(self, job_id: str, token: str) -> bool:
        job = f"bull:{QUEUE}:{job_id}"
        lock = self.twins.keyspace.get(f"{job}:lock")
        children = any(f"{job}:{part}" in self.twins.keyspace for part in ("dependencies", "unsuccessful"))
        return lock is not None and lock.content == token and job_id in self.ids("active") and not children

    def settle(self, op: str, pick: int, stranger: bool, **args: Any) -> None:
        job_id, token = self.holder(pick, stranger)
        # A refused finish fetches nothing in Node; toril's pump, whose room does not depend on it, goes on.
        if "fetch_next" in args and not self.may_finish(job_id, token):
            args["fetch_next"] = False
        outcome = self.do(op, id=job_id, token=token, **args)
        if outcome.refused is None:
            self.held.pop(job_id, None)
        self.take(outcome, token)

    # Adding

    @has("add")
    @rule(job=JOBS)
    def add(self, job: dict[str, Any]) -> None:
        self.do("add", **job)

    @has("add_bulk")
    @rule(jobs=st.lists(JOBS, min_size=1, max_size=4))
    def add_bulk(self, jobs: list[dict[str, Any]]) -> None:
        self.do("add_bulk", jobs=jobs)

    @has("add_flow")
    @rule(flow=FLOWS)
    def add_flow(self, flow: dict[str, Any]) -> None:
        self.flows += 1
        self.do("add_flow", flow=flow_of(self.flows, flow))

    @has("upsert_scheduler")
    @rule(repeat=REPEATS, data=DATA)
    def upsert_scheduler(self, repeat: dict[str, Any], data: Any) -> None:
        # Another interval for a scheduler that exists is the one place where upstream's two versions differ.
        scheduler = f"every-{repeat['every']}" if "every" in repeat else "cron"
        self.do(
            "upsert_scheduler",
            id=scheduler,
            repeat=repeat,
            template={"name": "tick", "data": data, "opts": {"attempts": 1}},
        )

    @has("remove_scheduler")
    @rule(scheduler=st.sampled_from(["every-10000", "every-60000", "cron"]))
    def remove_scheduler(self, scheduler: str) -> None:
        self.do("remove_scheduler", id=scheduler)

    # Working

    @has("pick_up")
    @rule(worker=WORKERS, jobs=st.sampled_from([1, 1, 2, 4]))
    def pick_up(self, worker: str, jobs: int) -> None:
        for _ in range(jobs):
            token = self.token()
            self.take(self.do("pick_up", token=token, worker=worker), token)

    @has("complete", jobs=1)
    @rule(pick=PICK, stranger=SOMETIMES, value=RESULTS, fetch_next=st.booleans(), worker=WORKERS)
    def complete(self, pick: int, stranger: bool, value: Any, fetch_next: bool, worker: str) -> None:
        self.settle("complete", pick, stranger, value=value, fetch_next=fetch_next, worker=worker)

    @has("fail", jobs=1)
    @rule(pick=PICK, stranger=SOMETIMES, error=ERRORS, fetch_next=st.booleans(), worker=WORKERS)
    def fail(self, pick: int, stranger: bool, error: dict[str, str], fetch_next: bool, worker: str) -> None:
        self.settle("fail", pick, stranger, error=error, fetch_next=fetch_next, worker=worker)

    @has("complete", jobs=1)
    @rule(worker=WORKERS, value=RESULTS, error=st.none() | ERRORS, fetch_next=st.booleans())
    def work(self, worker: str, value: Any, error: dict[str, str] | None, fetch_next: bool) -> None:
        """A whole round of a worker: without it, few random lives would see a job end."""
        token = self.token()
        self.take(self.do("pick_up", token=token, worker=worker), token)
        for job_id in [job_id for job_id, held in self.held.items() if held == token]:
            self.held.pop(job_id)
            end = {"value": value} if error is None else {"error": error}
            op = "complete" if error is None else "fail"
            self.take(self.do(op, id=job_id, token=token, fetch_next=fetch_next, worker=worker, **end), token)

    @has("exchange", jobs=1)
    @rule(
        ends=st.lists(st.tuples(PICK, RESULTS, st.none() | ERRORS), max_size=4),
        take=st.integers(0, 4),
        lost=SOMETIMES,
    )
    def exchange(self, ends: list[tuple[int, Any, dict[str, str] | None]], take: int, lost: bool) -> None:
        """A pump's call: several jobs of one worker end, several are taken, all under the worker's own token."""
        if self.ids("repeat"):
            # Node schedules the next run between two pickups, a pump after its call: nobody promises either.
            ends, take = ends[:1], min(take, 1)
        mine = sorted(job_id for job_id, token in self.held.items() if token == PUMP)
        if lost and mine:
            self.do("lose_lock", id=mine[0])
        settle: dict[str, dict[str, Any]] = {}
        for pick, value, error in ends if mine else []:
            job_id = mine[pick % len(mine)]
            end = ("complete", {"value": value}) if error is None else ("fail", {"error": error})
            settle.setdefault(job_id, {"op": end[0], "args": {"id": job_id, **end[1]}})
        outcome = self.do("exchange", settle=list(settle.values()), take=take, token=PUMP, worker="w1")
        for job_id in settle:
            self.held.pop(job_id)
        for job in outcome.value["taken"]:
            self.held[job["id"]] = PUMP

    @has("give_back", jobs=1)
    @rule(pick=PICK, stranger=SOMETIMES)
    def give_back(self, pick: int, stranger: bool) -> None:
        self.settle("give_back", pick, stranger)

    @has("postpone", jobs=1)
    @rule(pick=PICK, stranger=SOMETIMES, span=SPANS)
    def postpone(self, pick: int, stranger: bool, span: int) -> None:
        self.settle("postpone", pick, stranger, until=self.twins.now + span)

    @has("wait_for_children", jobs=1)
    @rule(pick=PICK, stranger=SOMETIMES)
    def wait_for_children(self, pick: int, stranger: bool) -> None:
        job_id, token = self.holder(pick, stranger)
        outcome = self.do("wait_for_children", id=job_id, token=token)
        if outcome.value:
            self.held.pop(job_id, None)

    @has("extend_lock", jobs=1)
    @rule(pick=PICK, stranger=SOMETIMES)
    def extend_lock(self, pick: int, stranger: bool) -> None:
        job_id, token = self.holder(pick, stranger)
        self.do("extend_lock", id=job_id, token=token, duration=LOCK_MS)

    @has("extend_locks", jobs=1)
    @rule(stranger=SOMETIMES)
    def extend_locks(self, stranger: bool) -> None:
        held = {**self.held, **({"nobody": "no-token"} if stranger else {})}
        self.do(
            "extend_locks",
            ids=sorted(held),
            tokens=[held[job_id] for job_id in sorted(held)],
            duration=LOCK_MS,
        )

    @has("sweep_stalled")
    @rule()
    def sweep_stalled(self) -> None:
        self.do("sweep_stalled")

    @precondition(lambda self: self.held)
    @rule(pick=PICK)
    def lose_lock(self, pick: int) -> None:
        self.do("lose_lock", id=sorted(self.held)[pick % len(self.held)])

    @precondition(lambda self: self.held and self.twins.can("sweep_stalled"))
    @rule(pick=PICK, everybody=st.booleans())
    def worker_dies(self, pick: int, everybody: bool) -> None:
        """Its locks run out, one sweep suspects its jobs, the next one takes them back."""
        held = sorted(self.held)
        for job_id in held if everybody else [held[pick % len(held)]]:
            self.do("lose_lock", id=job_id)
        for _ in range(2):
            self.do("sweep_stalled")
            self.do("advance", ms=2 * LOCK_MS)

    @rule()
    def wake(self) -> None:
        self.do("wake")

    @rule(span=SPANS)
    def advance(self, span: int) -> None:
        self.do("advance", ms=span)

    # Changing one job

    @has("update_progress", jobs=1)
    @rule(pick=PICK, anywhere=SOMETIMES, progress=PROGRESS)
    def update_progress(self, pick: int, anywhere: bool, progress: Any) -> None:
        self.do("update_progress", id=self.target(pick, anywhere, "active"), progress=progress)

    @has("log", jobs=1)
    @rule(pick=PICK, anywhere=SOMETIMES, line=st.text(max_size=8), keep=st.sampled_from([2, 1000]))
    def log(self, pick: int, anywhere: bool, line: str, keep: int) -> None:
        self.do("log", id=self.target(pick, anywhere, "active"), line=line, keep=keep)

    @has("update_data", jobs=1)
    @rule(pick=PICK, data=DATA)
    def update_data(self, pick: int, data: Any) -> None:
        self.do("update_data", id=self.target(pick, True), data=data)

    @has("promote", jobs=1)
    @rule(pick=PICK, anywhere=SOMETIMES)
    def promote(self, pick: int, anywhere: bool) -> None:
        self.do("promote", id=self.target(pick, anywhere, "delayed"))

    @has("change_priority", jobs=1)
    @rule(pick=PICK, anywhere=SOMETIMES, priority=st.integers(0, 4), lifo=st.booleans())
    def change_priority(self, pick: int, anywhere: bool, priority: int, lifo: bool) -> None:
        job_id = self.target(pick, anywhere, "wait", "prioritized", "delayed", "paused")
        self.do("change_priority", id=job_id, priority=priority, lifo=lifo)

    @has("change_delay", jobs=1)
    @rule(pick=PICK, anywhere=SOMETIMES, delay=SPANS)
    def change_delay(self, pick: int, anywhere: bool, delay: int) -> None:
        self.do("change_delay", id=self.target(pick, anywhere, "delayed"), delay=delay)

    @has("retry", jobs=2)
    @rule(pick=PICK, anywhere=SOMETIMES, state=st.sampled_from(FINISHED))
    def retry(self, pick: int, anywhere: bool, state: str) -> None:
        self.do("retry", id=self.target(pick, anywhere, state), state=state)

    @has("remove", jobs=2)
    @rule(pick=PICK, children=st.booleans())
    def remove(self, pick: int, children: bool) -> None:
        self.do("remove", id=self.target(pick, True), children=children)

    # Changing the queue

    @has("pause", jobs=2)
    @rule()
    def pause(self) -> None:
        self.do("pause")

    @has("resume", jobs=1)
    @rule()
    def resume(self) -> None:
        self.do("resume")

    @has("drain", jobs=4)
    @rule(delayed=st.booleans())
    def drain(self, delayed: bool) -> None:
        self.do("drain", delayed=delayed)

    @has("clean", jobs=3)
    @rule(
        grace=st.sampled_from([0, 10_000, 60_000]),
        limit=st.sampled_from([0, 1, 3]),
        state=st.sampled_from(CLEANED),
    )
    def clean(self, grace: int, limit: int, state: str) -> None:
        self.do("clean", grace=grace, limit=limit, state=state)

    @has("obliterate", jobs=6)
    @rule(force=st.booleans())
    def obliterate(self, force: bool) -> None:
        self.do("obliterate", force=force)
        self.held = {job_id: token for job_id, token in self.held.items() if job_id in self.ids("active")}

    @has("retry_jobs", jobs=2)
    @rule(state=st.sampled_from(FINISHED), count=st.sampled_from([1, 1000]))
    def retry_jobs(self, state: str, count: int) -> None:
        self.do("retry_jobs", state=state, count=count, before=self.twins.now)

    @has("promote_jobs", jobs=2)
    @rule(count=st.sampled_from([1, 1000]))
    def promote_jobs(self, count: int) -> None:
        self.do("promote_jobs", count=count)

    @has("rate_limit", jobs=3)
    @rule()
    def rate_limit(self) -> None:
        self.do("rate_limit", duration=10_000)

    @has("set_concurrency", jobs=3)
    @rule(concurrency=st.integers(1, 3))
    def set_concurrency(self, concurrency: int) -> None:
        self.do("set_concurrency", concurrency=concurrency)

    @has("remove_deduplication", jobs=2)
    @rule(same=st.sampled_from(["same-0", "same-1"]))
    def remove_deduplication(self, same: str) -> None:
        self.do("remove_deduplication", id=same)


def _jobs(twins: Twins) -> list[str]:
    """Every job that has a hash; the queue's own hashes have no `name` and `timestamp`."""
    base = f"bull:{QUEUE}:"
    return [
        key.removeprefix(base)
        for key, entry in twins.keyspace.items()
        if key.startswith(base) and isinstance(entry.content, dict) and "timestamp" in entry.content
    ]


def live_through(
    twins: Twins, *, sequences: int, steps: int, fixed: bool = False, shrink: bool = True
) -> None:
    """Lead both sides through random lives; raises `Differs` with the shortest way to a difference."""
    machine = type("Life", (QueueLife,), {"twins": twins})
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=sequences,
            stateful_step_count=steps,
            deadline=None,
            database=None,
            derandomize=fixed,
            print_blob=False,
            report_multiple_bugs=False,
            phases=(Phase.generate, Phase.shrink) if shrink else (Phase.generate,),
            suppress_health_check=list(HealthCheck),
        ),
    )
