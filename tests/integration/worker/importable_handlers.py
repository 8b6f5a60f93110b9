"""Handlers that run in processes: they must be importable."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import AsyncIterator, Iterator
from typing import Any

from toril import ParentRef, TransientError
from toril.errors import WaitingChildrenError
from toril.sync import Job, Queue


def double(job: Job[Any]) -> int:
    job.update_progress(50)
    job.log(f"in process {os.getpid()}")
    return int(job.data["n"]) * 2


def crash(job: Job[Any]) -> str:
    if job.data.get("crash"):
        os.kill(os.getpid(), signal.SIGSEGV)
    return "fine"


def hog(job: Job[Any]) -> str:
    if job.data.get("hog"):
        import resource

        limit = 512 * 1024 * 1024
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
        return str(len(bytearray(2 * limit)))
    return "fine"


def pid(job: Job[Any]) -> int:
    return os.getpid()


def hang(job: Job[Any]) -> None:
    time.sleep(600)


def leave(job: Job[Any]) -> None:
    raise SystemExit(3)


class Odd(Exception):
    """An error that cannot be pickled: its class takes more than it keeps."""

    def __init__(self, first: str, second: str) -> None:
        super().__init__(first)


def odd(job: Job[Any]) -> None:
    raise Odd("strange", "thing")


def throttled(job: Job[Any]) -> int:
    """Raises an error that cannot be pickled, though everybody knows that it may pass."""
    import httpx2
    import openai

    if job.attempts_made == 0:
        response = httpx2.Response(429, request=httpx2.Request("GET", "http://far.example"))
        raise openai.RateLimitError("slow down", response=response, body=None)
    return job.attempts_made


def hiding(job: Job[Any]) -> int:
    """Raises an error that can be pickled, without what it hides."""
    if job.attempts_made == 0:
        try:
            raise ConnectionError("gone")  # noqa: TRY301
        except ConnectionError:
            raise RuntimeError("could not fetch") from None
    return job.attempts_made


def fall(job: Job[Any]) -> None:
    raise KeyError("the floor")


def steps(job: Job[Any]) -> int:
    """BullMQ's step pattern: asks again after it was resumed."""
    if "step" not in job.data:
        job.update_data({**job.data, "step": "wait"})
        with Queue(job.queue_name, redis=job.data["url"], prefix=job.keys.prefix) as queue:
            queue.add("child", {}, parent=ParentRef(job.id, job.keys.qualified))
    if job.move_to_waiting_children():
        raise WaitingChildrenError
    return len(job.get_children_values())


def child_or_steps(job: Job[Any]) -> Any:
    return "a value" if job.name == "child" else steps(job)


def double_or_fail(job: Job[Any]) -> Any:
    if job.data.get("fail"):
        raise TransientError("not today")
    return {"n": job.data["n"] * 2}


def weigh(job: Job[Any]) -> str:
    return "x" * (int(job.data["bytes"]) - 2)


class NeverSent:
    """Has a JSON form, and ends the process that unpickles it."""

    def __init__(self, size: int) -> None:
        self.size = size

    def model_dump_json(self, **_: Any) -> str:
        return f'"{"x" * (self.size - 2)}"'

    def __reduce__(self) -> Any:
        return os._exit, (9,)


def never_sent(job: Job[Any]) -> NeverSent:
    return NeverSent(job.data["bytes"])


def double_all(jobs: list[Job[Any]]) -> list[int]:
    for job in jobs:
        job.update_progress(50)
    return [int(job.data["n"]) * 2 for job in jobs]


def crash_batch(jobs: list[Job[Any]]) -> None:
    if any(job.data["crash"] for job in jobs):
        os.kill(os.getpid(), signal.SIGSEGV)


def count_up(job: Job[Any]) -> Iterator[dict[str, int]]:
    """The first attempt fails behind its second value; the second one continues there."""
    begun_at = job.checkpoint["count"] if job.checkpoint else 0
    for count in range(begun_at + 1, 5):
        yield {"count": count, "begun_at": begun_at}
        if count == 2:
            raise TransientError("again")


async def count_up_async(job: Job[Any]) -> AsyncIterator[dict[str, int]]:
    for value in count_up(job):
        yield value
