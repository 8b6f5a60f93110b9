"""Handlers that can be sent to other processes."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from toril import Envelope
from toril.jobs import JobBatch


def note_process(job: Any) -> None:
    """Writes down which process ran the job; `id`, `name` and `data` mean the same for every kind."""
    Path(job.data["file"]).write_text(f"{os.getpid()} {job.id} {job.name}")


def die(job: Any) -> None:
    """Takes its process along."""
    os.kill(os.getpid(), 9)


def odd_jobs_fail(jobs: JobBatch[Any]) -> list[int]:
    for job in jobs:
        if _number(job) % 2:
            jobs.fail(job, ValueError("odd"))
    return [_number(job) for job in jobs]


def _number(job: Any) -> int:
    payload = job.payload if isinstance(job, Envelope) else job.data
    return int(payload["n"])
