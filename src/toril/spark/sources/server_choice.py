"""Chooses the server of Spark's tasks. The driver checks that it answers before tasks start.

Guarantee: the server is chosen on the driver, by the rule of `toril.transport.default_server`, and its whole address is
sent to the tasks. An embedded server that nobody named is used by a local master only: executors elsewhere would each
find an empty one. A wrong address is an error with a remedy within seconds, not an error of a task after minutes.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import Any, Final

from toril.errors import InvalidOption, RedisError, RedisUnavailable
from toril.transport import BlockingTransport, ConnectionPolicy, whole_url
from toril.transport.default_server import VARIABLE, default_folder, default_url, inherit, named_url

# Tasks are patient with a server that is busy; whoever has just typed an address wants to know at once.
_FIRST_CONTACT: Final = ConnectionPolicy(connect_timeout=5.0, command_timeout=5.0, call_attempts=2)
_REMEDY: Final = (
    'check option("url", …) or TORIL_REDIS_URL, that the server runs and is reachable from the driver and the '
    "executors, and rediss:// if it speaks TLS"
)
_NAME_IT: Final = f'set option("url", …), redis= or {VARIABLE} to a server that all executors reach'
# Spark gives it to every Python process: the folders of the JVM for which it works, which no other JVM has.
_FOLDERS_OF_JVM: Final = "SPARK_LOCAL_DIRS"


def is_local(master: str) -> bool:
    """Whether tasks run in the driver's own process. `local-cluster[…]` starts executors of its own."""
    return master == "local" or master.startswith("local[")


def master_of(spark: object) -> str:
    """The master of a session; that of a Spark Connect server is unknown."""
    context = getattr(spark, "sparkContext", None)
    return str(context.master) if context is not None else "sc://"


def require_named_server(master: str, given: str | None = None) -> None:
    """Refuses a master whose executors would not find an embedded server, unless a server is named."""
    if named_url(given) is None and not is_local(master):
        raise _not_named(
            f"the Spark master {master} is not local: its executors would not find an embedded one"
        )


def url_for(master: str, given: str | None = None) -> str:
    """The server that a job under this master uses, as an address that holds in every process."""
    require_named_server(master, given)
    return whole_url(named_url(given) or default_url())


def _not_named(why: str) -> InvalidOption:
    return InvalidOption("url", f"no server is named, and {why}", _NAME_IT)


@dataclass(frozen=True, slots=True)
class Driver:
    """What the driver knows and the process that plans a query does not."""

    master: str
    folder: str  # of the embedded server, as the driver would resolve it
    url: str | None = field(repr=False)  # of the driver's environment; it may hold a password

    @classmethod
    def of(cls, spark: Any) -> Driver:
        return cls(master_of(spark), default_folder(), named_url())

    def url_for(self, given: str | None) -> str:
        inherit(self.folder)
        return url_for(self.master, self.url if given is None else given)


@dataclass(frozen=True, slots=True)
class Choice:
    """The server of one query."""

    url: str
    jvm: str | None = None  # the only one whose tasks may use it; None: all


def choose(given: str | None, driver: Driver | None, *, streams: bool = False) -> Choice:
    """The server of a query, chosen by the process that plans it.

    Without `toril.spark.register` the master is unknown. Then an embedded server that nobody named is for tasks of
    the driver's own JVM, which is where a local master runs them. A stream may have no task for hours that could find
    out that it is elsewhere, so it is refused.
    """
    if driver is not None:
        return Choice(driver.url_for(given))
    named = named_url(given)
    if named is not None:
        return Choice(whole_url(named))
    if streams:
        raise _not_named(
            "which Spark master runs this stream is not known; call toril.spark.register(spark) before it"
        )
    return Choice(default_url(), os.environ.get(_FOLDERS_OF_JVM))


def require_driver_jvm(wanted: str | None) -> None:
    """Refuses a task that runs elsewhere than in the driver's JVM, where it would find another embedded server."""
    if wanted is not None and os.environ.get(_FOLDERS_OF_JVM) != wanted:
        raise _not_named("the Spark master is not local: this executor would not find the embedded one")


def check_reachable(url: str | None) -> None:
    """Asks the server for its time; the error has the address and what to check."""
    with BlockingTransport(url, policy=_FIRST_CONTACT) as transport:
        try:
            transport.connect()
        except RedisUnavailable as error:
            raise RedisUnavailable(f"{transport.address.label}: {error}", hint=_REMEDY) from None
        except RedisError as error:
            raise type(error)(f"{transport.address.label}: {error}", hint="") from None
