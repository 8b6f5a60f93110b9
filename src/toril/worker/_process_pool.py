"""Handlers in processes: a crash, a leak or a hang fails one job, never the worker.

Guarantee: each child runs one job at a time; a child that dies fails its own job with the signal's name; a cancelled or
overdue job's child is killed; children are replaced after a number of jobs or above a size, and end with their parent,
however that ends; no child prevents the parent from ending.
"""

from __future__ import annotations

import asyncio
import atexit
import functools
import multiprocessing
import os
import pickle
import threading
from collections.abc import Callable
from multiprocessing.connection import wait
from multiprocessing.process import BaseProcess
from typing import Any

from toril.errors import InvalidOption, ProcessDied, Requeue
from toril.protocol.stack_trace import RemoteTrace
from toril.transport import default_server
from toril.worker._process_child import BEGUN, Answer, JobPacker, Program, serve
from toril.worker._results import Encode, Returned
from toril.worker._threads import JobThreads

# A new interpreter: locks, sockets and loops of the parent are not inherited.
_SPAWN = multiprocessing.get_context("spawn")


class _NotBegun(Exception):
    """A child that had been idle had died before it could begin."""


class _ChildRegistry:
    """All children of this process, so that none of them outlives it or prevents it from ending.

    They ignore SIGTERM, because a signal to the group is for the worker. `multiprocessing` would send it to them when
    the interpreter ends, and then wait without limit.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._running: set[BaseProcess] = set()
        self.ending = False

    def start(self, process: BaseProcess) -> None:
        with self._lock:
            if self.ending:
                raise Requeue("the program ends")
            process.start()
            self._running.add(process)

    def forget(self, process: BaseProcess) -> None:
        with self._lock:
            self._running.discard(process)

    def kill_all(self) -> None:
        """Called when the interpreter ends. The jobs are returned, or recovered as those of a dead worker."""
        with self._lock:
            self.ending = True
            for process in self._running:
                process.kill()

    def after_fork(self) -> None:
        """The children belong to the parent process, and its lock may be locked without an owner."""
        self._lock, self._running = threading.Lock(), set()


_registry = _ChildRegistry()
os.register_at_fork(after_in_child=_registry.after_fork)
# Registered after the hook of `multiprocessing`, hence called before it.
atexit.register(_registry.kill_all)


class _Child:
    """One process and the pipe to it."""

    def __init__(self, program: Program) -> None:
        self.pipe, far_end = _SPAWN.Pipe()
        folder = default_server.default_folder(), default_server.has_warned()
        self.process = _SPAWN.Process(
            target=serve, args=(far_end, program, *folder), name="toril-handler", daemon=True
        )
        _registry.start(self.process)
        far_end.close()
        self.jobs = 0
        self.memory = 0
        self.killed = False

    def run(self, job_id: str, packed_job: Any) -> Returned:
        """Blocks until the job is done or the process is."""
        used_before, self.jobs = self.jobs > 0, self.jobs + 1
        begun, answer = self._answer(packed_job)
        if used_before and not begun:
            raise _NotBegun
        if answer is None:
            self.process.join()
            if _registry.ending:
                raise Requeue("the program ends")
            raise ProcessDied(job_id, self.process.exitcode)
        self.memory = answer.memory
        return result_of(answer)

    def _answer(self, packed_job: Any) -> tuple[bool, Answer | None]:
        """Whether the child began, and its answer; None when the child has ended."""
        begun = False
        try:
            self.pipe.send(packed_job)
            begun = self._receive() == BEGUN
            return begun, self._receive()
        except (EOFError, OSError):
            self.process.kill()  # what it still sends cannot be read
            return begun, None

    def _receive(self) -> Any:
        ready = wait([self.pipe, self.process.sentinel])
        if self.pipe not in ready:
            raise EOFError
        return self.pipe.recv()

    @property
    def usable(self) -> bool:
        return not self.killed and self.process.is_alive()

    def kill(self) -> None:
        self.killed = True
        self.process.kill()

    def end(self) -> None:
        """Ends the child by closing its pipe; kills it when it does not end."""
        self.pipe.close()
        self.process.join(1.0)
        if self.process.is_alive():
            self.process.kill()
            self.process.join()
        _registry.forget(self.process)
        self.process.close()


def result_of(answer: Answer) -> Returned:
    """The result of a job; its error is raised."""
    try:
        value = pickle.loads(answer.value)  # our own child's bytes
    except BaseException:  # reading it runs a user's code, which may raise anything
        raise pickle.loads(answer.replacement) from _remote_trace(answer)
    if answer.ok:
        return Returned(value, answer.json)
    raise value from _remote_trace(answer)


def _remote_trace(answer: Answer) -> RemoteTrace:
    return RemoteTrace(answer.trace, answer.category, answer.retry_after)


class _ChildUse:
    """One use of a child by one job: it may be ended before the child is started."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._child: _Child | None = None
        self._over = False

    def begin(self, child: _Child) -> None:
        with self._lock:
            self._child = child
            if self._over:
                child.kill()

    def finish(self) -> None:
        """Other jobs may use the child."""
        with self._lock:
            self._child = None

    def end(self) -> None:
        with self._lock:
            self._over = True
            if self._child is not None:
                self._child.kill()


class ProcessExecutor:
    """A process for each running job; it is reused unless it died or exceeds a limit."""

    blocking = True

    def __init__(
        self,
        handler: Callable[[Any], Any],
        packer: JobPacker,
        *,
        encode: Encode,
        max_jobs: int | None,
        max_memory: int | None,
    ) -> None:
        self._program = Program(
            _pickled("handler", handler), _pickled("packer", packer), _pickled("encode", encode)
        )
        self._packer = packer
        self._max_jobs = max_jobs
        self._max_memory = max_memory
        self._free: list[_Child] = []
        self._closed = False
        self._threads = JobThreads("toril-child")

    async def run(self, job: Any) -> Returned:
        return await self._send(job.id, self._packer.pack(job))

    async def _send(self, job_id: str, packed_job: Any) -> Returned:
        use = _ChildUse()
        call = self._threads.call(functools.partial(self._in_thread, use, job_id, packed_job))
        try:
            return await asyncio.shield(call)
        except asyncio.CancelledError:
            use.end()
            await asyncio.wait({call})
            if not call.cancelled():
                call.exception()  # the child was killed on purpose
            raise

    def _in_thread(self, use: _ChildUse, job_id: str, packed_job: object) -> Returned:
        """Takes a child, runs the job and puts the child back, in one thread: a cancellation cannot lose the child."""
        while True:
            child = self._take()
            try:
                use.begin(child)
                return child.run(job_id, packed_job)
            except _NotBegun:
                continue  # it had died while it was idle: another child runs the job
            finally:
                use.finish()
                self._put_back(child)

    def _take(self) -> _Child:
        while True:
            try:
                child = self._free.pop()
            except IndexError:
                return _Child(self._program)
            if child.usable:
                return child
            child.end()

    def _put_back(self, child: _Child) -> None:
        is_used_up = self._max_jobs is not None and child.jobs >= self._max_jobs
        is_too_large = self._max_memory is not None and child.memory > self._max_memory
        if child.usable and not is_used_up and not is_too_large and not self._closed:
            self._free.append(child)
        else:
            child.end()

    def resize(self, concurrency: int) -> None:
        """There are as many processes as jobs."""

    async def close(self) -> None:
        self._closed = True
        children, self._free = self._free, []
        await asyncio.gather(*(asyncio.to_thread(child.end) for child in children))
        self._threads.close()

    def kill(self) -> None:
        self._closed = True
        children, self._free = self._free, []
        for child in children:
            child.kill()
            child.end()
        self._threads.close()


def _pickled(what: str, value: object) -> bytes:
    try:
        return pickle.dumps(value)
    except Exception as error:
        raise InvalidOption(
            what, f"cannot be sent to a process: {error}", "use a function at the top level of a module"
        ) from error
