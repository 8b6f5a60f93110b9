"""What producers and workers do in a random history: add, pick up, renew, end, and die."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule

from tests.interop.history_strategies import (
    DATA,
    ERRORS,
    FLOWS,
    JOBS,
    ON_FAILURE,
    REPEATS,
    RESULTS,
    SPANS,
    child_of,
    flow_of,
)
from tests.interop.random_history import (
    FETCH_LOOP_TOKEN,
    LOCK_MS,
    PICK,
    SOMETIMES,
    WORKERS,
    RandomHistory,
    has,
)


class WorkingRules(RandomHistory):
    """Jobs come and go."""

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
        scheduler = f"every-{repeat['every']}" if "every" in repeat else "cron"
        template = {"name": "tick", "data": data, "opts": {"attempts": 1}}
        self.do("upsert_scheduler", id=scheduler, repeat=repeat, template=template)

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
    @rule(pick=PICK, wrong_token=SOMETIMES, value=RESULTS, fetch_next=st.booleans(), worker=WORKERS)
    def complete(self, pick: int, wrong_token: bool, value: Any, fetch_next: bool, worker: str) -> None:
        self.settle("complete", pick, wrong_token, value=value, fetch_next=fetch_next, worker=worker)

    @has("fail", jobs=1)
    @rule(pick=PICK, wrong_token=SOMETIMES, error=ERRORS, fetch_next=st.booleans(), worker=WORKERS)
    def fail(
        self, pick: int, wrong_token: bool, error: dict[str, str], fetch_next: bool, worker: str
    ) -> None:
        self.settle("fail", pick, wrong_token, error=error, fetch_next=fetch_next, worker=worker)

    @has("complete", jobs=1)
    @rule(worker=WORKERS, value=RESULTS, error=st.none() | ERRORS, fetch_next=st.booleans())
    def work(self, worker: str, value: Any, error: dict[str, str] | None, fetch_next: bool) -> None:
        """A whole round of a worker: without it, few random histories would see a job end."""
        token = self.token()
        self.take(self.do("pick_up", token=token, worker=worker), token)
        for job_id in [job_id for job_id, held in self.held.items() if held == token]:
            self.held.pop(job_id)
            end = {"value": value} if error is None else {"error": error}
            op = "complete" if error is None else "fail"
            # Node's script fetches nothing when it refuses the end; toril's call does.
            fetches = fetch_next and self.may_finish(job_id, token)
            self.take(self.do(op, id=job_id, token=token, fetch_next=fetches, worker=worker, **end), token)

    @has("exchange", jobs=1)
    @rule(
        ends=st.lists(st.tuples(PICK, RESULTS, st.none() | ERRORS), max_size=4),
        take=st.integers(0, 4),
        lost=SOMETIMES,
    )
    def exchange(self, ends: list[tuple[int, Any, dict[str, str] | None]], take: int, lost: bool) -> None:
        """A call of the fetch loop: several jobs of one worker end, several are fetched, all under its own token."""
        if self.ids("repeat"):
            # Node schedules the next run between two pickups, a fetch loop after its call: neither order is guaranteed.
            ends, take = ends[:1], min(take, 1)
        mine = sorted(job_id for job_id, token in self.held.items() if token == FETCH_LOOP_TOKEN)
        if lost and mine:
            self.do("lose_lock", id=mine[0])
        settle: dict[str, dict[str, Any]] = {}
        for pick, value, error in ends if mine else []:
            job_id = mine[pick % len(mine)]
            end = ("complete", {"value": value}) if error is None else ("fail", {"error": error})
            settle.setdefault(job_id, {"op": end[0], "args": {"id": job_id, **end[1]}})
        outcome = self.do(
            "exchange", settle=list(settle.values()), take=take, token=FETCH_LOOP_TOKEN, worker="w1"
        )
        for job_id in settle:
            self.held.pop(job_id)
        for job in outcome.value["taken"]:
            self.held[job["id"]] = FETCH_LOOP_TOKEN

    @has("add", jobs=1)
    @rule(pick=PICK, anywhere=SOMETIMES, job=JOBS, failure=st.sampled_from([None, *ON_FAILURE]))
    def add_child(self, pick: int, anywhere: bool, job: dict[str, Any], failure: str | None) -> None:
        """A handler adds a child of its own job, or somebody adds one to a job in any state."""
        parent = self.target(pick, anywhere, "active")
        self.do("add", **child_of(parent, job, failure))

    @has("run_handler", jobs=1)
    @rule(pick=PICK, value=RESULTS, waits=SOMETIMES, one=st.booleans())
    def run_handler(self, pick: int, value: Any, waits: bool, one: bool) -> None:
        """A handler ends, and its worker does what follows: also when the end is refused for the job's children."""
        job_id, token = self.holder(pick, False)
        if self.may_settle(job_id, token):
            self.end_handler(job_id, value, waits, one)

    @has("run_handler", jobs=1)
    @rule(
        worker=WORKERS,
        parent=JOBS,
        children=st.lists(JOBS, min_size=1, max_size=2),
        failure=st.sampled_from([None, *ON_FAILURE]),
        meanwhile=st.none() | ERRORS,
        value=RESULTS,
        waits=SOMETIMES,
    )
    def handler_adds_children(
        self,
        worker: str,
        parent: dict[str, Any],
        children: list[dict[str, Any]],
        failure: str | None,
        meanwhile: dict[str, str] | None,
        value: Any,
        waits: bool,
    ) -> None:
        """A handler adds children, another worker may fail what comes next, then the handler ends."""
        token, other = self.token(), self.token()
        if not self.ids("wait"):
            self.do("add", **parent)
        self.take(self.do("pick_up", token=token, worker=worker), token)
        for job_id in [job_id for job_id, held in self.held.items() if held == token]:
            for child in children:
                self.do("add", **child_of(job_id, child, failure))
            if meanwhile is not None:
                self.take(self.do("pick_up", token=other, worker=worker), other)
                for next_id in [one for one, held in self.held.items() if held == other]:
                    self.held.pop(next_id)
                    self.do("fail", id=next_id, token=other, error=meanwhile, fetch_next=False, worker=worker)
            if self.may_settle(job_id, token):
                self.end_handler(job_id, value, waits, one=False)

    def end_handler(self, job_id: str, value: Any, waits: bool, one: bool) -> None:
        children = self.children_of(job_id)
        child = children[0] if one and children else None
        token = self.held.pop(job_id)
        self.do("run_handler", id=job_id, token=token, value=value, waits=waits, child=child)

    @has("give_back", jobs=1)
    @rule(pick=PICK, wrong_token=SOMETIMES)
    def give_back(self, pick: int, wrong_token: bool) -> None:
        self.settle("give_back", pick, wrong_token)

    @has("postpone", jobs=1)
    @rule(pick=PICK, wrong_token=SOMETIMES, span=SPANS)
    def postpone(self, pick: int, wrong_token: bool, span: int) -> None:
        self.settle("postpone", pick, wrong_token, until=self.lockstep.now + span)

    @has("wait_for_children", jobs=1)
    @rule(pick=PICK, wrong_token=SOMETIMES)
    def wait_for_children(self, pick: int, wrong_token: bool) -> None:
        job_id, token = self.holder(pick, wrong_token)
        outcome = self.do("wait_for_children", id=job_id, token=token)
        if outcome.value:
            self.held.pop(job_id, None)

    @has("extend_lock", jobs=1)
    @rule(pick=PICK, wrong_token=SOMETIMES)
    def extend_lock(self, pick: int, wrong_token: bool) -> None:
        job_id, token = self.holder(pick, wrong_token)
        self.do("extend_lock", id=job_id, token=token, duration=LOCK_MS)

    @has("extend_locks", jobs=1)
    @rule(wrong_token=SOMETIMES)
    def extend_locks(self, wrong_token: bool) -> None:
        held = {**self.held, **({"nobody": "no-token"} if wrong_token else {})}
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

    @precondition(lambda self: self.held and self.lockstep.can("sweep_stalled"))
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
