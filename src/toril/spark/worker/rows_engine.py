"""The rows engine on the driver: a streaming query that takes jobs as rows, calls the handler, and settles its rows.

Guarantee: every job of a micro-batch is settled or given back. A handler that raises, or returns no DataFrame with the
columns of the jobs, fails the jobs of its micro-batch with the reason.
"""

from __future__ import annotations

import re
import shutil
import tempfile
import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql import functions as F

from toril.commands import read
from toril.commands.command import plain
from toril.commands.leases import open_leases
from toril.errors import PermanentError
from toril.protocol.classify import known_category
from toril.protocol.keys import QueueKeys
from toril.spark.sources.readers import open_transport
from toril.spark.sources.server_choice import Choice
from toril.spark.worker.lease_names import is_of
from toril.spark.worker.lease_renewer import close_all
from toril.spark.worker.options import ROWS_JOBS, SparkWorkerOptions
from toril.spark.worker.settle_sink import SETTLE_COLUMNS
from toril.spark.worker.work_source import ready_jobs
from toril.spark.worker.work_summary import WorkSummary
from toril.transport import BlockingTransport

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_POLL_SECONDS: Final = 0.3  # seconds between two looks at a query or a queue
_RETRIES_READ: Final = 1000  # delayed jobs that are read to find a retry
_IDENTITY: Final = ("queue", "job_id", "token", "position")
_SETTLE_OPTIONS: Final = ("unknown_errors", "max_attempts", "max_result_size")
# The last line of a Python traceback.
_PYTHON_ERROR: Final = re.compile(r"^\s?(?:[\w.]+\.)?(?!SQLSTATE)([A-Z]\w+): (.*)$", re.MULTILINE)


@dataclass(frozen=True)
class MicroBatch:
    """Calls the handler with the rows of a micro-batch, and settles what it returns."""

    handler: Any
    settle: dict[str, str]
    queues: tuple[str, ...]

    def __call__(self, rows: DataFrame, _: int) -> None:
        try:
            self._write(self._call_handler(rows))
            self._check_read()
        except Exception as error:
            problem = problem_of(error)
            if problem is None:
                raise
            self._fail(rows, *problem)

    def _check_read(self) -> None:
        if not self._was_read():
            raise PermanentError("the handler returned a DataFrame that does not depend on its rows")

    def _call_handler(self, rows: DataFrame) -> DataFrame:
        returned = self.handler(rows)
        columns = getattr(returned, "columns", None)
        if not hasattr(returned, "write") or columns is None:
            kind = "nothing" if returned is None else f"a {type(returned).__name__}"
            raise PermanentError(f"the handler returned {kind}; return a DataFrame")
        lacking = [name for name in _IDENTITY[:3] if name not in columns]
        if lacking or not {"result", "error"} & set(columns):
            wanted = "keep queue, job_id and token of its rows, and add result or error"
            raise PermanentError(f"the handler returned the columns {', '.join(columns)}; {wanted}")
        made: DataFrame = returned
        return made

    def _was_read(self) -> bool:
        """Whether the rows were read: Spark leaves out what a result does not need, and then no job was taken."""
        with open_transport(self.settle["url"]) as transport:
            for queue in self.queues:
                keys = QueueKeys(queue, self.settle["prefix"]).resolve(cluster=transport.is_cluster)
                if any(is_of(one, self.settle["worker"]) for one in transport.run(open_leases(keys))):
                    return True
        return False

    def _write(self, rows: DataFrame) -> None:
        columns = [name for name in rows.columns if name in SETTLE_COLUMNS]
        rows.select(*columns).write.format("toril").options(**self.settle).mode("append").save()

    def _fail(self, rows: DataFrame, text: str, kind: str | None) -> None:
        """Fails the jobs that are not settled yet: reading the rows again returns those."""
        failed = rows.select(*_IDENTITY).withColumn("error", F.lit(text))
        self._write(failed.withColumn("error_kind", F.lit(kind).cast("string")))


def problem_of(error: Exception) -> tuple[str, str | None] | None:
    """Text and category of an error of the handler; None for one of Spark or the server: then all is repeated."""
    text = str(error)
    if not type(error).__module__.startswith(("pyspark", "py4j")):
        category = known_category(error)
        return text or type(error).__name__, None if category is None else category.value
    if type(error).__name__ == "AnalysisException":
        return f"{type(error).__name__}: {text[:1000]}", "permanent"
    if "PythonException" not in text and type(error).__name__ != "PythonException":
        return None
    if "toril.errors" in text and "PermanentError" not in text and "TransientError" not in text:
        return None
    found = _PYTHON_ERROR.findall(text)
    name, message = found[-1] if found else ("PythonException", text[:1000])
    kind = {"TransientError": "transient", "PermanentError": "permanent"}.get(name)
    return message[:1000] or name, kind


class RowsEngine:
    """Runs streaming queries of one worker."""

    def __init__(
        self,
        options: SparkWorkerOptions,
        handler: object,
        server: Choice,
        worker: str,
        stop: threading.Event,
    ) -> None:
        self._options = options
        self._handler = handler
        self._server = server
        self._worker = worker
        self._stop = stop
        self._folder = options.checkpoint or tempfile.mkdtemp(prefix="toril-work-")

    def round(self, spark: SparkSession, *, until_idle: bool) -> tuple[WorkSummary, bool]:
        """Runs one query until it ends or is told to stop; returns what it settled, and whether nothing is left."""
        with open_transport(self._server.url) as transport:
            keys = self._keys(transport)
            if until_idle and self._is_idle(transport, keys):
                return WorkSummary(), True
            self._run_query(spark, keys[0], until_idle=until_idle)
            for one in keys:  # all micro-batches are committed: what they hold was dropped by the handler
                close_all(transport, one, self._worker, dropped="fail")
            return self._counts(transport, keys[0]), False

    def release(self, transport: BlockingTransport, keys: QueueKeys) -> int:
        """Gives back what a failed query held."""
        return close_all(transport, keys, self._worker)

    def close(self) -> None:
        """Removes the checkpoint, unless the user named it."""
        if self._options.checkpoint is None:
            shutil.rmtree(self._folder, ignore_errors=True)

    # --- the query ------------------------------------------------------------------------------------------

    def _run_query(self, spark: SparkSession, keys: QueueKeys, *, until_idle: bool) -> None:
        rows = spark.readStream.format("toril").options(**self._source_options(spark)).load()
        step = MicroBatch(self._handler, self._settle_options(keys), self._options.queues)
        writer = rows.writeStream.foreachBatch(step).option("checkpointLocation", self._folder)
        writer = (
            writer.trigger(availableNow=True)
            if until_idle
            else writer.trigger(processingTime="100 milliseconds")
        )
        query = writer.start()
        try:
            self._watch(query)
        finally:
            query.stop()

    def _watch(self, query: Any) -> None:
        """Waits for the end of a query. When the worker stops, the source takes no more: the last batch may end."""
        quiet = 0
        while not query.awaitTermination(_POLL_SECONDS):
            if self._stop.is_set():
                quiet = 0 if query.status["isTriggerActive"] else quiet + 1
                if quiet > 2:
                    return

    def _source_options(self, spark: SparkSession) -> dict[str, str]:
        options = self._options
        context = getattr(spark, "sparkContext", None)
        chosen: dict[str, object] = {
            "url": self._server.url,
            "table": "work",
            "queues": ",".join(options.queues),
            "prefix": options.prefix,
            "max_jobs": options.max_jobs or ROWS_JOBS,
            "worker": self._worker,
            "dropped": "fail",
            "partitions": options.tasks or (context.defaultParallelism if context is not None else 2),
            "max_stalled_count": max(1, options.worker.get("max_stalled_count", 1)),
            "lock_duration": options.worker.get("lock_duration"),
            "data_schema": _text_of(options.data_schema),
        }
        return {name: str(value) for name, value in chosen.items() if value is not None}

    def _settle_options(self, keys: QueueKeys) -> dict[str, str]:
        chosen = {
            "url": self._server.url,
            "op": "settle",
            "prefix": self._options.prefix,
            "worker": self._worker,
            "counts": self._counts_key(keys),
            **{name: self._options.worker.get(name) for name in _SETTLE_OPTIONS},
        }
        return {name: str(value) for name, value in chosen.items() if value is not None}

    # --- the queues -----------------------------------------------------------------------------------------

    def _keys(self, transport: BlockingTransport) -> list[QueueKeys]:
        return [
            QueueKeys(queue, self._options.prefix).resolve(cluster=transport.is_cluster)
            for queue in self._options.queues
        ]

    def _counts_key(self, keys: QueueKeys) -> str:
        return keys.toril(f"work:counts:{self._worker}")

    def _counts(self, transport: BlockingTransport, keys: QueueKeys) -> WorkSummary:
        key = self._counts_key(keys)
        completed, failed = transport.run(plain(list, "HMGET", key, "completed", "failed"))
        transport.run(plain(int, "DEL", key))
        return WorkSummary(completed=int(completed or 0), failed=int(failed or 0))

    def _is_idle(self, transport: BlockingTransport, keys: list[QueueKeys]) -> bool:
        """Waits until a job can be taken, and returns False; or returns True when nothing is left."""
        while not self._stop.is_set():
            if any(ready_jobs(transport, one) for one in keys):
                return False
            if not any(_is_pending(transport, one) for one in keys):
                return True
            time.sleep(_POLL_SECONDS)
        return True


def _is_pending(transport: BlockingTransport, keys: QueueKeys) -> bool:
    """Whether a job is active, or delayed for a retry."""
    if transport.run(plain(int, "LLEN", keys.active)):
        return True
    ids = transport.run(read.get_ranges(keys, ["delayed"], end=_RETRIES_READ - 1, ascending=True))
    made = transport.run_many([read.get_fields(keys, one, ("atm",)) for one in ids]) if ids else []
    return any(isinstance(one, list) and one[0] not in (None, b"0") for one in made)


def _text_of(schema: Any) -> str | None:
    return schema if schema is None or isinstance(schema, str) else schema.json()
