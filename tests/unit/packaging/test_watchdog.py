"""A test run that is stuck ends with the stacks printed. Each test runs a small pytest session that hangs."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[3]
ENDS_WITHIN = 50  # seconds; a session that hangs would never end
STACKS = "Timeout (0:00:"  # what faulthandler writes above them

CONFTEST = """
from tests.watchdog import (
    pytest_collection, pytest_configure, pytest_exception_interact, pytest_runtest_protocol, pytest_sessionfinish,
    pytest_timeout_set_timer,
)
"""


def run_session(
    folder: Path, program: str, *words: str, runner: tuple[str, ...] = (), **environment: str
) -> subprocess.CompletedProcess[str]:
    (folder / "conftest.py").write_text(CONFTEST)
    (folder / "test_stuck.py").write_text(f"import threading, time\nimport pytest\n{program}")
    own = {
        name: value for name, value in os.environ.items() if not name.startswith(("COV", "PYTEST", "TORIL"))
    }
    options = ["-q", "-p", "no:randomly", "-p", "no:cacheprovider", "-p", "no:asyncio", "--timeout", "1"]
    return subprocess.run(
        [sys.executable, *runner, "-m", "pytest", *options, *words, "test_stuck.py"],
        cwd=folder,
        env={**own, "PYTHONPATH": str(REPOSITORY), "TORIL_TEST_GRACE": "3", **environment},
        capture_output=True,
        text=True,
        timeout=ENDS_WITHIN,
    )


LOCK_LEFT_TAKEN = """
lock = threading.Lock()

@pytest.fixture
def guarded():
    yield
    with lock:
        pass

def test_that_hangs(guarded):
    lock.acquire()
    threading.Event().wait()  # the time-out comes here, and nobody releases the lock

def test_beside_it():
    pass
"""


def test_a_test_that_its_time_out_cannot_end_is_ended_with_its_stacks(tmp_path: Path) -> None:
    ended = run_session(tmp_path, LOCK_LEFT_TAKEN)
    assert ended.returncode == 1
    assert STACKS in ended.stderr
    assert 'test_stuck.py", line 9 in guarded' in ended.stderr, "where it hangs"


def test_among_several_processes_the_stuck_one_is_replaced_and_its_test_has_failed(tmp_path: Path) -> None:
    ended = run_session(tmp_path, LOCK_LEFT_TAKEN, "--numprocesses", "1")
    assert ended.returncode == 1
    assert STACKS in ended.stderr and "in guarded" in ended.stderr
    assert "crashed while running 'test_stuck.py::test_that_hangs'" in ended.stdout
    assert "1 passed" in ended.stdout, "the others go on"


SLOW_LOCK = """
import threading, time

class SlowLock:
    lock = threading.Lock()

    def acquire(self):
        self.lock.acquire()
        time.sleep(2)  # the time-out comes here

    def release(self):
        self.lock.release()
"""
INSIDE_COVERAGE = """
import coverage
from slow_lock import SlowLock

def traced():  # coverage takes its lock when this is called
    time.sleep(30)

def test_that_takes_too_long_inside_coverage(monkeypatch):
    monkeypatch.setattr(coverage.Coverage.current()._collector, "data_lock", SlowLock())
    traced()

def test_that_runs_afterwards():
    assert not SlowLock.lock.locked(), "the next traced call would wait for ever"
"""


def test_a_time_out_is_not_raised_inside_the_lock_of_coverage(tmp_path: Path) -> None:
    (tmp_path / "slow_lock.py").write_text(SLOW_LOCK)
    coverage = ("-m", "coverage", "run", "--source", ".", "--omit", "slow_lock.py")
    ended = run_session(tmp_path, INSIDE_COVERAGE, runner=coverage, TORIL_TEST_GRACE="30")
    assert "Failed: Timeout (>1.0s)" in ended.stdout
    assert "1 failed, 1 passed" in ended.stdout, ended.stdout
    assert STACKS not in ended.stderr, "nobody had to end it"


AFTER_THE_LAST_TEST = """
def test_that_leaves_a_thread():
    threading.Thread(target=threading.Event().wait, name="forgotten").start()
"""
WHILE_COLLECTING = "threading.Event().wait()"
WITHOUT_TIME_OUT = """
@pytest.mark.timeout(0)
def test_that_hangs():
    threading.Event().wait()
"""


@pytest.mark.parametrize(
    ("program", "seconds", "where"),
    [
        (AFTER_THE_LAST_TEST, 600, "in _shutdown"),
        (WHILE_COLLECTING, 600, 'test_stuck.py", line 3 in <module>'),
        (WITHOUT_TIME_OUT, 10, "in test_that_hangs"),
    ],
    ids=["after the last test", "while tests are collected", "longer than the whole run may take"],
)
def test_a_session_ends_wherever_it_is_stuck(tmp_path: Path, program: str, seconds: int, where: str) -> None:
    ended = run_session(tmp_path, program, TORIL_TEST_DEADLINE=str(time.time() + seconds))
    assert ended.returncode == 1
    assert STACKS in ended.stderr and where in ended.stderr


def test_a_session_that_is_not_stuck_is_left_alone(tmp_path: Path) -> None:
    done = run_session(tmp_path, "def test_fine():\n    time.sleep(0.5)\n", TORIL_TEST_GRACE="20")
    assert (done.returncode, done.stderr) == (0, "")
