"""What operators and handlers do in a random history: change jobs, look at the queue, and change the queue."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import rule

from tests.interop.history_strategies import DATA, PROGRESS, SPANS
from tests.interop.random_history import CLEANED, FINISHED, PICK, SOMETIMES, RandomHistory, has


class OperatingRules(RandomHistory):
    """The queue is looked after."""

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

    @has("remove_child_dependency", jobs=2)
    @rule(pick=PICK)
    def remove_child_dependency(self, pick: int) -> None:
        if children := self.children():
            self.do("remove_child_dependency", id=children[pick % len(children)])

    @has("remove_unprocessed_children", jobs=2)
    @rule(pick=PICK, anywhere=SOMETIMES)
    def remove_unprocessed_children(self, pick: int, anywhere: bool) -> None:
        self.do("remove_unprocessed_children", id=self.target(pick, anywhere, "waiting-children", "active"))

    # Looking

    @has("jobs", jobs=1)
    @rule(
        state=st.sampled_from([*CLEANED, "waiting-children"]),
        start=st.integers(0, 2),
        length=st.sampled_from([0, 1, 50]),
        asc=st.booleans(),
    )
    def list_jobs(self, state: str, start: int, length: int, asc: bool) -> None:
        self.do("jobs", states=[state], start=start, end=start + length, asc=asc)

    @has("counts", jobs=1)
    @rule(what=st.sampled_from(["counts", "count", "is_paused", "counts_per_priority", "metrics"]))
    def ask_the_queue(self, what: str) -> None:
        details: dict[str, dict[str, Any]] = {
            "counts_per_priority": {"priorities": [0, 1, 2, 3]},
            "metrics": {"state": "completed"},
        }
        self.do(what, **details.get(what, {}))

    @has("state", jobs=1)
    @rule(pick=PICK, what=st.sampled_from(["state", "logs", "children_values", "dependencies"]))
    def ask_about_a_job(self, pick: int, what: str) -> None:
        details = {"start": 0, "end": -1} if what == "logs" else {}
        self.do(what, id=self.target(pick, True), **details)

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
        # Node trims lists by the number of removed jobs: a scheduler's next run among others loses its place, and the
        # id of a removed job stays. Ours does not.
        if self.next_runs_are_last("wait") and self.next_runs_are_last("paused"):
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
    @rule(state=st.sampled_from(FINISHED), count=st.sampled_from([1, 1000]), ago=st.sampled_from([0, 10_000]))
    def retry_jobs(self, state: str, count: int, ago: int) -> None:
        self.do("retry_jobs", state=state, count=count, before=self.lockstep.now - ago)

    @has("promote_jobs", jobs=2)
    @rule(count=st.sampled_from([1, 1000]))
    def promote_jobs(self, count: int) -> None:
        self.do("promote_jobs", count=count)

    @has("rate_limit", jobs=3)
    @rule()
    def rate_limit(self) -> None:
        self.do("rate_limit", duration=10_000)

    @has("set_concurrency", jobs=3)
    @rule(concurrency=st.none() | st.integers(1, 3))
    def set_concurrency(self, concurrency: int | None) -> None:
        self.do("set_concurrency", concurrency=concurrency)

    @has("set_rate_limit", jobs=3)
    @rule(jobs=st.none() | st.integers(1, 3))
    def set_rate_limit(self, jobs: int | None) -> None:
        self.do("set_rate_limit", jobs=jobs, duration=10_000)

    @has("remove_deduplication", jobs=2)
    @rule(same=st.sampled_from(["same-0", "same-1"]))
    def remove_deduplication(self, same: str) -> None:
        self.do("remove_deduplication", id=same)
