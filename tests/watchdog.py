"""A test run that is stuck ends, and prints the stacks of all threads.

A test that takes longer than its time-out fails by an exception of pytest-timeout, which may come at any point of the
program. Inside coverage's lock it would leave the lock taken, and the next traced line of any thread would wait for
ever: there it is raised a moment later. What no exception can end (a lock, a thread that is joined, a call into C) is
ended by a watchdog in C, which needs neither the interpreter nor its locks: it prints all stacks and ends the process.
Under pytest-xdist the test that ran there has failed then, and another process goes on with the others.

    time-out of a test    its exception
    + GRACE               stacks, end of the process
    collection, the end   the same after COLLECTION and ENDING
    TORIL_TEST_DEADLINE   the same for every process, whatever it does; in seconds since 1970
"""

from __future__ import annotations

import faulthandler
import os
import signal
import sys
import threading
import time
from collections.abc import Generator
from pathlib import Path
from types import FrameType
from typing import Any

import coverage
import pluggy
import pytest
from pytest_timeout import Settings, timeout_sigalrm

# Seconds a test may go on after its time-out: what it started must be ended.
GRACE = float(os.environ.get("TORIL_TEST_GRACE", "60"))
COLLECTION = 5 * GRACE
ENDING = 2 * GRACE
AGAIN = 0.02  # seconds until a time-out that came inside coverage is tried again

_COVERAGE = str(Path(coverage.__file__).parent)
_PYTEST = (str(Path(pytest.__file__).parents[1] / "_pytest"), str(Path(pluggy.__file__).parent))


class Watchdog:
    """Ends this process at a time, unless that is put off. There is one timer in a process."""

    def __init__(self) -> None:
        self._stderr: int | None = None
        self._end: float | None = None  # of what is under way, in the time of `time.monotonic`

    def prepare(self) -> None:
        """Keeps standard error as it is before tests are captured."""
        standard_error = sys.__stderr__
        if self._stderr is None and standard_error is not None:
            self._stderr = os.dup(standard_error.fileno())

    def watch(self, seconds: float) -> None:
        """The process must be past this point within so many seconds."""
        self._end = time.monotonic() + seconds
        self.set_again()

    def rest(self) -> None:
        """Nothing is under way."""
        self._end = None
        self.set_again()

    def set_again(self) -> None:
        """pytest stops the timer when a test has failed, though its teardown is to come."""
        left = [] if self._end is None else [self._end - time.monotonic()]
        if deadline := os.environ.get("TORIL_TEST_DEADLINE"):
            left.append(float(deadline) - time.time())
        if left and self._stderr is not None:
            faulthandler.dump_traceback_later(max(min(left), 0.1), exit=True, file=self._stderr)
        else:
            faulthandler.cancel_dump_traceback_later()


WATCHDOG = Watchdog()


def pytest_configure() -> None:
    WATCHDOG.prepare()
    WATCHDOG.rest()


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    WATCHDOG.watch(COLLECTION)
    try:
        return (yield)
    finally:
        WATCHDOG.rest()


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol() -> Generator[None, object, object]:
    try:
        return (yield)
    finally:
        WATCHDOG.rest()


@pytest.hookimpl(trylast=True)
def pytest_exception_interact() -> None:
    WATCHDOG.set_again()


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """Threads that nobody ended would hold up the end of the interpreter.

    A process of pytest-xdist waits until the others have ended, too, and is ended by the process that started it.
    """
    if not hasattr(session.config, "workerinput"):
        WATCHDOG.watch(ENDING)


def pytest_timeout_set_timer(item: Any, settings: Settings) -> bool | None:
    """In the place of pytest-timeout's own, which raises wherever the program is."""
    WATCHDOG.watch(settings.timeout + GRACE)
    if settings.method != "signal" or threading.current_thread() is not threading.main_thread():
        return None

    def late(_: int, frame: FrameType | None) -> None:
        __tracebackhide__ = True
        if is_inside_coverage(frame):
            signal.setitimer(signal.ITIMER_REAL, AGAIN)
        else:
            timeout_sigalrm(item, settings)

    def cancel() -> None:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, signal.SIG_DFL)

    item.cancel_timeout = cancel
    signal.signal(signal.SIGALRM, late)
    signal.setitimer(signal.ITIMER_REAL, settings.timeout)
    return True


def is_inside_coverage(frame: FrameType | None) -> bool:
    """Whether coverage runs on top of the test. Below pytest it always does: it has started it."""
    while frame is not None and not frame.f_code.co_filename.startswith(_PYTEST):
        if frame.f_code.co_filename.startswith(_COVERAGE):
            return True
        frame = frame.f_back
    return False
