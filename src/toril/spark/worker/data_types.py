"""`data_schema`: the type of the data of jobs, as Spark writes schemas.

Guarantee: a schema is read without a Java process: the Python process that plans a query has none.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Final

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql.pandas.types import to_arrow_type
from pyspark.sql.types import DataType, StructType

from toril.errors import InvalidOption

_TOKEN: Final = re.compile(r"`[^`]+`|\w+|[<>(),:]")
_NAMED: Final[dict[str, Callable[[], pa.DataType]]] = {
    "tinyint": pa.int8,
    "byte": pa.int8,
    "smallint": pa.int16,
    "short": pa.int16,
    "int": pa.int32,
    "integer": pa.int32,
    "bigint": pa.int64,
    "long": pa.int64,
    "float": pa.float32,
    "real": pa.float32,
    "double": pa.float64,
    "string": pa.string,
    "boolean": pa.bool_,
    "bool": pa.bool_,
}


def data_type_of(schema: object) -> pa.DataType | None:
    """The Arrow type of `data_schema`, which is DDL (`x double, tags array<string>`), JSON or a `StructType`."""
    if schema is None:
        return None
    try:
        return _parsed(schema)
    except (PySparkException, ValueError, TypeError, LookupError) as error:
        remedy = "write x double, tags array<string>, or give a StructType"
        raise InvalidOption("data_schema", f"cannot be read ({str(error)[:200]})", remedy) from None


def _parsed(schema: object) -> pa.DataType:
    if isinstance(schema, DataType):
        return to_arrow_type(schema, timezone="UTC")
    if not isinstance(schema, str):
        raise TypeError(f"it is a {type(schema).__name__}")
    if schema.lstrip().startswith("{"):
        return to_arrow_type(StructType.fromJson(json.loads(schema)), timezone="UTC")
    return _Ddl(schema).columns()


class _Ddl:
    """Reads DDL from left to right."""

    def __init__(self, text: str) -> None:
        self._tokens = [found[0] for found in _TOKEN.finditer(text)]
        if "".join(self._tokens) != re.sub(r"\s", "", text) or not self._tokens:
            raise ValueError(f"{text!r} is no list of columns")
        self._at = 0

    def columns(self) -> pa.DataType:
        fields = self._fields("")
        if self._at < len(self._tokens):
            raise ValueError(f"{self._tokens[self._at]!r} is not expected")
        return pa.struct(fields)

    def _fields(self, end: str) -> list[pa.Field]:
        """Columns `name type` or `name: type`, separated by commas, up to `end`."""
        fields = []
        while True:
            name = self._next().strip("`")
            self._skip(":")
            fields.append(pa.field(name, self._type()))
            if not self._skip(","):
                break
        if end and not self._skip(end):
            raise ValueError(f"{end!r} is missing")
        return fields

    def _type(self) -> pa.DataType:
        name = self._next().lower()
        if name in _NAMED:
            return _NAMED[name]()
        match name:
            case "array":
                return pa.list_(self._of(1)[0])
            case "map":
                return pa.map_(*self._of(2))
            case "struct" if self._skip("<"):
                return pa.struct(self._fields(">"))
            case _:
                known = ", ".join([*_NAMED, "array<…>", "map<…>", "struct<…>"])
                raise ValueError(f"the type {name!r} is not one of {known}")

    def _of(self, count: int) -> list[pa.DataType]:
        """The types between < and >."""
        if not self._skip("<"):
            raise ValueError("'<' is missing")
        types = [self._type()]
        while self._skip(","):
            types.append(self._type())
        if not self._skip(">") or len(types) != count:
            raise ValueError(f"{count} types between '<' and '>' are expected")
        return types

    def _next(self) -> str:
        if self._at >= len(self._tokens):
            raise ValueError("a name or a type is missing at the end")
        self._at += 1
        return self._tokens[self._at - 1]

    def _skip(self, token: str) -> bool:
        found = self._at < len(self._tokens) and self._tokens[self._at] == token
        self._at += found
        return found
