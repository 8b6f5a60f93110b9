"""Which Python Spark's workers run.

Guarantee: on a local master they run the driver's own, unless the user names another, so that what the driver can
import they can import. Where a worker's Python lacks toril, the error says which Python on which machine it is.
"""

from __future__ import annotations

import operator
import os
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def use_driver_python(spark: SparkSession) -> None:
    """Without PYSPARK_PYTHON Spark starts `python3` of the PATH, which may be any."""
    context = getattr(spark, "sparkContext", None)  # a remote session has none
    if context is not None and context.master.startswith("local") and "PYSPARK_PYTHON" not in os.environ:
        context.pythonExec = sys.executable


def load(packed: bytes) -> Any:
    """Unpickles an object of toril where a task runs. This function is sent by value: toril may be missing there."""
    import pickle
    import socket
    import sys

    try:
        make, arguments, state = pickle.loads(packed)
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "toril":
            raise
        raise ModuleNotFoundError(
            f"the Python of Spark's workers, {sys.executable} on {socket.gethostname()}, lacks toril; install "
            "toril[spark] for it, or set PYSPARK_PYTHON, before the session starts, to one that has it",
            name="toril",
        ) from None
    made = make(*arguments)
    if hasattr(made, "__setstate__"):
        made.__setstate__(state)
    elif state:
        made.__dict__.update(state)
    return made


def as_portable(source: type) -> type:
    """A data source in a form that Spark can send to any Python; where toril is missing, the error says so."""
    from pyspark.sql.datasource import DataSource

    packed = _pickler().dumps((operator.itemgetter(0), ((source,),), None))

    class PortableSource(DataSource):
        @classmethod
        def name(cls) -> str:
            return named

        def _unpacked_reader(self) -> Any:
            return load(packed)(self.options)

        def schema(self) -> Any:
            return self._unpacked_reader().schema()

        def reader(self, schema: Any) -> Any:
            return self._unpacked_reader().reader(schema)

        def writer(self, schema: Any, overwrite: bool) -> Any:
            return self._unpacked_reader().writer(schema, overwrite)

        def streamReader(self, schema: Any) -> Any:
            return self._unpacked_reader().streamReader(schema)

        def streamWriter(self, schema: Any, overwrite: bool) -> Any:
            return self._unpacked_reader().streamWriter(schema, overwrite)

    named: str = source.name()  # type: ignore[attr-defined]
    return PortableSource


class Portable:
    """A pickled object for Spark's workers, with a clear error where it cannot be unpickled."""

    __slots__ = ()

    def __reduce_ex__(self, protocol: object) -> Any:
        parts: Any = object.__reduce_ex__(self, 2)
        return load, (_pickler().dumps(parts[:3]),)


def _pickler() -> Any:
    """Spark's pickler, configured to send the contents of this file by value."""
    from pyspark import cloudpickle

    pickler: Any = cloudpickle
    pickler.register_pickle_by_value(sys.modules[__name__])
    return pickler
