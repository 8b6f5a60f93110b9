"""Spark's Java process: its output, whether it runs, and why it ended.

Guarantee: its output does not reach the terminal unless requested; the last lines are kept to explain why it
ended. After `reset_pyspark`, the next session starts a new process.
"""

# ruff: noqa: SLF001 — PySpark has no public way to watch its Java process, or to start another after its death.

from __future__ import annotations

import os
import signal
import subprocess
import threading
import warnings
from collections import deque
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from toril.errors import SparkUnavailable

if TYPE_CHECKING:
    from pyspark import SparkContext

_KEPT: Final = 200  # lines
_SHOWN: Final = 5  # of them in an error
_UNINFORMATIVE: Final = ("\tat ", "WARNING: Using incubator", "Using Spark's default", "Picked up ")


class _Output:
    """The last lines that a process wrote to a pipe, read by a thread until the pipe ends."""

    def __init__(self) -> None:
        self.lines: deque[str] = deque(maxlen=_KEPT)
        reading, self.writing = os.pipe()
        self._thread = threading.Thread(target=self._read, args=(reading,), name="toril-java", daemon=True)
        self._thread.start()

    def _read(self, reading: int) -> None:
        with os.fdopen(reading, "r", errors="replace") as lines:
            for line in lines:
                self.lines.append(line.rstrip())

    def close_here(self) -> None:
        """Closes our end of the pipe: only the process writes, and the thread ends with it."""
        os.close(self.writing)

    def wait(self) -> None:
        self._thread.join(timeout=1)


_outputs: dict[int, _Output] = {}  # by the id of the process


def launch(conf: Any, *, show_log: bool) -> Any:
    """Starts a Java process for Spark. Returns PySpark's gateway to it."""
    from pyspark.java_gateway import launch_gateway

    output = None if show_log else _Output()
    popen = {"stderr": output.writing} if output is not None else {}
    start: Any = launch_gateway
    try:
        started = start(conf, popen_kwargs=popen)
    except Exception as error:  # it ended, or it was killed before it was asked anything
        raise SparkUnavailable(f"Spark's Java process did not start: {_reason(output) or error}") from error
    if output is not None:
        output.close_here()
        if started.proc is not None:
            _outputs[started.proc.pid] = output
    return started


def _reason(output: _Output | None) -> str:
    if output is None:
        return ""  # it is in the terminal already
    output.close_here()
    output.wait()
    return " | ".join(_informative_lines(output))


def _informative_lines(output: _Output) -> list[str]:
    """The last lines with information: no stack frames of Java, none that every start writes."""
    return [line for line in output.lines if line.strip() and not line.startswith(_UNINFORMATIVE)][-_SHOWN:]


def process() -> subprocess.Popen[bytes] | None:
    """The Java process that this Python started; None where there is none, or where another started it."""
    found = gateway()
    return None if found is None else found.__dict__.get("proc")


def reason_of_end(java: subprocess.Popen[bytes] | None, wait_seconds: float = 0.0) -> str | None:
    """Returns why a Java process ended; None while it runs, or where there is none.

    After an error, give `wait_seconds`: connections break before the process has ended.
    """
    if java is None or not _has_ended(java, wait_seconds):
        return None
    text = f"Spark's Java process (pid {java.pid}) {_ending(java.returncode)}"
    output = _outputs.get(java.pid)
    if output is not None:
        output.wait()
        reason = next((line for line in reversed(output.lines) if "OutOfMemoryError" in line), None)
        text += f" ({reason.strip()})" if reason else ""
    return text


def _has_ended(java: subprocess.Popen[bytes], wait_seconds: float) -> bool:
    with suppress(subprocess.TimeoutExpired):
        java.wait(timeout=wait_seconds)
    return java.returncode is not None


def _ending(code: int) -> str:
    if code >= 0:
        return f"ended with exit code {code}"
    try:
        return f"was ended by {signal.Signals(-code).name}"
    except ValueError:
        return f"was ended by signal {-code}"


def active_context() -> SparkContext | None:
    """The context of this process, if there is one."""
    from pyspark import SparkContext

    return SparkContext._active_spark_context


def gateway() -> Any:
    """PySpark's gateway to the Java process of this Python, if there is one."""
    from pyspark import SparkContext

    return SparkContext._gateway


def reset_pyspark(java: subprocess.Popen[bytes] | None) -> None:
    """Resets PySpark after its Java process ended: PySpark cannot start another by itself."""
    if java is None:
        return
    _outputs.pop(java.pid, None)
    if process() is not java:
        return  # another was started already
    context, way = active_context(), gateway()
    with warnings.catch_warnings(), suppress(Exception):
        warnings.simplefilter("ignore")  # "Unable to cleanly shutdown Spark JVM process"
        if context is not None:
            context.stop()
    with suppress(Exception):
        way.shutdown()
    _reset()


def _reset() -> None:
    from pyspark import SparkContext
    from pyspark.sql import SparkSession, SQLContext

    SparkContext._active_spark_context = None
    SparkContext._gateway = None
    SparkContext._jvm = None
    SparkSession._instantiatedSession = None
    SparkSession._activeSession = None
    SQLContext._instantiatedContext = None
