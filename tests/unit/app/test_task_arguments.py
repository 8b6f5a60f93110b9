"""The arguments of tasks as the data of jobs: binding, encoding, versions."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, TypedDict

import msgspec
import pydantic
import pytest

from toril import App, InvalidOption
from toril.errors import NewerPayload, PayloadMismatch


class Person(pydantic.BaseModel):
    name: str
    born: datetime | None = None


@dataclass
class Address:
    city: str


class Line(TypedDict):
    text: str


class Point(msgspec.Struct):
    x: int


app = App()


@app.task
async def send(to: str, subject: str = "Hello", *, copies: int = 1) -> None: ...


@app.task
async def mixed(person: Person, address: Address, line: Line, point: Point, people: list[Person]) -> None: ...


def test_arguments_are_stored_by_name_in_the_order_of_the_parameters() -> None:
    assert send.bind("a@b.c", copies=2).data == b'{"to":"a@b.c","subject":"Hello","copies":2}'


def test_a_default_without_a_json_form_is_left_to_the_function() -> None:
    marker = object()

    @App().task
    async def with_marker(n: int, given: Any = marker) -> None: ...

    assert with_marker.bind(1).data == b'{"n":1}'


@pytest.mark.parametrize(
    ("args", "named", "message"),
    [
        ((), {}, "missing required arguments: 'to'"),
        (("a", "b", 3), {}, "takes 2 positional arguments but 3"),
        (("a",), {"to": "b"}, "multiple values for argument 'to'"),
        (("a",), {"tow": "b"}, "unexpected keyword argument 'tow'"),
    ],
)
def test_a_call_that_the_function_does_not_take_is_a_type_error(
    args: tuple[Any, ...], named: dict[str, Any], message: str
) -> None:
    with pytest.raises(TypeError, match=message):
        send.bind(*args, **named)


def test_a_value_of_another_type_is_refused_with_its_place_before_it_is_sent() -> None:
    with pytest.raises(PayloadMismatch, match=r"\$\.to"):
        send.bind(1)  # type: ignore[call-overload]


def test_models_of_every_kind_are_arguments() -> None:
    ada = Person(name="Ada", born=datetime(1815, 12, 10, tzinfo=UTC))
    call = mixed.bind(ada, Address("London"), {"text": "x"}, Point(1), [ada])
    decoded = mixed.arguments.decode(call.data)
    assert decoded["person"] == ada
    assert decoded["people"] == [ada]
    assert decoded["address"] == Address("London")
    assert decoded["line"] == {"text": "x"}
    assert decoded["point"] == Point(1)


def test_a_pydantic_model_within_others_names_what_does_not_fit() -> None:
    with pytest.raises(PayloadMismatch, match="name"):
        mixed.arguments.decode(
            b'{"person":{},"address":{"city":"a"},"line":{"text":""},"point":{"x":1},"people":[]}'
        )


def test_fields_that_the_function_does_not_have_are_ignored() -> None:
    assert send.arguments.decode(b'{"to":"a","more":1}') == {"to": "a"}


# --- versions -------------------------------------------------------------------------------------------------------


def rename(data: dict[str, Any]) -> dict[str, Any]:
    return {"to": data["address"]}


def add_copies(data: dict[str, Any]) -> dict[str, Any]:
    return {**data, "copies": 2}


@app.task(version=3, upcasters={1: rename, 2: add_copies})
async def post(to: str, copies: int) -> None: ...


def test_a_version_above_one_is_written_into_the_data() -> None:
    assert post.bind("a", 1).data == b'{"_v":3,"to":"a","copies":1}'
    assert post.arguments.decode(b'{"_v":3,"to":"a","copies":1}') == {"to": "a", "copies": 1}
    assert b"_v" not in send.bind("a").data


@pytest.mark.parametrize("old", [b'{"address":"a"}', b'{"_v":1,"address":"a"}', b'{"_v":2,"to":"a"}'])
def test_payloads_of_older_versions_are_converted(old: bytes) -> None:
    assert post.arguments.decode(old) == {"to": "a", "copies": 2}


def test_a_payload_of_a_newer_version_is_postponed() -> None:
    with pytest.raises(NewerPayload) as caught:
        post.arguments.decode(b'{"_v":4,"to":"a"}')
    assert (caught.value.version, caught.value.known) == (4, 3)
    with pytest.raises(NewerPayload):
        send.arguments.decode(b'{"_v":2,"to":"a"}')


@pytest.mark.parametrize("version", [b'"x"', b"0", b"null"])
def test_a_version_that_is_none_fails_the_job(version: bytes) -> None:
    with pytest.raises(PayloadMismatch, match="_v"):
        send.arguments.decode(b'{"_v":%s,"to":"a"}' % version)


def test_upcasters_of_versions_that_do_not_exist_are_refused() -> None:
    with pytest.raises(InvalidOption, match="upcasters"):
        App().task(version=2, upcasters={2: rename})(lambda n: n)


# --- unique ---------------------------------------------------------------------------------------------------------


def test_unique_calls_have_the_deduplication_id_of_their_arguments() -> None:
    own = App()

    @own.task(unique=("to",))
    async def once(to: str, subject: str = "x") -> None: ...

    first, second, other = once.bind("a", "x"), once.bind("a", "y"), once.bind("b", "x")
    assert first.options.deduplication == second.options.deduplication
    assert first.options.deduplication != other.options.deduplication


def test_unique_arguments_that_do_not_exist_are_refused() -> None:
    with pytest.raises(InvalidOption, match="names 'two'"):

        @App().task(unique=["two"])
        async def once(to: str) -> None: ...
