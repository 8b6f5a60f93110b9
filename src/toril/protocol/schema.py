"""The part of JSON Schema that job payloads use, and the schemas that toril ships.

Guarantee: a schema with a keyword that is not understood here is refused when it is given, so a value that
passes has really been checked.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from functools import cache
from importlib import resources

from toril.errors import InvalidOption, PayloadMismatch
from toril.protocol.json_types import JsonFields, JsonValue

Schema = JsonFields

SHIPPED = ("job", "event", "envelope", "dead_letter")


@cache
def shipped_schema(name: str) -> Schema:
    """One of the JSON schemas in this package: `job`, `event`, `envelope` or `dead_letter`."""
    if name not in SHIPPED:
        raise InvalidOption("schema", f"there is no schema {name!r}", f"choose one of {', '.join(SHIPPED)}")
    text = resources.files("toril.protocol").joinpath("schemas", f"{name}.json").read_text("utf-8")
    schema: Schema = json.loads(text)
    return schema


def refuse_unknown_keywords(schema: object, path: str = "payload") -> None:
    """Raises `InvalidOption` for the first keyword that `check_against` would ignore."""
    if isinstance(schema, bool):
        return
    if not isinstance(schema, Mapping):
        raise InvalidOption(path, "is not a JSON schema", "give a mapping")
    for keyword, value in schema.items():
        if keyword not in _KNOWN:
            raise InvalidOption(
                path, f"the keyword {keyword!r} is not supported", "pass validator=, e.g. jsonschema"
            )
        for name, part in _subschemas(keyword, value):
            refuse_unknown_keywords(part, f"{path}.{name}")


def _subschemas(keyword: str, value: JsonValue) -> list[tuple[str, Schema]]:
    if keyword == "properties":
        return [(f"properties.{name}", part) for name, part in value.items()]
    if keyword in ("anyOf", "oneOf", "allOf"):
        return [(f"{keyword}[{index}]", part) for index, part in enumerate(value)]
    if keyword in ("items", "additionalProperties", "not"):
        return [(keyword, value)]
    return []


def check_against(schema: Schema | bool, value: object, path: str = "data") -> None:
    """Raises `PayloadMismatch` with the first place where `value` does not match `schema`."""
    if isinstance(schema, bool):
        if not schema:
            raise PayloadMismatch(path, "is not allowed here")
        return
    for keyword, argument in schema.items():
        if keyword in _TESTS:
            applies, holds, problem = _TESTS[keyword]
            if applies(value) and not holds(argument, value):
                raise PayloadMismatch(path, problem.format(argument))
    _check_object(schema, value, path)
    _check_array(schema, value, path)
    _check_combinations(schema, value, path)


def _check_object(schema: Schema, value: object, path: str) -> None:
    if not isinstance(value, dict):
        return
    for name in schema.get("required", ()):
        if name not in value:
            raise PayloadMismatch(f"{path}.{name}", "is missing")
    known = schema.get("properties", {})
    others = schema.get("additionalProperties", True)
    for name, item in value.items():
        check_against(known.get(name, others), item, f"{path}.{name}")


def _check_array(schema: Schema, value: object, path: str) -> None:
    if isinstance(value, list) and "items" in schema:
        for index, item in enumerate(value):
            check_against(schema["items"], item, f"{path}[{index}]")


def _check_combinations(schema: Schema, value: object, path: str) -> None:
    for part in schema.get("allOf", ()):
        check_against(part, value, path)
    if "anyOf" in schema and not any(_matches_schema(part, value) for part in schema["anyOf"]):
        raise PayloadMismatch(path, "fits none of the allowed forms")
    if "oneOf" in schema and sum(_matches_schema(part, value) for part in schema["oneOf"]) != 1:
        raise PayloadMismatch(path, "does not fit exactly one of the allowed forms")
    if "not" in schema and _matches_schema(schema["not"], value):
        raise PayloadMismatch(path, "has a form that is not allowed")


def _matches_schema(schema: Schema | bool, value: object) -> bool:
    try:
        check_against(schema, value)
    except PayloadMismatch:
        return False
    return True


# --- the keywords -------------------------------------------------------------------------------------------


def _any_value(_value: object) -> bool:
    return True


def _is_text(value: object) -> bool:
    return isinstance(value, str)


def _is_list(value: object) -> bool:
    return isinstance(value, list)


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


Condition = Callable[[JsonValue, JsonValue], bool]

_TYPES: dict[str, Callable[[JsonValue], bool]] = {
    "object": lambda value: isinstance(value, dict),
    "array": _is_list,
    "string": _is_text,
    "boolean": lambda value: isinstance(value, bool),
    "null": lambda value: value is None,
    "number": _is_number,
    "integer": lambda value: _is_number(value) and value % 1 == 0,
}


def _has_type(names: str | list[str], value: object) -> bool:
    return any(_TYPES[name](value) for name in ([names] if isinstance(names, str) else names))


# keyword → (the values it applies to, the condition, the text when it does not hold)
_TESTS: dict[str, tuple[Callable[[JsonValue], bool], Condition, str]] = {
    "type": (_any_value, _has_type, "is not of type {}"),
    "enum": (_any_value, lambda allowed, value: value in allowed, "is not one of the allowed values"),
    "const": (_any_value, lambda allowed, value: value == allowed, "is not the one allowed value"),
    "minimum": (_is_number, lambda limit, value: value >= limit, "is below {}"),
    "maximum": (_is_number, lambda limit, value: value <= limit, "is above {}"),
    "exclusiveMinimum": (_is_number, lambda limit, value: value > limit, "is not above {}"),
    "exclusiveMaximum": (_is_number, lambda limit, value: value < limit, "is not below {}"),
    "minLength": (_is_text, lambda limit, value: len(value) >= limit, "has fewer than {} characters"),
    "maxLength": (_is_text, lambda limit, value: len(value) <= limit, "has more than {} characters"),
    "pattern": (_is_text, lambda pattern, value: re.search(pattern, value) is not None, "does not match {}"),
    "minItems": (_is_list, lambda limit, value: len(value) >= limit, "has fewer than {} items"),
    "maxItems": (_is_list, lambda limit, value: len(value) <= limit, "has more than {} items"),
}

_STRUCTURE = frozenset(
    {"required", "properties", "additionalProperties", "items", "anyOf", "oneOf", "allOf", "not"}
)

_ANNOTATIONS = frozenset(
    {"$schema", "$id", "$comment", "title", "description", "default", "examples", "deprecated"}
)

_KNOWN = _STRUCTURE | _ANNOTATIONS | set(_TESTS)
