"""BullMQ itself, as an object: a Node process that performs one operation per line of JSON.

Guarantee: the process never outlives its owner. It reads its orders from a pipe and ends with the pipe, so even
a test run killed with -9 leaves nothing behind. Plain functions use `call`, coroutines `ask`.
"""

from __future__ import annotations

import asyncio
import json
import shutil
import subprocess
import threading
from collections import Counter
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self, TypeAlias

NODE_SIDE = Path(__file__).parent / "node"
ANSWER_TIMEOUT = 60.0  # An answer comes in milliseconds; a minute means that Node is stuck.
FIVE = "5.62.0"
SIX = "6.7.0"


class Refused(Exception):
    """BullMQ said no. `code` is the script's negative number, where there is one."""

    def __init__(self, message: str, *, name: str = "Error", code: int | str | None = None) -> None:
        super().__init__(message)
        self.name = name
        self.code = code


@dataclass(frozen=True, kw_only=True, slots=True)
class Notice:
    """One message of a live worker or listener."""

    what: str
    fields: dict[str, Any]


Enough: TypeAlias = Callable[[list[Notice]], bool]


class Stream:
    """What one live worker or listener has sent so far, in order."""

    def __init__(self) -> None:
        self._notices: list[Notice] = []
        self._waiting: list[tuple[Enough, Future[list[Notice]]]] = []
        self._lock = threading.Lock()

    def push(self, item: dict[str, Any]) -> None:
        fields = item.get("fields", {key: value for key, value in item.items() if key != "what"})
        with self._lock:
            self._notices.append(Notice(what=item["what"], fields=fields))
            self._serve()

    @property
    def notices(self) -> list[Notice]:
        with self._lock:
            return list(self._notices)

    def of(self, what: str) -> list[dict[str, Any]]:
        return [item.fields for item in self.notices if item.what == what]

    async def until(self, enough: Enough, timeout: float = ANSWER_TIMEOUT) -> list[Notice]:
        """Wait until the notices are enough, and return it."""
        future: Future[list[Notice]] = Future()
        with self._lock:
            self._waiting.append((enough, future))
            self._serve()
        try:
            return await asyncio.wait_for(asyncio.wrap_future(future), timeout)
        except TimeoutError:
            notices = Counter(item.what for item in self.notices)
            raise TimeoutError(f"after {timeout} s Node has sent only {dict(notices)}") from None

    def _serve(self) -> None:
        for waiter in list(self._waiting):
            enough, future = waiter
            if future.cancelled() or enough(self._notices):
                self._waiting.remove(waiter)
                if future.set_running_or_notify_cancel():
                    future.set_result(list(self._notices))


class Reference:
    """One Node process with BullMQ 5.62.0 (or 6.7.0), holding any number of benches."""

    def __init__(self, generation: str = FIVE) -> None:
        flags = ["--six"] if generation == SIX else []
        self._process = subprocess.Popen(
            [shutil.which("node") or "node", str(NODE_SIDE / "driver.mjs"), *flags],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            encoding="utf-8",
            bufsize=1,
        )
        self._lock = threading.Lock()
        self._asked: dict[int, Future[Any]] = {}
        self._streams: dict[str, Stream] = {}
        self._serial = 0
        self._listener = threading.Thread(target=self._listen, name="reference", daemon=True)
        self._listener.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def pid(self) -> int:
        return self._process.pid

    def call(self, op: str, /, **args: Any) -> Any:
        return self._send(op, args).result(ANSWER_TIMEOUT)

    async def ask(self, op: str, /, **args: Any) -> Any:
        return await asyncio.wait_for(asyncio.wrap_future(self._send(op, args)), ANSWER_TIMEOUT)

    def stream(self, handle: str) -> Stream:
        with self._lock:
            return self._streams.setdefault(handle, Stream())

    def set_clock(self, milliseconds: int | None) -> None:
        """Give every clock of the process this reading; None gives the real time back."""
        self.call("clock", at=milliseconds)

    def bench(self, queue: str, *, url: str, prefix: str = "bull", **settings: Any) -> Bench:
        """Open a queue; `settings` are those of `Bench` in bench.mjs."""
        made = Bench(self, self._next_name(queue))
        self.call("connect", bench=made.name, url=url, prefix=prefix, queue=queue, **settings)
        return made

    def kill(self) -> None:
        """End it as a power failure would: no handler runs, no lock is given back."""
        self._process.kill()
        self._process.wait()
        self._let_go()

    def close(self) -> None:
        if self._process.stdin is not None and not self._process.stdin.closed:
            self._process.stdin.close()
        self._process.wait(timeout=ANSWER_TIMEOUT)
        self._let_go()

    def _let_go(self) -> None:
        self._listener.join()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                _close_quietly(pipe)

    def _next_name(self, queue: str) -> str:
        with self._lock:
            self._serial += 1
            return f"{queue}#{self._serial}"

    def _send(self, op: str, args: dict[str, Any]) -> Future[Any]:
        future: Future[Any] = Future()
        with self._lock:
            self._serial += 1
            self._asked[self._serial] = future
            line = json.dumps({"id": self._serial, "op": op, "args": args})
            assert self._process.stdin is not None
            self._process.stdin.write(line + "\n")
            self._process.stdin.flush()
        return future

    def _listen(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._hear(json.loads(line))
        with self._lock:
            lost, self._asked = self._asked, {}
        for future in lost.values():
            future.set_exception(ConnectionError("the Node process ended before it answered"))

    def _hear(self, said: dict[str, Any]) -> None:
        if "stream" in said:
            self.stream(said["stream"]).push(said["item"])
            return
        with self._lock:
            future = self._asked.pop(said["id"])
        if "error" in said:
            error = said["error"]
            future.set_exception(Refused(error["message"], name=error["name"], code=error["code"]))
        else:
            future.set_result(said["ok"])


@dataclass(frozen=True, slots=True)
class Bench:
    """One queue that Node uses. Operations are named as in node/manage.mjs, manual_worker.mjs and live.mjs."""

    reference: Reference
    name: str

    def call(self, op: str, /, **args: Any) -> Any:
        return self.reference.call(op, bench=self.name, **args)

    async def ask(self, op: str, /, **args: Any) -> Any:
        return await self.reference.ask(op, bench=self.name, **args)

    async def start_worker(self, handle: str, **opts: Any) -> Stream:
        """Run a real Worker that follows the instructions in each job's data; `opts` are BullMQ's own."""
        stream = self.reference.stream(handle)
        await self.ask("start_worker", handle=handle, opts=opts)
        return stream

    async def start_events(self, handle: str, *, start: str = "0") -> Stream:
        """Listen with QueueEvents from the given stream id on."""
        stream = self.reference.stream(handle)
        await self.ask("start_events", handle=handle, **{"from": start})
        return stream

    async def stop(self, handle: str, *, force: bool = False) -> None:
        await self.ask("stop", handle=handle, force=force)

    async def wait_until_finished(self, job_id: str, *, events: str, timeout: float) -> Any:
        return await self.ask("wait_until_finished", id=job_id, handle=events, timeout=int(timeout * 1000))

    def close(self) -> None:
        self.call("close")


def _close_quietly(pipe: Any) -> None:
    try:
        pipe.close()
    except BrokenPipeError:
        return  # It ended with an order still in the pipe, which is what kill() is for.
