"""`data_schema`: the type of the data of jobs, as Spark writes schemas."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql.pandas.types import to_arrow_type
from pyspark.sql.types import DataType, StructType

from toril.errors import InvalidOption


def data_type_of(schema: Any) -> pa.DataType | None:
    """The Arrow type of `data_schema`, which is DDL (`x double, y double`), JSON or a `StructType`."""
    if schema is None:
        return None
    try:
        parsed = schema if isinstance(schema, DataType) else _parsed(schema)
        return to_arrow_type(parsed, timezone="UTC")
    except (PySparkException, ValueError, TypeError) as error:
        remedy = "write x double, y double, or give a StructType"
        raise InvalidOption("data_schema", f"cannot be read ({str(error)[:200]})", remedy) from None


def _parsed(text: Any) -> DataType:
    if not isinstance(text, str):
        raise TypeError(f"it is a {type(text).__name__}")
    if text.lstrip().startswith("{"):
        return StructType.fromJson(json.loads(text))
    return DataType.fromDDL(text)
