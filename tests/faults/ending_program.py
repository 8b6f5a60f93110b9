"""A program with a worker that ends in the way it was wait_for_test: python -m tests.faults.ending_program JSON.

Says "begun" when a handler begins and "ending" just before it ends. A job with `hold` in its data is never done here.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import threading
import time
from typing import Any

from tests.conformance.kinds import KINDS, QUICK, Kind
from toril import sync

LONG = 600.0  # seconds: nobody waits for such a handler


def say(word: str) -> None:
    """In one write: threads and processes speak at the same time."""
    os.write(1, f"{word}\n".encode())


def payload(job: Any) -> Any:
    return Kind.payload(job)


def hold(job: Any) -> str:
    """In a thread or a process."""
    say("begun")
    if payload(job).get("hold"):
        time.sleep(LONG)
    return "done"


async def hold_in_loop(job: Any) -> str:
    say("begun")
    if payload(job).get("hold"):
        await asyncio.sleep(LONG)
    return "done"


async def fail_when_cancelled(job: Any) -> None:
    """As handlers do whose own cleaning up goes wrong."""
    say("begun")
    try:
        await asyncio.sleep(LONG)
    finally:
        raise LookupError("the session is closed already")


HANDLERS = {"async": hold_in_loop, "thread": hold, "process": hold, "failing": fail_when_cancelled}


def handler_of(words: dict[str, Any]) -> tuple[Any, str]:
    executor = words["executor"]
    return HANDLERS[executor], "async" if executor == "failing" else executor


def worker_of(words: dict[str, Any]) -> Any:
    kind = {one.name: one for one in KINDS}[words["kind"]]
    handler, executor = handler_of(words)
    return kind(words["url"], words["prefix"]).worker(handler, executor=executor, concurrency=3)


async def wait_for_test() -> None:
    """Waits until the test writes a line."""
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.readline)
    say("ending")


class OwnMistake(Exception):
    """The program's, not a handler's."""


def end(way: str) -> None:
    match way:
        case "exit":
            sys.exit(3)
        case "interrupt":
            raise KeyboardInterrupt
        case "os._exit":
            os._exit(4)
        case "ctrl-c":
            os.kill(os.getpid(), signal.SIGINT)
        case _:
            raise OwnMistake(way)


async def beside(words: dict[str, Any]) -> None:
    """A worker that was started and is never stopped."""
    await worker_of(words).start()
    await wait_for_test()
    end(words["way"])
    await asyncio.sleep(LONG)


async def inside(words: dict[str, Any]) -> None:
    async with worker_of(words):
        await wait_for_test()
        end(words["way"])


async def grouped(words: dict[str, Any]) -> None:
    """A worker that runs beside a task which fails."""

    async def sibling() -> None:
        await wait_for_test()
        end(words["way"])

    async with asyncio.TaskGroup() as group:
        group.create_task(worker_of(words).run())
        group.create_task(sibling())


async def running(words: dict[str, Any]) -> None:
    """A worker that ends by a signal."""
    worker = worker_of(words)
    worker.on("ready", lambda: say("ready"))
    worker.on("disconnected", lambda _: say("disconnected"))
    await worker.run()


def without_runner(words: dict[str, Any]) -> None:
    """A loop that is left as it is: nothing is cancelled, nothing is closed."""
    loop = asyncio.new_event_loop()
    loop.run_until_complete(beside(words))


def blocking_worker(words: dict[str, Any]) -> sync.Worker:
    handler, executor = handler_of(words)
    place: dict[str, Any] = {"redis": words["url"], "prefix": words["prefix"]}
    return sync.Worker("work", handler, executor=executor, concurrency=3, **place, **QUICK)  # type: ignore[arg-type]


def blocking(words: dict[str, Any]) -> None:
    worker = blocking_worker(words)
    worker.start()
    sys.stdin.readline()
    say("ending")
    end(words["way"])
    threading.Event().wait(LONG)


def blocking_inside(words: dict[str, Any]) -> None:
    with blocking_worker(words):
        sys.stdin.readline()
        say("ending")
        end(words["way"])


def main() -> None:
    words = json.loads(sys.argv[1])
    match words["shape"]:
        case "beside":
            asyncio.run(beside(words))
        case "inside":
            asyncio.run(inside(words))
        case "grouped":
            asyncio.run(grouped(words))
        case "running":
            asyncio.run(running(words))
        case "without runner":
            without_runner(words)
        case "blocking":
            blocking(words)
        case "blocking inside":
            blocking_inside(words)


if __name__ == "__main__":
    main()
