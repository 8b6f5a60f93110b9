"""Types of Spark that JSON and job options do not have, and what becomes of them.

Guarantee: a column that could never become JSON is refused before the first row; the others arrive with the value that
Spark shows.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from typing import Any, Final

import msgspec
import pyarrow as pa
from pyspark.sql.types import (
    ArrayType,
    CalendarIntervalType,
    DataType,
    MapType,
    StructType,
    VariantType,
    VariantVal,
    YearMonthIntervalType,
)

from toril.errors import InvalidOption
from toril.protocol.backoff import Backoff
from toril.protocol.options import Deduplication, KeepJobs


def check_types(schema: StructType) -> None:
    """Refuses columns that have no JSON form."""
    for field in schema.fields:
        if not isinstance(field.dataType, VariantType):
            _check_has_json_form(field.name, field.dataType)


def _check_has_json_form(path: str, kind: DataType) -> None:
    match kind:
        case VariantType():
            raise InvalidOption(path, "is a variant inside of another value", "use to_json(…) on it")
        case YearMonthIntervalType() | CalendarIntervalType():
            raise InvalidOption(path, "is an interval of months, which have no length", "cast it to string")
        case MapType() if isinstance(kind.keyType, (ArrayType, MapType, StructType)):
            raise InvalidOption(path, "is a map whose keys are no plain values", "make them text")
        case MapType():
            _check_has_json_form(f"{path}.value", kind.valueType)
        case ArrayType():
            _check_has_json_form(f"{path}[]", kind.elementType)
        case StructType():
            for field in kind.fields:
                _check_has_json_form(f"{path}.{field.name}", field.dataType)


# --- variants ----------------------------------------------------------------------------------------------------


def variant_columns(schema: pa.Schema) -> list[str]:
    """Columns that hold variants, which travel as two binary parts."""
    return [field.name for field in schema if _is_variant(field.type)]


def _is_variant(kind: pa.DataType) -> bool:
    if not pa.types.is_struct(kind) or {part.name for part in kind} != {"value", "metadata"}:
        return False
    return any(b"variant" in (part.metadata or {}) for part in kind)


def with_variants(fields: Mapping[str, Any], columns: Sequence[str]) -> dict[str, Any]:
    """A row with its variants as plain values."""
    return {**fields, **{name: _plain_variant(fields[name]) for name in columns}}


def _plain_variant(parts: Mapping[str, bytes] | None) -> object:
    if parts is None:
        return None
    return json.loads(VariantVal(parts["value"], parts["metadata"]).toJson(), parse_float=_exact_number)


def _exact_number(text: str) -> float | Decimal:
    """A float where it has all digits of the text, otherwise a decimal."""
    near = float(text)
    return near if Decimal(repr(near)) == Decimal(text) else Decimal(text)


# --- numbers -----------------------------------------------------------------------------------------------------

_LARGEST_IN_JAVASCRIPT: Final = 2**53 - 1  # beyond it, neighbours are the same number to JavaScript


def plain_value(value: object) -> Any:
    """What Arrow gives as JSON types; a decimal keeps its digits."""
    if isinstance(value, dict):
        return {str(key): plain_value(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [plain_value(one) for one in value]
    return msgspec.Raw(format(value, "f").encode()) if isinstance(value, Decimal) else value


def text_of_large(value: object) -> Any:
    """The same, with text for what JavaScript would round: decimals, and integers beyond 2^53."""
    if isinstance(value, dict):
        return {str(key): text_of_large(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [text_of_large(one) for one in value]
    if isinstance(value, Decimal):
        return format(value, "f")
    is_large = type(value) is int and abs(value) > _LARGEST_IN_JAVASCRIPT
    return str(value) if is_large else value


# --- options -----------------------------------------------------------------------------------------------------


def plain_number(value: object) -> Any:
    """SQL writes 1.5 and means a decimal; options know whole numbers and floats."""
    if not isinstance(value, Decimal):
        return value
    return int(value) if value == value.to_integral_value() else float(value)


def _backoff(type: str = "exponential", delay: float = 1.0, **rest: Any) -> Backoff:  # noqa: A002 — its name
    match type:
        case "fixed":
            return Backoff.fixed(delay, **rest)
        case "exponential":
            return Backoff.exponential(delay, **rest)
        case _:
            return Backoff.custom(type, delay, **rest)


_MAKERS: Final[Mapping[str, Callable[..., Any]]] = {
    "backoff": _backoff,
    "remove_on_complete": KeepJobs,
    "remove_on_fail": KeepJobs,
    "deduplication": Deduplication,
}


def option_value(name: str, value: object) -> Any:
    """The value of a column as `JobOptions` takes it: structs become option objects."""
    if name == "deduplication" and isinstance(value, str):
        return Deduplication.simple(value)
    if not isinstance(value, dict) or name not in _MAKERS:
        return plain_number(value)
    parts = {part: plain_number(inner) for part, inner in value.items() if inner is not None}
    try:
        return _MAKERS[name](**parts)
    except TypeError:
        raise InvalidOption(
            name, f"has the parts {', '.join(value)}", "see its fields in toril.JobOptions"
        ) from None
