"""The Spark session a pipeline runs in.

Guarantee: the caller's session is never reconfigured: the pipeline works in a session of its own on the same context.
"""

from __future__ import annotations

import atexit
import os
import re
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit
from weakref import WeakKeyDictionary

from toril.errors import SparkUnavailable
from toril.spark.pipeline.supervisor.java import (
    active_context,
    gateway,
    launch,
    process,
    reason_of_end,
    reset_pyspark,
)

if TYPE_CHECKING:
    from pyspark import SparkConf, SparkContext
    from pyspark.sql import SparkSession

__all__ = ["LOCAL", "SparkUnavailable", "build_session", "check_java", "in_pool", "own_session"]

_SETTINGS: Final = {
    "spark.sql.session.timeZone": "UTC",
    # Delta knows no INT96, which Spark would write by default.
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    "spark.sql.parquet.compression.codec": "zstd",
    "spark.sql.adaptive.enabled": "true",
    # Batches are small: many tiny tasks would cost more than they bring.
    "spark.sql.adaptive.coalescePartitions.enabled": "true",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
}


_DEFAULTS: Final = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.shuffle.partitions": "4",
    "spark.scheduler.mode": "FAIR",
}

# Driver and executors of a local master are on this machine: nobody else needs to reach their ports.
_LOOPBACK: Final = {"spark.driver.bindAddress": "127.0.0.1", "spark.driver.host": "127.0.0.1"}
# Spark makes the secret itself when driver and executors are one process. For the processes of `local-cluster` it is
# made here; elsewhere a cluster has its own.
_AUTHENTICATED: Final = {"spark.authenticate": "true"}
_SHARED_KEY_SETTING: Final = "spark.authenticate.secret"

_OLDEST_JAVA: Final = 17
_CONNECT_PORT: Final = 15002  # where a Spark Connect server listens unless told otherwise


def check_java() -> None:
    """Refuses early, with a remedy, where Spark would fail with a stack trace."""
    java = _java()
    if java is None:
        raise SparkUnavailable(
            "Spark needs Java 17 or later and none was found; install it (Debian: openjdk-17-jre-headless) "
            "or set JAVA_HOME"
        )
    found = _major_version(java)
    if found is not None and found < _OLDEST_JAVA:
        raise SparkUnavailable(
            f"Spark needs Java {_OLDEST_JAVA} or later and {java} is Java {found}; install a newer one (Debian: "
            "openjdk-17-jre-headless) and set JAVA_HOME to it"
        )


def _java() -> str | None:
    """The Java that Spark would start: that of JAVA_HOME, if it is set, and no other."""
    home = os.environ.get("JAVA_HOME")
    if not home:
        return shutil.which("java")
    java = Path(home) / "bin" / "java"
    if not os.access(java, os.X_OK):
        raise SparkUnavailable(f"JAVA_HOME is {home!r}, where there is no bin/java; correct it or unset it")
    return str(java)


def _major_version(java: str) -> int | None:
    """17 for `version "17.0.15"`, 8 for `version "1.8.0"`; None for any other text."""
    said = subprocess.run([java, "-version"], capture_output=True, text=True, check=False).stderr
    found = re.search(r'version "(?:1\.)?(\d+)', said)
    return int(found.group(1)) if found else None


# More slots than small machines have cores: reading Redis must not wait for a long task of refinement to end.
LOCAL: Final = f"local[{max(4, os.cpu_count() or 1)}]"


def build_session(
    master: str = LOCAL, memory: str = "1g", *, spark_log: bool = False, **settings: str
) -> SparkSession:
    """A session on this machine, on a cluster (`spark://…`), or of a Spark Connect server (`sc://…`).

    What Spark's Java process writes is kept out of the terminal unless `spark_log` is set. The session is stopped when
    Python ends. Under `spark-submit` the session is made by it and this is not called.
    """
    if master.startswith("sc://"):
        return _remote_session(master)
    check_java()
    try:
        from pyspark import SparkConf
        from pyspark.sql import SparkSession
    except ImportError:
        raise SparkUnavailable("pyspark is not installed; pip install 'toril[spark]'") from None
    if master.startswith("local"):
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")  # also for the processes of `local-cluster`
        os.environ.setdefault("SPARK_LOCAL_HOSTNAME", "127.0.0.1")
    conf = SparkConf().setAppName("toril").setMaster(master)
    conf.setAll(
        list(
            {
                **_DEFAULTS,
                **_local_security_settings(master),
                "spark.driver.memory": memory,
                **settings,
            }.items()
        )
    )
    if reason_of_end(process()):
        reset_pyspark(process())
    if active_context() is None and "PYSPARK_GATEWAY_PORT" not in os.environ:
        _start(conf, spark_log=spark_log)
    session: SparkSession = SparkSession.builder.config(conf=conf).getOrCreate()
    return session


def _local_security_settings(master: str) -> dict[str, str]:
    """Returns the settings that keep other machines, and other users of this one, away from a local master."""
    if not master.startswith("local"):
        return {}
    return {**_LOOPBACK, **_AUTHENTICATED}


def _set_secret(conf: SparkConf) -> None:
    """Sets the secret of `local-cluster`; called when Java runs, so that it is not on a command line."""
    if str(conf.get("spark.master", "")).startswith("local-cluster") and not conf.contains(
        _SHARED_KEY_SETTING
    ):
        conf.set(_SHARED_KEY_SETTING, secrets.token_hex(32))


def _start(conf: SparkConf, *, spark_log: bool) -> None:
    from pyspark import SparkContext

    interrupted = _handler_of_the_caller()
    java = gateway() or launch(conf, show_log=spark_log)
    _set_secret(conf)
    atexit.register(_stop, SparkContext(conf=conf, gateway=java))
    if interrupted is not None:
        signal.signal(signal.SIGINT, interrupted)


def _handler_of_the_caller() -> Any:
    """Restores the caller's handler of Ctrl-C: Spark replaces it."""
    handler = signal.getsignal(signal.SIGINT)
    is_own = (
        threading.current_thread() is threading.main_thread() and handler is not signal.default_int_handler
    )
    return handler if is_own else None


def _stop(context: SparkContext) -> None:
    """Stops the session: executors that lose their driver without notice log many errors."""
    if active_context() is context and reason_of_end(process()) is None:
        context.stop()


def _remote_session(url: str) -> SparkSession:
    """A remote server has its own settings; none is sent."""
    _check_server(url)
    try:
        from pyspark.sql import SparkSession

        session: SparkSession = SparkSession.builder.remote(url).appName("toril").getOrCreate()
    except ImportError as error:
        raise SparkUnavailable(
            f"Spark Connect cannot be used ({error}); pip install 'toril[connect]'"
        ) from None
    return session


def _check_server(url: str) -> None:
    """Refuses an unreachable server at once: Spark would retry for minutes."""
    place = urlsplit(url)
    try:
        host, port = place.hostname or "localhost", place.port or _CONNECT_PORT
        socket.create_connection((host, port), timeout=5).close()
    except (OSError, ValueError) as error:
        raise SparkUnavailable(
            f"no Spark Connect server answers at {place.hostname}:{place.port or _CONNECT_PORT} ({error}); start "
            "one with Spark's sbin/start-connect-server.sh, or correct the address sc://host:port"
        ) from None


@contextmanager
def in_pool(spark: SparkSession, name: str) -> Iterator[None]:
    """Jobs that are started inside use a pool of their own of the FAIR scheduler; no effect on a remote session."""
    context = getattr(spark, "sparkContext", None)
    if context is None:
        yield
        return
    before = context.getLocalProperty("spark.scheduler.pool")
    context.setLocalProperty("spark.scheduler.pool", name)
    try:
        yield
    finally:
        context.setLocalProperty("spark.scheduler.pool", before)


_sessions: WeakKeyDictionary[SparkSession, SparkSession] = WeakKeyDictionary()


def own_session(spark: SparkSession) -> SparkSession:
    """A session beside the caller's with the settings that our tables need, and our sources registered.

    There is one for each of the caller's sessions: Spark refuses a source by a name that another session, which
    happens to be active, has registered.
    """
    if spark in _sessions.values():
        return spark
    if spark not in _sessions:
        _sessions[spark] = _with_data_sources(spark.newSession())
        _end_in_time(_sessions[spark])
    return _sessions[spark]


def _end_in_time(session: SparkSession) -> None:
    """A remote session that is left to the end of the interpreter waits there for a thread that is gone."""
    if type(session).__module__.startswith("pyspark.sql.connect"):
        atexit.register(session.stop)


def _with_data_sources(session: SparkSession) -> SparkSession:
    from toril.spark import register, register_once
    from toril.spark.pipeline.bronze.ingest import IngestSource

    for key, value in _SETTINGS.items():
        session.conf.set(key, value)
    register(session)
    register_once(session, IngestSource)
    return session
