"""Encoded payloads: the data, results and progress of jobs after the codecs of their queue.

    {"_toril": {"v": 1, "steps": [{"codec": "zstd"}, {"codec": "aes-gcm", "key": "2026"}], "data": "<base64>"}}

Guarantee: decoding an encoded payload returns the bytes that were encoded, or raises `UnreadablePayload` or
`PlainPayload`, which are permanent; the stored payload is not changed. Neither makes more than `max_size` bytes.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal, Protocol, TypeAlias, runtime_checkable

from toril.errors import InvalidOption, MalformedValue, PayloadTooLarge, PlainPayload, UnreadablePayload
from toril.protocol.codec import from_json, to_json
from toril.protocol.json_types import JsonObject, JsonValue
from toril.protocol.option_names import knows_its_options
from toril.protocol.option_parts import check_boolean, check_integer

FIELD: Final = "_toril"
MARK: Final = b'{"_toril":'  # what an encoded payload begins with, in the JSON of all writers
VERSION: Final = 1
DEFAULT_MAX_SIZE: Final = 64 * 1024 * 1024  # far above what a job may hold, far below what harms a worker

PayloadField: TypeAlias = Literal["data", "result", "progress"]
Place: TypeAlias = Literal["compress", "encrypt", "offload"]
Step: TypeAlias = Mapping[str, JsonValue]
"""What a codec writes about one payload: its parameters, such as the id of a key."""

_PLACES: Final[Sequence[Place]] = ("compress", "encrypt", "offload")


@runtime_checkable
class Codec(Protocol):
    """One step of the encoding. Instances are sent to processes: they pickle."""

    @property
    def name(self) -> str:
        """Its name in encoded payloads."""

    @property
    def place(self) -> Place:
        """What it does. Payloads are compressed before they are encrypted, and encrypted before they are offloaded."""

    def encode(self, raw: bytes, context: bytes, /) -> tuple[bytes, Step] | None:
        """Returns the bytes after this step and its parameters; None leaves the payload as it is.

        `context` says which field it is and what was done before: it must be the same when it is decoded.
        """

    def decode(self, raw: bytes, step: Step, context: bytes, max_size: int, /) -> bytes:
        """Returns the bytes before this step, at most `max_size`; raises `UnreadablePayload`."""


@knows_its_options("a field of Codecs")
@dataclass(frozen=True, slots=True)
class Codecs:
    """The codecs of a queue or a task, in the order in which payloads are encoded."""

    codecs: Sequence[Codec]
    allow_plain: bool = field(default=False, kw_only=True)  # whether payloads may be unencrypted all the same
    max_size: int = field(default=DEFAULT_MAX_SIZE, kw_only=True)  # bytes of one payload before it is encoded

    def __post_init__(self) -> None:
        given: object = self.codecs
        if isinstance(given, (str, bytes)) or not isinstance(given, Sequence) or not given:
            raise InvalidOption("codecs", "is not a list of codecs", "give Codecs([Zstd(), AesGcm(keys)])")
        for one in self.codecs:
            if not isinstance(one, Codec):
                raise InvalidOption("codecs", f"hold a {type(one).__name__}", "give Zstd(), AesGcm(keys), …")
        places = [_PLACES.index(one.place) for one in self.codecs]
        if places != sorted(places):
            raise InvalidOption(
                "codecs", "are in the wrong order", "compress, then encrypt, and offload last"
            )
        check_boolean("allow_plain", self.allow_plain)
        check_integer("max_size", self.max_size, 1, 2**40)
        object.__setattr__(self, "codecs", tuple(self.codecs))

    @property
    def encrypts(self) -> bool:
        """Whether payloads are encrypted."""
        return any(one.place == "encrypt" for one in self.codecs)

    @property
    def offloads(self) -> bool:
        """Whether payloads may be stored elsewhere."""
        return any(one.place == "offload" for one in self.codecs)

    def without_offload(self) -> Codecs | None:
        """The same codecs for payloads that have no end, such as those of schedulers; None if none is left."""
        kept = [one for one in self.codecs if one.place != "offload"]
        return Codecs(kept, allow_plain=self.allow_plain, max_size=self.max_size) if kept else None

    def encode(self, raw: bytes, where: PayloadField) -> bytes:
        """The JSON of a payload, encoded. It is left as it is if no codec applies."""
        if len(raw) > self.max_size:
            raise PayloadTooLarge(where, f"has {len(raw)} bytes", f"codecs.max_size allows {self.max_size}")
        steps: list[JsonObject] = []
        encoded = raw
        for codec in self.codecs:
            done = codec.encode(encoded, _context(where, steps))
            if done is not None:
                encoded, parameters = done
                steps.append({"codec": codec.name, **parameters})
        if not steps:
            return raw
        return to_json({FIELD: {"v": VERSION, "steps": steps, "data": base64.b64encode(encoded).decode()}})

    def decode(self, raw: bytes, where: PayloadField) -> bytes:
        """The JSON of a payload as it was before `encode`."""
        if not is_encoded(raw):
            self._check_plain(where)
            return raw
        steps, encoded = _parsed(raw, where)
        by_name = {one.name: one for one in self.codecs}
        unknown = [str(step.get("codec")) for step in steps if step.get("codec") not in by_name]
        if unknown:
            raise UnreadablePayload(where, f"codec {unknown[0]!r} is not known", "give it to the queue")
        if not any(by_name[str(step["codec"])].place == "encrypt" for step in steps):
            self._check_plain(where)
        for place in range(len(steps) - 1, -1, -1):
            codec = by_name[str(steps[place]["codec"])]
            encoded = codec.decode(encoded, steps[place], _context(where, steps[:place]), self.max_size)
        return encoded

    def _check_plain(self, where: PayloadField) -> None:
        if self.encrypts and not self.allow_plain:
            raise PlainPayload(where)


def is_encoded(raw: bytes) -> bool:
    """Whether the JSON of a payload is an encoded payload."""
    return raw.startswith(MARK)


def plain(raw: bytes) -> bytes:
    """A payload where no codecs are given; raises if it is encoded."""
    if is_encoded(raw):
        raise UnreadablePayload(
            "payload", "it is encoded, and the queue has no codecs here", "give it codecs=…"
        )
    return raw


@dataclass(frozen=True, slots=True)
class EncodedPayload:
    """What can be said of an encoded payload without its keys."""

    steps: Sequence[Step]
    size: int  # bytes of its data, as they are stored

    @classmethod
    def of(cls, raw: bytes) -> EncodedPayload | None:
        """None if the payload is plain, or no encoded payload that is known."""
        if not is_encoded(raw):
            return None
        try:
            steps, encoded = _parsed(raw, "data")
        except UnreadablePayload:
            return None
        return cls(steps, len(encoded))

    def __str__(self) -> str:
        names = ", ".join(_described(step) for step in self.steps)
        return f"encoded ({names}), {self.size:,} bytes"


def _described(step: Step) -> str:
    more = next((f" {name} {step[name]}" for name in ("key", "name") if name in step), "")
    return f"{step.get('codec')}{more}"


def _context(where: PayloadField, steps: Sequence[Step]) -> bytes:
    return to_json([VERSION, where, steps])


def _parsed(raw: bytes, where: PayloadField) -> tuple[list[JsonObject], bytes]:
    try:
        body = from_json(raw, field=where)[FIELD]
        version, steps = body["v"], body["steps"]
        if version != VERSION:
            raise UnreadablePayload(
                where, f"version {version} of encoded payloads is not known", "update toril"
            )
        encoded = base64.b64decode(body["data"], validate=True)
        return [dict(step) for step in steps], encoded
    except (MalformedValue, KeyError, TypeError, ValueError, binascii.Error):
        raise UnreadablePayload(
            where, "it is not a whole encoded payload", "look at the stored job"
        ) from None


# --- the codecs of one queue --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class QueueCodecs:
    """The codecs of the jobs of one queue, by job name, and those that its children may have."""

    by_name: Mapping[str, Codecs | None]
    default: Codecs | None
    children: Sequence[Codecs | None]

    @classmethod
    def of(cls, given: GivenCodecs) -> QueueCodecs | None:
        """From what an application gives: for all jobs, or by job name with "*" for all others."""
        match given:
            case None | QueueCodecs():
                return given
            case Codecs():
                return cls({}, given, (given,))
            case Mapping():
                by_name = {check_codecs(name, one): one for name, one in given.items()}
                default = by_name.pop("*", None)
                return cls(by_name, default, (*by_name.values(), default))
        raise InvalidOption("codecs", f"is a {type(given).__name__}", "give Codecs([…])")

    def for_name(self, name: str) -> Codecs | None:
        """The codecs of jobs of this name."""
        return self.by_name.get(name, self.default)

    def encode(self, name: str, raw: bytes, where: PayloadField) -> bytes:
        """A payload of a job of this name, encoded."""
        codecs = self.for_name(name)
        return raw if codecs is None else codecs.encode(raw, where)

    def decode(self, name: str, raw: bytes, where: PayloadField) -> bytes:
        """A payload of a job of this name, as it was before."""
        codecs = self.for_name(name)
        return plain(raw) if codecs is None else codecs.decode(raw, where)

    def decode_child(self, raw: bytes) -> bytes:
        """The result of a child, which may be of another queue: by the first codecs that can."""
        return _decode_by_one(self.children, raw, "result")

    def decode_any(self, raw: bytes, where: PayloadField) -> bytes:
        """A payload of a job of this queue whose name is not known."""
        return _decode_by_one((*self.by_name.values(), self.default), raw, where)

    def without_offload(self) -> QueueCodecs:
        """The same codecs for payloads that have no end, such as those of schedulers."""
        by_name = {name: one and one.without_offload() for name, one in self.by_name.items()}
        return QueueCodecs(by_name, self.default and self.default.without_offload(), self.children)


GivenCodecs: TypeAlias = Codecs | Mapping[str, Codecs] | QueueCodecs | None
"""An option `codecs`: for all jobs of a queue, or by job name with "*" for all others."""


def check_codecs(name: object, codecs: object) -> str:
    """Checks the codecs of one job name."""
    if not isinstance(name, str):
        raise InvalidOption("codecs", f"has the name {name!r}", "give job names")
    if not isinstance(codecs, Codecs):
        raise InvalidOption(f"codecs[{name!r}]", f"is a {type(codecs).__name__}", "give Codecs([…])")
    return name


def _decode_by_one(candidates: Iterable[Codecs | None], raw: bytes, where: PayloadField) -> bytes:
    refused: PlainPayload | UnreadablePayload | None = None
    for one in candidates:
        try:
            return plain(raw) if one is None else one.decode(raw, where)
        except (PlainPayload, UnreadablePayload) as error:
            # An error about a key says more than one about a codec that is missing.
            refused = refused if isinstance(refused, PlainPayload) else error
    if refused is not None:
        raise refused
    return raw
