"""A handler that processes can import."""

from __future__ import annotations

from typing import Any

from toril.jobs import BlockingJob


def echo(job: BlockingJob) -> Any:
    job.update_progress({"seen": job.data["secret"]})
    return job.data
