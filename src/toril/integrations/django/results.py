"""Jobs as results of `django.tasks`.

Guarantee: a result says what is stored in the job: nothing else is kept. A job that was removed has no result.
"""

from __future__ import annotations

import re
from typing import Any, Final

from toril.integrations.django.framework import Task, TaskError, TaskResult, TaskResultStatus
from toril.jobs.base import JobBase
from toril.protocol.state import JobState

# The last line of a stack trace: the class of the error, and maybe its message.
_ERROR_LINE: Final = re.compile(r"^([A-Za-z_][\w.]*)(?::|$)")
READY: Final = TaskResultStatus("READY")
RUNNING: Final = TaskResultStatus("RUNNING")
FAILED: Final = TaskResultStatus("FAILED")
SUCCESSFUL: Final = TaskResultStatus("SUCCESSFUL")
_STATUS: Final = {
    JobState.ACTIVE: RUNNING,
    JobState.COMPLETED: SUCCESSFUL,
    JobState.FAILED: FAILED,
}


def result_of(
    task: Task[..., object], job: JobBase, backend: str, status: TaskResultStatus
) -> TaskResult[Any]:
    """The result of a job."""
    made: TaskResult[Any] = TaskResult(
        task=task,
        id=job.id,
        status=status,
        enqueued_at=job.timestamp,
        started_at=job.processed_on,
        last_attempted_at=job.processed_on,
        finished_at=job.finished_on,
        args=job.data.get("args", []),
        kwargs=job.data.get("kwargs", {}),
        backend=backend,
        errors=[error_of(stack) for stack in job.stacktrace],
        worker_ids=[job.processed_by or "unknown"] * job.attempts_started,
    )
    if status == SUCCESSFUL:
        object.__setattr__(made, "_return_value", job.returnvalue)  # as Django's own backends do
    return made


def status_of(state: JobState) -> TaskResultStatus:
    """The status of a job in this state: all that wait for something are ready."""
    return _STATUS.get(state, READY)


def error_of(stack: str) -> TaskError:
    """The error of a stack trace; its class is in the last line that names one."""
    for line in reversed(stack.strip().splitlines()):
        found = _ERROR_LINE.match(line)
        if found:
            name = found[1]
            return TaskError(
                exception_class_path=name if "." in name else f"builtins.{name}", traceback=stack
            )
    return TaskError(exception_class_path="builtins.Exception", traceback=stack)
