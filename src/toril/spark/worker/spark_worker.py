"""`SparkWorker`: processes jobs on Spark's executors.

Guarantee: at least once, by the rules of `Worker`. A Spark job, an executor or a whole Java process that fails is
started again, and what it held goes back to its queue.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self

from toril.app import App, Task
from toril.commands.command import plain
from toril.errors import InvalidOption, QueueMissing, TorilError
from toril.protocol.extras import needed
from toril.protocol.keys import QueueKeys
from toril.protocol.worker_options import new_worker_id
from toril.spark.worker.app_reference import AppReference, app_of, prefix_of, queues_of
from toril.spark.worker.handlers import engine_of, shape_of
from toril.spark.worker.options import SparkWorkerOptions
from toril.transport import BlockingTransport

with needed("spark"):
    from toril.spark.pipeline.supervisor.sessions import SessionSource
    from toril.spark.sources.discovery import mark_keys
    from toril.spark.sources.readers import open_transport
    from toril.spark.sources.server_choice import Choice, Driver, check_reachable, choose
    from toril.spark.worker.loop_engine import LoopEngine
    from toril.spark.worker.rows_engine import RowsEngine
    from toril.spark.worker.stop_signal import StopSignal, stop_key
    from toril.spark.worker.work_summary import WorkSummary

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_log = logging.getLogger("toril.spark")
# The first pause after a failure, and the longest.
_FIRST_PAUSE: Final = 0.5
_LONGEST_PAUSE: Final = 30.0
# `local[N]` does not repeat a task that failed.
_LOCAL: Final = f"local[{os.cpu_count() or 1},4]"


class SparkWorker:
    """Takes the jobs of queues and runs a handler on Spark's executors.

    `handler` takes a job, like a handler of `Worker`, or is an `App` or one of its tasks, or takes a batch of jobs: a
    `pandas.DataFrame`, a `pyarrow.Table` or a DataFrame of Spark, by the annotation of its argument or `takes=`. A
    batch has the columns queue, job_id, token, position, name, data (JSON text, or parsed by `data_schema`),
    attempts_made, opts, group and added_at.
    """

    def __init__(
        self,
        queue: str | Sequence[str] | App | Task,
        handler: object = None,
        *,
        spark: SparkSession | None = None,
        master: str | None = None,
        redis: str | None = None,
        options: SparkWorkerOptions | None = None,
        **fields: object,
    ) -> None:
        """`SparkWorker(app)` runs the tasks of all queues of an app, `SparkWorker("emails", app)` those of one."""
        if isinstance(queue, App | Task):
            handler, queue = queue, ()
        app = app_of(handler)
        queues = (queue,) if isinstance(queue, str) else tuple(queue)
        if app is not None:
            queues = queues or queues_of(handler, app)
            fields = _of_app(app, queues, options, fields)
            redis = redis or _server_of(app)
        self.options = _options_of(queues, options, fields)
        self.shape = shape_of(handler, self.options.takes)
        self.engine = engine_of(self.shape, self.options.engine)
        self.id = new_worker_id()
        self._handler = handler if app is None else AppReference.of(app)
        self._redis = redis
        self._sessions = SessionSource(spark, master or _LOCAL)
        self._stop = threading.Event()
        self._running = threading.Lock()

    def run_once(self) -> WorkSummary:
        """Processes jobs until none waits, is active or is due for a retry; returns what was done."""
        return self._run(until_idle=True)

    def run(self) -> WorkSummary:
        """Processes jobs until `stop` is called; returns what was done."""
        return self._run(until_idle=False)

    def stop(self) -> None:
        """Takes no more jobs: those in hand finish, and the rest goes back. Returns at once; `run` returns then."""
        self._stop.set()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    # --- running --------------------------------------------------------------------------------------------

    def _run(self, *, until_idle: bool) -> WorkSummary:
        if not self._running.acquire(blocking=False):
            raise InvalidOption("run", "is called while the worker runs", "make another SparkWorker")
        try:
            return self._supervised(until_idle=until_idle)
        finally:
            self._stop.clear()
            self._running.release()

    def _supervised(self, *, until_idle: bool) -> WorkSummary:
        server = self._server()
        with open_transport(server.url) as transport, self._stop_signal(transport):
            self._check_queues(transport)
            engine = self._engine(server)
            try:
                return self._rounds(engine, transport, until_idle=until_idle)
            finally:
                engine.close()

    def _engine(self, server: Choice) -> LoopEngine | RowsEngine:
        if self.engine == "rows":
            return RowsEngine(self.options, self._handler, server, self.id, self._stop)
        return LoopEngine(self.options, self._handler, self.shape, server, self.id)

    def _rounds(
        self, engine: LoopEngine | RowsEngine, transport: BlockingTransport, *, until_idle: bool
    ) -> WorkSummary:
        total, failures = WorkSummary(), 0
        while not self._stop.is_set():
            try:
                done, is_idle = engine.round(self._sessions.session(), until_idle=until_idle)
            except Exception as error:  # noqa: BLE001  # Spark's errors have many types
                failures += 1
                self._recover(error, failures, transport, engine)
                total = replace(total, restarts=total.restarts + 1)
                continue
            failures = 0
            total = total.plus(done)
            if until_idle and is_idle:
                break
        return total

    def _server(self) -> Choice:
        session = self._sessions.session()
        choice = choose(self._redis, Driver.of(session))
        check_reachable(choice.url)
        return choice

    def _stop_signal(self, transport: BlockingTransport) -> StopSignal:
        return StopSignal(self._stop, transport, stop_key(self._keys(transport)[0], self.id))

    def _keys(self, transport: BlockingTransport) -> list[QueueKeys]:
        return [
            QueueKeys(queue, self.options.prefix).resolve(cluster=transport.is_cluster)
            for queue in self.options.queues
        ]

    def _check_queues(self, transport: BlockingTransport) -> None:
        if self.options.missing == "ignore":
            return
        absent = [
            keys.name
            for keys in self._keys(transport)
            if not transport.run(plain(int, "EXISTS", *mark_keys(keys)))
        ]
        if absent:
            raise QueueMissing(absent, transport.address.label, self.options.prefix)

    def _recover(
        self, error: Exception, failures: int, transport: BlockingTransport, engine: LoopEngine | RowsEngine
    ) -> None:
        """After a failure: gives back what was held, and waits; raises when there were too many in a row."""
        if self._stop.is_set():
            self._give_back(transport, engine)
            return
        reason = (
            self._sessions.drop_if_dead(wait_seconds=1.0) or f"{type(error).__name__}: {str(error)[:500]}"
        )
        self._give_back(transport, engine)
        if failures > self.options.max_restarts:
            raise error
        pause = min(_FIRST_PAUSE * 2 ** (failures - 1), _LONGEST_PAUSE)
        _log.warning("work on %s failed, again in %.1f s: %s", ", ".join(self.options.queues), pause, reason)
        self._stop.wait(pause)

    def _give_back(self, transport: BlockingTransport, engine: LoopEngine | RowsEngine) -> None:
        try:
            for keys in self._keys(transport):
                count = engine.release(transport, keys)
                if count:
                    _log.warning("%d jobs of %s were given back after a failure", count, keys.name)
        except TorilError as error:  # the stalled sweep returns them when their locks have expired
            _log.warning("jobs could not be given back: %s", error)


def _of_app(
    app: App, queues: tuple[str, ...], options: SparkWorkerOptions | None, fields: Mapping[str, Any]
) -> dict[str, Any]:
    prefix = prefix_of(app, queues)
    given = fields.get("prefix", prefix) if options is None else options.prefix
    if given != prefix:
        raise InvalidOption(
            "prefix", f"is {given!r}, the app has {prefix!r}", "leave it out, or app.configure"
        )
    return dict(fields) if options is not None else {**fields, "prefix": prefix}


def _server_of(app: App) -> str | None:
    choice = app.connection.choice
    if choice is None or isinstance(choice, str):
        return choice
    raise InvalidOption("redis", "of the app is no URL, which could be sent to executors", "give redis=URL")


def _options_of(
    queues: tuple[str, ...], options: SparkWorkerOptions | None, fields: Mapping[str, Any]
) -> SparkWorkerOptions:
    if options is not None:
        if fields:
            raise InvalidOption("options", "is given together with single options", "give one or the other")
        return replace(options, queues=queues)
    own = {name for name in SparkWorkerOptions.__dataclass_fields__ if name not in ("queues", "worker")}
    mine = {name: value for name, value in fields.items() if name in own}
    others = {name: value for name, value in fields.items() if name not in own}
    return SparkWorkerOptions(queues=queues, worker=others, **mine)
