"""Refusals of scripts: they checked their conditions and changed nothing.

Guarantee: every negative code becomes an error with a remedy; an unknown one is named.
"""

from __future__ import annotations

from toril.errors._base import PermanentError, TorilError, TransientError


class ScriptRefused(TorilError):
    """A script checked its conditions and changed nothing. `code` is its negative reply."""

    code: int = 0
    problem: str = "the script refused"
    hint: str = ""
    reason: str = ""  # BullMQ's own text, for refusals that become the `failedReason` of a job

    def __init__(
        self,
        job_id: str | None = None,
        *,
        command: str | None = None,
        hint: str | None = None,
        code: int | None = None,
    ) -> None:
        self.job_id = job_id
        self.command = command
        if code is not None:
            self.code = code
        if hint is not None:
            self.hint = hint
        super().__init__(self._describe())
        if self.reason and self.hint:
            self.add_note(self.hint)  # shown in stack traces

    def _describe(self) -> str:
        if self.reason:
            return self.reason.format(job_id=self.job_id, command=self.command)
        job = f"job {self.job_id}: " if self.job_id else ""
        command = f" ({self.command})" if self.command else ""
        hint = f"; {self.hint}" if self.hint else ""
        return f"{job}{self.problem}{command}{hint}"


class JobNotFound(ScriptRefused):
    """There is no such job."""

    code = -1
    problem = "does not exist"
    hint = "it was never added, was cancelled while it waited, or was removed when it finished"


class LockLost(ScriptRefused, TransientError):
    """Another worker has the job now, and may run it again."""

    code = -6
    problem = "the lock belongs to another worker"
    hint = "raise lock_duration or move CPU work to processes"


class LockMissing(LockLost):
    """The lock expired: a sweep returns the job, or already did."""

    code = -2
    problem = "the lock has expired"


class LockLapsed(LockMissing):
    """The lock expired, and the same outcome may be sent again: the backend then takes the lock back first, or
    refuses the outcome for good."""


class JobNotInState(ScriptRefused):
    """The job is not where the command expects it."""

    code = -3
    problem = "is not in the state that this needs"
    hint = "it was moved, finished or removed meanwhile; see get_state()"


class PendingChildren(ScriptRefused, TransientError):
    """The job has children that have not finished, so it cannot complete now."""

    code = -4
    problem = "has unfinished children"
    hint = "to wait for children, `await job.move_to_waiting_children()` and raise WaitingChildrenError if it is True"
    reason = "Job {job_id} has pending dependencies. {command}"


class ParentNotFound(ScriptRefused):
    """The parent named in the options does not exist."""

    code = -5
    problem = "the parent job does not exist"
    hint = "add the parent first, or use FlowProducer"


class ParentCannotBeReplaced(ScriptRefused):
    """A job of this id exists and has another parent."""

    code = -7
    problem = "the job exists already and has another parent"
    hint = "give the child another job_id"


class ParentDeduplicated(ScriptRefused):
    """A job with children was deduplicated, so the flow was not added. `stand_in` is the job that exists instead."""

    code = -101
    hint = "add the flow when that job has finished, or give the parent no deduplication"

    def __init__(self, job_id: str | None = None, stand_in: str | None = None) -> None:
        self.stand_in = stand_in
        self.problem = (
            f"has children and was deduplicated: job {stand_in} exists; nothing of the flow was added"
        )
        super().__init__(job_id, command="add flow")


class ChildrenDeduplicated(ScriptRefused):
    """All children of a job would be left out, so the job would wait for ever; the flow was not added."""

    code = -102
    problem = "has no child to wait for: all of them exist already or were deduplicated; nothing of the flow was added"
    hint = "add the job without children, or add the flow when those jobs have finished"


class GroupFull(ScriptRefused, TransientError):
    """As many jobs of the group wait as its maximum size allows; the job was not added."""

    code = -103
    problem = "was not added: its group is full"
    hint = "add it later, or raise max_size by queue.set_group_limits(…)"


class JobBelongsToScheduler(ScriptRefused):
    """The job is the next run of a scheduler and cannot be removed alone."""

    code = -8
    problem = "belongs to a scheduler"
    hint = "remove the scheduler instead"


class FailedChildren(ScriptRefused, PermanentError):
    """A child failed, so the parent cannot complete."""

    code = -9
    problem = "at least one child has failed"
    reason = "Cannot complete job {job_id} because it has at least one failed child. {command}"


class SchedulerIdCollision(ScriptRefused):
    """Another job has the id of the next run."""

    code = -10
    problem = "the next run's job id exists already"


class SchedulerSlotsBusy(ScriptRefused):
    """The current and the next slot of the scheduler both have a job."""

    code = -11
    problem = "the current and the next run exist already"


class JobLocked(ScriptRefused):
    """The job, or one of its children, is active."""

    problem = "is locked by a worker"
    hint = "wait until it has finished, or cancel it"


class QueueNotPaused(ScriptRefused):
    """Obliterating needs a paused queue."""

    code = -1
    problem = "the queue is not paused"
    hint = "pause it first"


class QueueHasActiveJobs(ScriptRefused):
    """Obliterating is refused while jobs are active."""

    code = -2
    problem = "the queue has active jobs"
    hint = "stop the workers first, or pass force=True"


_REFUSALS: dict[int, type[ScriptRefused]] = {
    kind.code: kind
    for kind in (
        JobNotFound,
        LockMissing,
        JobNotInState,
        PendingChildren,
        ParentNotFound,
        LockLost,
        ParentCannotBeReplaced,
        JobBelongsToScheduler,
        GroupFull,
        FailedChildren,
        SchedulerIdCollision,
        SchedulerSlotsBusy,
    )
}


def refusal(code: int, job_id: str | None = None, command: str | None = None) -> ScriptRefused:
    """Returns the error for a negative reply. An unknown code still gives a `ScriptRefused` that names it."""
    kind = _REFUSALS.get(code)
    if kind is None:
        return ScriptRefused(job_id, command=command, code=code, hint=f"unknown code {code}")
    return kind(job_id, command=command)


def obliterate_refusal(code: int) -> ScriptRefused:
    """Returns the error for a negative reply of `obliterate`, where −1 and −2 have other meanings."""
    if code == QueueNotPaused.code:
        return QueueNotPaused(command="obliterate")
    if code == QueueHasActiveJobs.code:
        return QueueHasActiveJobs(command="obliterate")
    return refusal(code, command="obliterate")
