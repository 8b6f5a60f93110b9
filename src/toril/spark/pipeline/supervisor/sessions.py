"""The session of a pipeline: started when it is first needed, and started again when its Java process has ended.

Guarantee: a caller gets a session whose Java process was running a moment ago, or the error of starting one; a
session that the user made is used until its process ends and is then replaced by one with the same settings.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any, Final, Protocol, cast

from toril.errors import SparkUnavailable
from toril.spark.pipeline.session import LOCAL, build_session, own_session
from toril.spark.pipeline.supervisor.java import process, reason_of_end, reset_pyspark
from toril.spark.sources.server_choice import master_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class MasterCheck(Protocol):
    """Refuses masters under which a pipeline cannot run: its options."""

    def check_master(self, master: str) -> None:
        """Raises InvalidOption for a master that is refused."""


class SessionSource:
    """The one session of a pipeline, for all its threads."""

    def __init__(
        self,
        given: SparkSession | None,
        master: str | None = None,
        check: MasterCheck | None = None,
        *,
        spark_log: bool = False,
    ) -> None:
        self._given = given
        self.master = master_of(given) if given is not None else master or LOCAL
        self._check = check
        self._spark_log = spark_log
        self._settings: dict[str, str] = {}  # of the session that was given
        self._session: SparkSession | None = None
        self._java: Any = None  # its process, where it is ours to watch
        self._lock = threading.RLock()
        self.on_demand = cast("SparkSession", _OnDemand(self))

    def session(self) -> SparkSession:
        with self._lock:
            if self._session is None:
                self._session = self._started()
            return self._session

    def _started(self) -> SparkSession:
        try:
            base = self._given or self._built()
            if self._check is not None:  # another session than we asked for may have been active
                self._check.check_master(master_of(base))
            self._java = process() if getattr(base, "sparkContext", None) is not None else None
            if self._given is not None:
                self._settings = _settings_of(base)
            return own_session(base)
        except Exception as error:
            java = process()
            if reason := reason_of_end(java, wait_seconds=1.0):
                reset_pyspark(java)
                self._given = self._java = None
                raise SparkUnavailable(f"{reason} while it was started") from error
            raise

    def _built(self) -> SparkSession:
        """A new session: as configured, or with the settings of the given one that ended."""
        settings = {name: value for name, value in self._settings.items() if name not in _NOT_SETTINGS}
        memory = settings.pop("spark.driver.memory", "1g")
        return build_session(self.master, memory, spark_log=self._spark_log, **settings)

    @property
    def is_given(self) -> bool:
        """Whether the caller made the session."""
        return self._given is not None

    @property
    def is_there(self) -> bool:
        """Whether a session was started."""
        return self._session is not None

    def drop_if_dead(self, wait_seconds: float = 0.0) -> str | None:
        """Returns why the Java process ended, if it did; the next use then starts another.

        After an error, give `wait_seconds`: connections break before the process has ended.
        """
        if not self._lock.acquire(blocking=False):
            return None  # one is being started right now
        try:
            reason = reason_of_end(self._java, wait_seconds)
            if reason is not None:
                reset_pyspark(self._java)
                self._given = self._session = self._java = None
            return reason
        finally:
            self._lock.release()


# What Spark adds for one run of an application, or what we pass on by its own name.
_NOT_SETTINGS: Final = frozenset(
    f"spark.{name}"
    for name in ("app.id", "app.name", "app.startTime", "app.submitTime", "driver.port", "master")
)


def _settings_of(session: SparkSession) -> dict[str, str]:
    """The settings of a session's context; a remote session has none to repeat."""
    context = getattr(session, "sparkContext", None)
    return dict(context.getConf().getAll()) if context is not None else {}


class _OnDemand:
    """A proxy that starts the session on first use: a step that finds nothing to do does not start Spark."""

    def __init__(self, source: SessionSource) -> None:
        self._source = source

    def __getattr__(self, name: str) -> Any:
        return getattr(self._source.session(), name)
