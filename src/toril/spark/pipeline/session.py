"""The Spark session a pipeline runs in.

Guarantee: the caller's session is never reconfigured: the pipeline works in a session of its own on the same context.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final
from weakref import WeakKeyDictionary

from toril.contract.errors import TorilError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

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


class SparkUnavailable(TorilError):
    """Spark cannot start here; the message says what is missing."""


def check_java() -> None:
    """Refuses early, with a remedy, where Spark would fail with a stack trace."""
    home = os.environ.get("JAVA_HOME")
    if home and os.access(os.path.join(home, "bin", "java"), os.X_OK):  # noqa: PTH118
        return
    if shutil.which("java") is None:
        raise SparkUnavailable(
            "Spark needs Java 17 or later and none was found; install it (Debian: openjdk-17-jre-headless) "
            "or set JAVA_HOME"
        )


# More slots than small machines have cores: reading Redis must not wait for a long task of refinement to end.
LOCAL: Final = f"local[{max(4, os.cpu_count() or 1)}]"


def build_session(master: str = LOCAL, memory: str = "1g", **settings: str) -> SparkSession:
    """A session for a pipeline on this machine; on a cluster, `spark-submit` makes it and this is not called."""
    check_java()
    try:
        from pyspark.sql import SparkSession
    except ImportError:
        raise SparkUnavailable("pyspark is not installed; pip install 'toril[spark]'") from None
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder.appName("toril").master(master)
    defaults = {
        "spark.driver.memory": memory,
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.shuffle.partitions": "4",
        "spark.scheduler.mode": "FAIR",
        **settings,
    }
    for key, value in defaults.items():
        builder = builder.config(key, value)
    session: SparkSession = builder.getOrCreate()
    return session


@contextmanager
def in_pool(spark: SparkSession, name: str) -> Iterator[None]:
    """What is started inside has a share of its own of a FAIR scheduler; on a remote session this does nothing."""
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
        _sessions[spark] = _prepared(spark.newSession())
    return _sessions[spark]


def _prepared(session: SparkSession) -> SparkSession:
    from toril.spark import register, register_once
    from toril.spark.pipeline._ingest import IngestSource

    for key, value in _SETTINGS.items():
        session.conf.set(key, value)
    register(session)
    register_once(session, IngestSource)
    return session
