"""The handlers of the demo: coroutine functions, functions for threads and processes, and one of Arrow tables."""

from __future__ import annotations

import asyncio
import hashlib
import os
import signal
import time
from typing import TYPE_CHECKING, Any, Final

from toril.errors import PermanentError, TransientError
from toril.jobs import Job

if TYPE_CHECKING:
    import pyarrow as pa

    from toril import sync

_STEPS: Final = 10


async def render(job: Job) -> dict[str, int]:
    """Reports its progress; fails for good without a prompt, and for a while with a busy GPU."""
    if not job.data["prompt"]:
        raise PermanentError("the prompt is empty")
    for step in range(1, _STEPS + 1):
        await asyncio.sleep(job.data["seconds"] / _STEPS)
        await job.update_progress(round(step / _STEPS * 100))
        if job.data["gpu_busy"] and job.attempts_made == 0 and step == 2:
            raise TransientError("all GPUs are busy")
    await job.log(f"{_STEPS} scenes rendered")
    return {"frames": 24 * _STEPS}


async def publish(job: Job) -> dict[str, int]:
    """Runs after its children, and reads their results."""
    await asyncio.sleep(job.data["seconds"])
    return {"files": len(await job.get_children_values())}


async def send(job: Job) -> dict[str, bool]:
    await asyncio.sleep(job.data.get("seconds", 0.0))
    if job.data.get("busy") and job.attempts_made == 0:
        raise TransientError("the mail server is busy")
    return {"sent": True}


def thumbnail(job: sync.Job) -> dict[str, str]:
    time.sleep(job.data["seconds"])
    return {"image": job.data["file"].replace(".mov", ".webp")}


def transcode(job: sync.Job) -> dict[str, Any]:
    """Uses a core for a while. The poison job ends its process, as the system does when memory is exhausted."""
    if job.data["poison"]:
        os.kill(os.getpid(), signal.SIGKILL)
    end, blocks, digest = time.monotonic() + job.data["seconds"], 0, hashlib.sha256()
    while time.monotonic() < end:
        digest.update(bytes(64 * 1024))
        blocks += 1
    return {"height": job.data["height"], "blocks": blocks}


def score(batch: pa.Table) -> pa.Array:
    """Scores a table of jobs at once, on an executor of Spark."""
    import pyarrow.compute as pc

    motion, faces = (pc.struct_field(batch["data"], name) for name in ("motion", "faces"))
    logit = pc.add(pc.multiply(motion, 3.0), pc.subtract(pc.multiply(faces, 0.5), 2.0))
    return pc.round(pc.divide(1.0, pc.add(1.0, pc.exp(pc.negate(logit)))), 3)


# By job name, for `toril worker`.
video_generation = {"render": render, "publish": publish}
