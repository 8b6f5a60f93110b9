"""The codec: what is written is read as the same value, or refused before it is sent."""

from __future__ import annotations

import enum
import json
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any, NamedTuple, TypedDict
from uuid import UUID

import msgspec
import numpy as np
import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as st

from toril.errors import (
    InvalidOption,
    MalformedValue,
    NotSerializable,
    PayloadMismatch,
    PayloadTooLarge,
    PermanentError,
)
from toril.protocol import codec
from toril.protocol.codec import (
    MAX_PAYLOAD_BYTES,
    PayloadCodec,
    check_size,
    from_json,
    pack,
    to_json,
    unpack,
)

text = st.text(st.characters(codec="utf-8"))
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | text,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(text, inner, max_size=4),
    max_leaves=20,
)


@dataclass
class Email:
    to: str
    copies: int = 0


class EmailStruct(msgspec.Struct):
    to: str
    copies: int = 0


class EmailDict(TypedDict):
    to: str
    copies: int


class EmailModel(pydantic.BaseModel):
    to: str
    copies: int = 0


class AliasedModel(pydantic.BaseModel):
    to: str = pydantic.Field(alias="recipient")


class Weight(pydantic.BaseModel):
    grams: float


@given(json_values)
def test_any_json_value_comes_back_as_it_was(value: Any) -> None:
    raw = to_json(value)
    assert from_json(raw) == value
    assert json.loads(raw) == value


@given(st.integers(min_value=2**64) | st.integers(max_value=-(2**63) - 1))
def test_integers_beyond_64_bits_come_back_exactly(value: int) -> None:
    assert from_json(to_json({"n": value})) == {"n": value}


def test_integers_that_the_encoder_cannot_write_take_the_slow_way(monkeypatch: pytest.MonkeyPatch) -> None:
    class Overflowing:
        def encode(self, _value: Any) -> bytes:
            raise OverflowError

    monkeypatch.setattr(codec, "_json", Overflowing())
    assert to_json({"n": 2**70, "é": [1]}) == '{"n":1180591620717411303424,"é":[1]}'.encode()


class Colour(enum.Enum):
    RED = "red"


class Point(NamedTuple):
    x: int
    y: int


def test_python_types_have_the_json_form_that_is_documented() -> None:
    value = {
        "email": Email("a@b.c"),
        "struct": EmailStruct("a@b.c"),
        "model": EmailModel(to="a@b.c"),
        "aliased": AliasedModel(recipient="a@b.c"),
        "colour": Colour.RED,
        "point": Point(1, 2),
        "when": datetime(2025, 1, 1, tzinfo=UTC),
        "price": Decimal("1.50"),
        "id": UUID(int=1),
        "raw": b"hi",
        "set": {1},
        3: "number keys become text",
    }
    assert from_json(to_json(value)) == {
        "email": {"to": "a@b.c", "copies": 0},
        "struct": {"to": "a@b.c", "copies": 0},
        "model": {"to": "a@b.c", "copies": 0},
        "aliased": {"recipient": "a@b.c"},
        "colour": "red",
        "point": [1, 2],
        "when": "2025-01-01T00:00:00Z",
        "price": "1.50",
        "id": "00000000-0000-0000-0000-000000000001",
        "raw": "aGk=",
        "set": [1],
        "3": "number keys become text",
    }


@dataclass
class Reading:
    value: float
    note: str | None = None


class ReadingStruct(msgspec.Struct):
    value: float


@pytest.mark.parametrize(
    ("value", "place"),
    [
        (float("nan"), "data"),
        ([1, float("inf")], "data[1]"),
        ({"a": {"b": (float("-inf"),)}}, "data.a.b[0]"),
        (Reading(float("nan")), "data.value"),
        ([ReadingStruct(float("nan"))], "data[0].value"),
        ({"w": Weight(grams=float("nan"))}, "data.w.grams"),
    ],
)
def test_nan_and_infinity_are_refused_and_located(value: Any, place: str) -> None:
    with pytest.raises(NotSerializable, match="NaN or infinite") as refused:
        to_json(value)
    assert refused.value.field == place


def test_null_alone_is_no_reason_to_refuse() -> None:
    assert to_json({"a": None, "b": "null", "c": Reading(1.0)}) == (
        b'{"a":null,"b":"null","c":{"value":1.0,"note":null}}'
    )


def test_what_has_no_json_form_is_refused_by_name() -> None:
    ring: list[Any] = []
    ring.append(ring)
    for value, problem in [
        ("\ud800", "lone surrogate"),
        ({"\udfff": 1}, "lone surrogate"),
        (ring, "nested too deeply"),
        (object(), "is of type object, which has no JSON form"),
        ({(1, 2): 3}, "has a key of type tuple"),
    ]:
        with pytest.raises(NotSerializable, match=problem) as refused:
            to_json(value, field="result")
        assert refused.value.field == "result"


class Order:
    """What applications have, and JSON has not."""


class Basket(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(arbitrary_types_allowed=True)
    orders: list[Any]


async def _coroutine() -> None: ...


HALF: Any = Fraction(1, 2)
_EXPECTED = [
    ({"items": [0, 1, 2, {"when": Order()}]}, "data.items[3].when", "test_codec.Order", "dataclasses"),
    ([Reading(HALF)], "data[0].value", "fractions.Fraction", "give float(…) or str(…)"),
    ([ReadingStruct(HALF)], "data[0].value", "fractions.Fraction", "give float(…) or str(…)"),
    ({"basket": Basket(orders=[1, Order()])}, "data.basket.orders[1]", "test_codec.Order", "dataclasses"),
    ({"a key": {"path": Path("x")}}, "data['a key'].path", "pathlib.PosixPath", "give str(path)"),
    ({7: {8: (range(3),)}}, "data['7']['8'][0]", "range", "give list(…)"),
    ({"n": np.int64(3)}, "data.n", "numpy.int64", "give value.tolist()"),
    ({"f": len}, "data.f", "builtin_function_or_method", "give its name"),
    ({"error": ValueError("secret")}, "data.error", "ValueError", "give str(error)"),
    ({"big": 2**70, "beside": [Order()]}, "data.beside[0]", "test_codec.Order", "dataclasses"),
]


@pytest.mark.parametrize(("value", "place", "kind", "remedy"), _EXPECTED, ids=[one[1] for one in _EXPECTED])
def test_the_error_says_where_it_is_what_it_is_and_what_to_write(
    value: Any, place: str, kind: str, remedy: str
) -> None:
    with pytest.raises(NotSerializable) as refused:
        to_json(value)
    assert refused.value.field == place
    assert refused.value.problem.endswith(f"{kind}, which has no JSON form")
    assert remedy in refused.value.remedy
    assert "secret" not in str(refused.value), "values are not shown"


def test_a_coroutine_that_was_not_awaited_is_named_as_such() -> None:
    forgotten = _coroutine()
    with pytest.raises(NotSerializable, match=r"data\.result: is of type coroutine, .*; await it first"):
        to_json({"result": forgotten})
    forgotten.close()


def test_a_lone_surrogate_is_located() -> None:
    with pytest.raises(NotSerializable, match=r"data\.text\[1\]: contains a lone surrogate"):
        to_json({"text": ["fine", "\ud800"]})
    with pytest.raises(NotSerializable, match=r"data\.inner: has a key with a lone surrogate"):
        to_json({"inner": {"\ud800": 1}})


@pytest.mark.parametrize("raw", [b"", b"{", b"[1,]", b"NaN", b"\xff", b'"\xff"', b"[" * 5000, "{'a': 1}"])
def test_malformed_json_is_a_permanent_named_error(raw: bytes | str) -> None:
    with pytest.raises(MalformedValue) as refused:
        from_json(raw, field="opts")
    assert refused.value.field == "opts"
    assert isinstance(refused.value, PermanentError)


def test_json_that_only_node_writes_is_read_too() -> None:
    assert from_json(b'{"a":"\\ud800"}') == {"a": "\ud800"}
    assert from_json(b"1e400") == float("inf")


def test_a_value_is_read_as_the_type_that_is_asked_for() -> None:
    assert from_json(b'{"to":"x"}', Email) == Email("x")
    with pytest.raises(PayloadMismatch, match="Expected `str`"):
        from_json(b'{"to":1}', Email)
    with pytest.raises(MalformedValue):
        from_json(b"{", Email)


@given(st.dictionaries(text, st.integers(-(2**63), 2**64 - 1) | text | st.booleans() | st.none()))
def test_options_survive_msgpack(value: dict[str, Any]) -> None:
    assert unpack(pack(value)) == value


def test_what_has_no_msgpack_form_is_refused() -> None:
    with pytest.raises(NotSerializable):
        pack({"n": 2**70})
    with pytest.raises(NotSerializable):
        pack(object())
    with pytest.raises(MalformedValue):
        unpack(b"\xc1")


def test_ten_megabytes_pass_and_one_byte_more_is_refused() -> None:
    options = {"attempts": 3}
    space = MAX_PAYLOAD_BYTES - len(to_json(options))
    check_size(b"x" * space, options)
    with pytest.raises(PayloadTooLarge, match=f"has {MAX_PAYLOAD_BYTES + 1} bytes"):
        check_size(b"x" * (space + 1), options)


def test_a_jobs_own_limit_counts_its_data_only() -> None:
    check_size(b"12345", {"attempts": 3}, size_limit=5)
    with pytest.raises(PayloadTooLarge, match="size_limit allows 5"):
        check_size(b"123456", {}, size_limit=5)


@pytest.mark.parametrize("model", [Email, EmailStruct, EmailModel])
def test_a_payload_model_is_checked_on_both_sides(model: type[Any]) -> None:
    payload: PayloadCodec[Any] = PayloadCodec(model)
    raw = payload.encode(model(to="a@b.c", copies=2))
    assert payload.decode(raw) == model(to="a@b.c", copies=2)
    assert payload.encode({"to": "a@b.c"})
    with pytest.raises(PayloadMismatch) as at_add:
        payload.encode({"to": "a@b.c", "copies": "hunter2"})
    with pytest.raises(PermanentError) as at_pickup:
        payload.decode(b'{"copies": 1}')
    assert isinstance(at_add.value, InvalidOption)
    assert "hunter2" not in str(at_add.value)
    assert "to" in str(at_pickup.value)


def test_a_typed_dict_is_a_payload_model() -> None:
    payload = PayloadCodec(EmailDict)
    assert payload.decode(payload.encode({"to": "x", "copies": 1})) == {"to": "x", "copies": 1}
    with pytest.raises(PayloadMismatch):
        payload.encode({"to": "x"})


def test_a_pydantic_model_with_aliases_makes_the_round_trip() -> None:
    payload = PayloadCodec(AliasedModel)
    assert payload.decode(payload.encode(AliasedModel(recipient="x"))) == AliasedModel(recipient="x")


def test_without_a_model_every_json_value_passes() -> None:
    payload: PayloadCodec[Any] = PayloadCodec()
    assert payload.decode(payload.encode([1, {"a": None}])) == [1, {"a": None}]
    with pytest.raises(MalformedValue) as refused:
        payload.decode(b"{")
    assert refused.value.field == "data"


def test_a_json_schema_is_a_payload_model() -> None:
    payload: PayloadCodec[Any] = PayloadCodec({"type": "object", "required": ["to"]})
    assert payload.decode(payload.encode({"to": "x"})) == {"to": "x"}
    with pytest.raises(PayloadMismatch, match=r"data\.to: is missing"):
        payload.encode({})


def test_a_json_schema_can_be_checked_by_the_users_validator() -> None:
    def validate(schema: Any, value: Any) -> None:
        if schema["x-even"] and value % 2:
            raise RuntimeError(f"{value} is odd")

    payload: PayloadCodec[Any] = PayloadCodec({"x-even": True}, validator=validate)
    assert payload.encode(4) == b"4"
    with pytest.raises(PayloadMismatch, match="RuntimeError"):
        payload.encode(3)


def test_a_model_that_cannot_be_a_payload_is_refused_at_once() -> None:
    with pytest.raises(InvalidOption, match="not supported"):
        PayloadCodec({"$dynamicRef": "#x"})
    with pytest.raises(InvalidOption) as refused:
        PayloadCodec(EmailStruct | ReadingStruct)  # type: ignore[arg-type]
    assert refused.value.field == "payload"
    with pytest.raises(InvalidOption, match="for JSON schemas"):
        PayloadCodec(Email, validator=lambda _schema, _value: None)
