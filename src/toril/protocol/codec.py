"""JSON and msgpack, the only two forms in which toril writes values.

Guarantee: what `to_json` returns is read by Node as the same value, or the call raises `NotSerializable`
before any I/O. Nothing is pickled, and nothing is imported by a name in a payload.

Values: everything JSON has; integers of any size; dataclasses, msgspec structs, TypedDicts, named tuples,
enums, dates (ISO 8601), UUIDs, decimals (as strings), bytes (base64), sets (as lists); pydantic models,
recognised without importing pydantic.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from typing import Any, Generic, Never, TypeVar, cast, overload

import msgspec

from toril.errors import (
    InvalidOption,
    MalformedValue,
    NotSerializable,
    PayloadMismatch,
    PayloadTooLarge,
)
from toril.protocol.json_faults import fault_in
from toril.protocol.json_types import JsonFields, JsonObject, JsonValue
from toril.protocol.schema import Schema, check_against, refuse_unknown_keywords

T = TypeVar("T")

MAX_PAYLOAD_BYTES = 10 * 1024 * 1024  # data and options together

# Raises when a value does not fit a schema, e.g. `lambda schema, value: jsonschema.validate(value, schema)`.
Validator = Callable[[JsonFields, JsonValue], object]


Decode = Callable[[bytes], JsonValue]


# --- JSON ---------------------------------------------------------------------------------------------------


def _encode_other(value: JsonValue) -> msgspec.Raw:
    """Encodes what msgspec does not: pydantic models, recognised by their methods."""
    if hasattr(type(value), "model_dump_json"):
        return msgspec.Raw(value.model_dump_json(by_alias=True).encode())
    raise TypeError(f"a {type(value).__qualname__} has no JSON form")


_json = msgspec.json.Encoder(enc_hook=_encode_other)
_any_json = msgspec.json.Decoder()


def to_json(value: object, *, field: str = "data") -> bytes:
    """`value` as JSON. `field` names the value in the error if there is no such form."""
    if value is None:
        return b"null"  # what most handlers return
    try:
        raw = _json.encode(value)
    except RecursionError:
        raise NotSerializable(field, "is nested too deeply or contains itself", "flatten it") from None
    except OverflowError:  # integers beyond 64 bits, which some versions of msgspec do not write
        raw = _encode_with_big_integers(value, field)
    except _UNWRITABLE:
        raise fault_in(value, _can_write, field) from None
    # NaN and the infinities are written as null, like JSON.stringify does, which would lose them silently.
    # Only an output with a null can have had one, so most values pay nothing for this.
    if b"null" in raw:
        _refuse_non_finite(value, field)
    return raw


# Unicode errors, among them those of lone surrogates, are value errors.
_UNWRITABLE = (TypeError, ValueError, msgspec.MsgspecError)


def _can_write(value: object) -> bool:
    try:
        _json.encode(value)
    except (OverflowError, RecursionError):
        return True  # not what is looked for: big integers can be written, and depth is another error
    except _UNWRITABLE:
        return False
    return True


def _encode_with_big_integers(value: object, field: str) -> bytes:
    try:
        plain = msgspec.to_builtins(value, enc_hook=_as_builtins)
        return json.dumps(plain, ensure_ascii=False, separators=(",", ":")).encode()
    except _UNWRITABLE:
        raise fault_in(value, _can_write, field) from None


def _as_builtins(value: JsonValue) -> JsonValue:
    if hasattr(type(value), "model_dump"):
        return value.model_dump(mode="json", by_alias=True)
    raise TypeError(f"a {type(value).__qualname__} has no JSON form")


def _refuse_non_finite(value: object, field: str) -> None:
    for path in _non_finite(value, ""):
        raise NotSerializable(
            field + path, "is NaN or infinite, which JSON cannot hold", "use None or a string"
        )


def _non_finite(value: JsonValue, path: str) -> Iterator[str]:
    kind = type(value)
    if kind is float:
        if not math.isfinite(value):
            yield path
    elif kind is str or kind is int or value is None or kind is bool:
        return
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from _non_finite(item, f"{path}.{key}")
    elif isinstance(value, (list, tuple, set, frozenset)):
        for index, item in enumerate(value):
            yield from _non_finite(item, f"{path}[{index}]")
    elif hasattr(kind, "model_dump"):
        yield from _non_finite(value.model_dump(), path)
    else:
        yield from _non_finite_fields(value, path)


def _non_finite_fields(value: object, path: str) -> Iterator[str]:
    names = getattr(value, "__struct_fields__", ()) or getattr(value, "__dataclass_fields__", ())
    for name in names:
        yield from _non_finite(getattr(value, name, None), f"{path}.{name}")


@overload
def from_json(raw: bytes | str) -> JsonValue: ...
@overload
def from_json(raw: bytes | str, model: type[T], *, field: str = ...) -> T: ...
@overload
def from_json(raw: bytes | str, model: object = ..., *, field: str = ...) -> JsonValue: ...
def from_json(raw: bytes | str, model: object = Any, *, field: str = "value") -> JsonValue:
    """Returns the value of a JSON text, as `model`. Malformed text raises `MalformedValue`, a permanent error."""
    try:
        return _any_json.decode(raw) if model is Any else _decoder(model).decode(raw)
    except msgspec.ValidationError as error:
        if model is Any:
            return _from_lenient_json(raw, field)
        raise PayloadMismatch(field, str(error)) from None
    except (msgspec.DecodeError, UnicodeDecodeError):
        return _from_lenient_json(raw, field)
    except RecursionError:
        raise MalformedValue(field, "nested too deeply") from None


def _from_lenient_json(raw: bytes | str, field: str) -> JsonValue:
    """Node escapes lone surrogates and reads 1e400 as infinity; so does the standard library."""
    try:
        return json.loads(raw, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        problem = error.msg if isinstance(error, json.JSONDecodeError) else str(error).split(":")[0]
        raise MalformedValue(field, problem) from None


def _refuse_constant(name: str) -> Never:
    raise ValueError(f"{name} is not JSON")


@lru_cache(maxsize=256)
def _decoder(model: object) -> msgspec.json.Decoder[Any]:
    return msgspec.json.Decoder(model, dec_hook=_decode_other)


def _decode_other(kind: object, value: JsonValue) -> JsonValue:
    """Decodes pydantic models within other types; an error of theirs is a mismatch at their place."""
    if hasattr(kind, "model_validate"):
        try:
            return kind.model_validate(value)
        except ValueError as error:  # pydantic's ValidationError is one
            raise ValueError(_pydantic_problem(error)) from None
    raise TypeError(f"a {getattr(kind, '__qualname__', kind)} has no JSON form")


# --- msgpack ------------------------------------------------------------------------------------------------

_pack = msgspec.msgpack.Encoder()
_unpack = msgspec.msgpack.Decoder()


def pack(value: object, *, field: str = "options") -> bytes:
    """`value` as msgpack, the form in which the scripts take options and argument lists."""
    try:
        return _pack.encode(value)
    except (TypeError, ValueError, OverflowError, RecursionError, msgspec.MsgspecError) as error:
        raise NotSerializable(field, str(error) or "has no msgpack form") from None


def unpack(raw: bytes, *, field: str = "options") -> JsonValue:
    """The value of a msgpack text."""
    try:
        return _unpack.decode(raw)
    except (ValueError, RecursionError, msgspec.MsgspecError) as error:
        raise MalformedValue(field, str(error)) from None


# --- limits -------------------------------------------------------------------------------------------------


def check_size_limit(data: bytes, size_limit: int | None) -> None:
    """Refuses data above the `size_limit` of its job."""
    if size_limit is not None and len(data) > size_limit:
        raise PayloadTooLarge("data", f"has {len(data)} bytes", f"size_limit allows {size_limit}")


def check_size(data: bytes, options: JsonFields, *, size_limit: int | None = None) -> None:
    """Refuses a job larger than 10 MB (data and options) or than its own `size_limit` (data alone)."""
    check_size_limit(data, size_limit)
    if len(data) * 2 < MAX_PAYLOAD_BYTES:  # options are bounded far below the other half
        return
    size = len(data) + len(to_json(options, field="options"))
    if size > MAX_PAYLOAD_BYTES:
        remedy = f"at most {MAX_PAYLOAD_BYTES} are allowed: store the payload elsewhere and send a reference"
        raise PayloadTooLarge("data", f"has {size} bytes with its options", remedy)


# --- payload models -----------------------------------------------------------------------------------------


class PayloadCodec(Generic[T]):
    """JSON for the payload of one queue, checked against an optional model on both sides.

    `model` is a dataclass, TypedDict, msgspec struct or any type msgspec decodes; a pydantic model; or a JSON
    schema (a mapping), checked by `validator` or, within the keywords it knows, by toril itself. Without a
    model every JSON value passes. A mismatch raises `PayloadMismatch`, whose message names the place, never
    the value.
    """

    __slots__ = ("_check", "_decode", "model")

    def __init__(
        self, model: type[T] | JsonFields | None = None, *, validator: Validator | None = None
    ) -> None:
        self.model = model
        self._check = model is not None
        self._decode = _payload_decoder(model, validator)

    def encode(self, value: object) -> bytes:
        """`value` as JSON, after the check that the other side will make."""
        raw = to_json(value)
        if self._check:
            self._decode(raw)
        return raw

    def direct_decoder(self) -> Callable[[bytes], T] | None:
        """Decodes without a step between: for what is decoded for every job. None if the model has no such decoder.

        It raises errors of msgspec; `decode` raises the error with the place for the same text.
        """
        if (
            self.model is None
            or isinstance(self.model, Mapping)
            or hasattr(self.model, "model_validate_json")
        ):
            return None
        model: object = self.model
        return cast("Callable[[bytes], T]", _decoder(model).decode)

    def decode(self, raw: bytes) -> T:
        """The payload as an instance of the model."""
        return cast(T, self._decode(raw))


def _payload_decoder(model: object, validator: Validator | None) -> Decode:
    if model is None or model is Any:
        return lambda raw: from_json(raw, field="data")
    if isinstance(model, Mapping):
        return _schema_decoder(model, validator)
    if validator is not None:
        raise InvalidOption("validator", "is for JSON schemas", "leave it out: the model checks itself")
    if hasattr(model, "model_validate_json"):
        return _pydantic_decoder(model)
    try:
        _decoder(model)
    except TypeError as error:
        raise InvalidOption(
            "payload", str(error), "give a dataclass, TypedDict, struct or pydantic model"
        ) from None
    return lambda raw: from_json(raw, model, field="data")


def _schema_decoder(schema: Schema, validator: Validator | None) -> Decode:
    if validator is None:
        refuse_unknown_keywords(schema)
        validator = check_against

    def decode(raw: bytes) -> JsonValue:
        value = from_json(raw, field="data")
        try:
            validator(schema, value)
        except PayloadMismatch:
            raise
        except Exception as error:
            raise PayloadMismatch("data", f"does not fit the schema ({type(error).__name__})") from error
        return value

    return decode


def _pydantic_decoder(model: Any) -> Decode:
    def decode(raw: bytes) -> JsonValue:
        try:
            return model.model_validate_json(raw)
        except ValueError as error:  # pydantic's ValidationError is one
            raise PayloadMismatch("data", _pydantic_problem(error)) from None

    return decode


def _pydantic_problem(error: ValueError) -> str:
    details: list[JsonObject] = getattr(error, "errors", list)()
    places = [f"{'.'.join(map(str, each['loc'])) or 'value'}: {each['msg']}" for each in details[:5]]
    return ", ".join(places) or "does not fit the model"
