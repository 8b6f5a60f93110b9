"""Handlers in processes: a crash, a leak or a hang costs one job, never the worker.

Guarantee: each child runs one job at a time; a child that dies fails its own job with the signal's name; a cancelled or
overdue job's child is killed; children are replaced after a number of jobs or above a size, and end with their parent.
"""

from __future__ import annotations

import asyncio
import functools
import multiprocessing
import os
import pickle
import signal
import threading
from collections.abc import Callable
from multiprocessing.connection import Connection, wait
from typing import Any

from toril.contract.classify import known_category, retry_after
from toril.contract.errors import InvalidOption, PermanentError, TorilError
from toril.contract.outcome import note_move
from toril.contract.stack_trace import RemoteTrace, stack_of
from toril.store import default_server
from toril.worker._memory import resident_bytes
from toril.worker._threads import JobThreads

# A fresh interpreter: no locks, sockets or loops of the parent come along.
_SPAWN = multiprocessing.get_context("spawn")
BEGUN = "begun"  # what a child says before it runs a job
Opener = Callable[[Any], Any]  # makes the handler's job object from what was sent, inside the child
# Of an error: its stack trace, its category, seconds to wait before a retry.
Told = tuple[str, str | None, float | None]


class ProcessDied(PermanentError):
    """The process of a handler ended before the handler did."""

    def __init__(self, job_id: str, exit_code: int | None) -> None:
        super().__init__(f"the process that ran job {job_id} died: {_meaning(exit_code)}")
        self.job_id = job_id
        self.exit_code = exit_code


class UnportableError(TorilError):
    """An error of a handler that cannot be sent between processes: its type and message, as text."""


class _NotBegun(Exception):
    """A child that had been idle was dead before it could begin."""


def _meaning(exit_code: int | None) -> str:
    if exit_code is not None and exit_code < 0:
        try:
            return f"killed by {signal.Signals(-exit_code).name}"
        except ValueError:
            return f"killed by signal {-exit_code}"
    return f"exit code {exit_code}"


def _child(pipe: Connection, handler: bytes, opener: bytes, folder: str, warned: bool) -> None:
    """The life of a child: jobs come through the pipe, results go back, until the pipe closes."""
    default_server.inherit(
        folder, warned=warned
    )  # a handler that makes a Queue("…") means the parent's server
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C goes to the whole group; the parent decides
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, name="toril-parent", daemon=True).start()
    # A daemon is what the parent must not wait for; here it would forbid handlers to have children.
    multiprocessing.current_process()._config["daemon"] = False  # type: ignore[attr-defined]  # noqa: SLF001
    run: Callable[[Any], Any] = pickle.loads(handler)  # noqa: S301  # our own parent's bytes
    dress: Opener = pickle.loads(opener)  # noqa: S301
    while True:
        try:
            parcel = pipe.recv()
        except (EOFError, OSError):
            return
        pipe.send(BEGUN)
        pipe.send(_attempt(run, dress, parcel))


def _end_with_parent() -> None:
    """A handler that hangs, or would go on for hours, must not outlive the worker: its job is another's by then."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def _attempt(run: Callable[[Any], Any], dress: Opener, parcel: Any) -> tuple[bool, Any, Told, int]:
    job = None
    try:
        job = dress(parcel)
        result = run(job)
        if asyncio.iscoroutine(result):
            result = asyncio.run(result)
        pickle.dumps(result)
    except BaseException as error:  # noqa: BLE001  # sys.exit in a handler is a failure of its job
        note_move(error, job)
        return False, _portable(error), _told(error), resident_bytes()
    return True, result, ("", None, None), resident_bytes()


def _told(error: BaseException) -> Told:
    """What the parent cannot find out by itself: causes do not travel with an error, nor does its stack trace."""
    category = known_category(error)
    return stack_of(error), None if category is None else category.value, retry_after(error)


def _portable(error: BaseException) -> BaseException:
    try:
        pickle.loads(pickle.dumps(error))  # noqa: S301
    except Exception:  # noqa: BLE001  # any trouble with pickling means: send what can be sent
        return UnportableError(f"{type(error).__name__}: {error}")
    return error


class _Child:
    """One process and the pipe to it."""

    def __init__(self, handler: bytes, opener: bytes) -> None:
        self.pipe, far_end = _SPAWN.Pipe()
        folder = default_server.default_folder(), default_server.has_warned()
        self.process = _SPAWN.Process(
            target=_child, args=(far_end, handler, opener, *folder), name="toril-handler", daemon=True
        )
        self.process.start()
        far_end.close()
        self.jobs = 0
        self.memory = 0
        self.killed = False

    def run(self, job_id: str, parcel: Any) -> Any:
        """Blocks until the job is done or the process is."""
        used_before, self.jobs = self.jobs > 0, self.jobs + 1
        begun, answer = self._answer(parcel)
        if used_before and not begun:
            raise _NotBegun
        if answer is None:
            self.process.join()
            raise ProcessDied(job_id, self.process.exitcode)
        ok, value, told, self.memory = answer
        if ok:
            return value
        raise value from RemoteTrace(*told)

    def _answer(self, parcel: Any) -> tuple[bool, tuple[bool, Any, Told, int] | None]:
        """Whether the child began, and what it said; None when it is gone."""
        begun = False
        try:
            self.pipe.send(parcel)
            begun = self._heard() == BEGUN
            return begun, self._heard()
        except (EOFError, OSError):
            self.process.kill()  # whatever is left of it cannot be understood any more
            return begun, None

    def _heard(self) -> Any:
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
        """Lets the child finish by closing its pipe; kills it when it does not."""
        self.pipe.close()
        self.process.join(1.0)
        if self.process.is_alive():
            self.process.kill()
            self.process.join()
        self.process.close()


class _Turn:
    """One job's turn with a child: it may be ended from outside before the child is there."""

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
        """The child is free for others."""
        with self._lock:
            self._child = None

    def end(self) -> None:
        with self._lock:
            self._over = True
            if self._child is not None:
                self._child.kill()


class ProcessExecutor:
    """A process for each job in hand, used again while it behaves."""

    blocking = True

    def __init__(
        self,
        handler: Callable[[Any], Any],
        opener: Opener,
        pack: Callable[[Any], Any],
        *,
        max_jobs: int | None,
        max_memory: int | None,
    ) -> None:
        self._handler = _pickled("handler", handler)
        self._opener = _pickled("opener", opener)
        self._pack = pack
        self._max_jobs = max_jobs
        self._max_memory = max_memory
        self._free: list[_Child] = []
        self._closed = False
        self._threads = JobThreads("toril-child")

    async def run(self, job: Any) -> Any:
        turn = _Turn()
        call = self._threads.call(functools.partial(self._in_thread, turn, job.id, self._pack(job)))
        try:
            return await asyncio.shield(call)
        except asyncio.CancelledError:
            turn.end()
            await asyncio.wait({call})
            if not call.cancelled():
                call.exception()  # the death of the child is what we wanted
            raise

    def _in_thread(self, turn: _Turn, job_id: str, parcel: Any) -> Any:
        """From taking a child to putting it back, in one go: whatever is cancelled meanwhile, no child is forgotten."""
        while True:
            child = self._take()
            try:
                turn.begin(child)
                return child.run(job_id, parcel)
            except _NotBegun:
                continue  # it had died while it was idle: another one takes the job
            finally:
                turn.finish()
                self._put_back(child)

    def _take(self) -> _Child:
        while True:
            try:
                child = self._free.pop()
            except IndexError:
                return _Child(self._handler, self._opener)
            if child.usable:
                return child
            child.end()

    def _put_back(self, child: _Child) -> None:
        worn = self._max_jobs is not None and child.jobs >= self._max_jobs
        bloated = self._max_memory is not None and child.memory > self._max_memory
        if child.usable and not worn and not bloated and not self._closed:
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


def _pickled(what: str, value: Any) -> bytes:
    try:
        return pickle.dumps(value)
    except Exception as error:
        raise InvalidOption(
            what, f"cannot be sent to a process: {error}", "use a function at the top level of a module"
        ) from error
