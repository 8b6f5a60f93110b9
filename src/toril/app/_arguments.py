"""The arguments of a task as the data of its job: a JSON object of the arguments by name.

    send("a@b.c", subject="Hi")        {"to": "a@b.c", "subject": "Hi"}
    version 2 of the task              {"_v": 2, "to": "a@b.c", …}

Guarantee: what does not fit the annotations is refused before the job is sent, and again before the function runs. A
payload of an older version is converted by the upcasters of the task; one of a newer version is not run.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NotRequired, Required, TypeAlias

from toril.app._parameters import TaskParameters
from toril.errors import InvalidOption, NewerPayload, NotSerializable, PayloadMismatch, TorilError
from toril.protocol.codec import PayloadCodec, from_json, to_json
from toril.protocol.json_types import JsonObject

Upcaster: TypeAlias = Callable[[JsonObject], Mapping[str, Any]]
"""Converts the arguments of one version to those of the next."""

VERSION_FIELD = "_v"
_VERSION_MARK = b'"_v"'


class TaskArguments:
    """Binds, encodes and decodes the arguments of one task."""

    __slots__ = (
        "_codec",
        "_defaults",
        "_keyword_only",
        "_names",
        "_required",
        "_task",
        "_upcasters",
        "_version",
    )

    def __init__(
        self, task: str, parameters: TaskParameters, version: int, upcasters: Mapping[int, Upcaster]
    ) -> None:
        self._task = task
        self._names = tuple(one.name for one in parameters.arguments)
        self._keyword_only = parameters.keyword_only
        self._required = frozenset(one.name for one in parameters.arguments if one.is_required)
        self._defaults = _json_defaults(parameters)
        self._codec: PayloadCodec[dict[str, Any]] = PayloadCodec(_model(task, parameters))
        self._version = version
        self._upcasters = upcasters

    @property
    def required(self) -> frozenset[str]:
        """The arguments without a default."""
        return self._required

    @property
    def first(self) -> str:
        """The first argument: steps of a chain get the result before them as this one."""
        if not self._names:
            raise InvalidOption(
                self._task, "has no argument for the result before it", "give task.bind() instead"
            )
        return self._names[0]

    # --- of a call ------------------------------------------------------------------------------------------

    def bind(self, args: tuple[object, ...], named: Mapping[str, object]) -> dict[str, object]:
        """The arguments of a call by name, with defaults; raises `TypeError` like a call of the function."""
        positional = self._names if not self._keyword_only else self._positional()
        if len(args) > len(positional):
            raise TypeError(
                f"{self._task}() takes {len(positional)} positional arguments but {len(args)} were given"
            )
        bound = dict(zip(positional, args, strict=False))
        for name, value in named.items():
            if name not in self._names:
                raise TypeError(f"{self._task}() got an unexpected keyword argument {name!r}")
            if name in bound:
                raise TypeError(f"{self._task}() got multiple values for argument {name!r}")
            bound[name] = value
        missing = self._required - bound.keys()
        if missing:
            names = ", ".join(repr(one) for one in self._names if one in missing)
            raise TypeError(f"{self._task}() is missing required arguments: {names}")
        if len(bound) == len(self._names):
            return bound
        complete = {**self._defaults, **bound}
        return {name: complete[name] for name in self._names if name in complete}

    def _positional(self) -> tuple[str, ...]:
        return tuple(name for name in self._names if name not in self._keyword_only)

    def encode(self, bound: Mapping[str, Any]) -> bytes:
        """The data of the job; raises `PayloadMismatch` with the place that does not fit."""
        return self._with_version(self._codec.encode(bound))

    def encode_without(self, name: str) -> bytes:
        """The data of a job whose argument `name` is known later; the others must have defaults."""
        missing = self._required - {name}
        if missing:
            names = ", ".join(sorted(missing))
            raise InvalidOption(self._task, f"needs {names}, too", "give these parameters defaults")
        given = {one: self._defaults[one] for one in self._names if one in self._defaults and one != name}
        return self._with_version(to_json(given))

    def replace(self, arguments: Mapping[str, Any], named: Mapping[str, object]) -> bytes:
        """The data of a call with other values of some arguments; checked, unless one is known later."""
        for name in named:
            if name not in self._names:
                raise TypeError(f"{self._task}() got an unexpected keyword argument {name!r}")
        changed = {**arguments, **named}
        return (
            self.encode(changed) if self._required <= changed.keys() else self._with_version(to_json(changed))
        )

    def _with_version(self, raw: bytes) -> bytes:
        if self._version == 1:
            return raw
        version = b'{"_v":%d' % self._version
        return version + (b"}" if raw == b"{}" else b"," + raw[1:])

    # --- of a job -------------------------------------------------------------------------------------------

    def direct_decoder(self) -> Callable[[bytes], dict[str, object]] | None:
        """A faster `decode` for data without reserved names; None if there is none. Errors are those of msgspec."""
        return self._codec.direct_decoder() if self._version == 1 else None

    def decode(self, raw: bytes) -> dict[str, Any]:
        """The arguments for the function; those that are left out have its defaults."""
        if self._version != 1 or _VERSION_MARK in raw:
            raw = self._current(raw)
        return self._codec.decode(raw)

    def _current(self, raw: bytes) -> bytes:
        """The data in the version of this task."""
        data = from_json(raw, field="data")
        if not isinstance(data, dict):
            raise PayloadMismatch("data", "is not an object of arguments")
        version = data.pop(VERSION_FIELD, 1)
        if not isinstance(version, int) or version < 1:
            raise PayloadMismatch("data._v", "is not a version")
        if version > self._version:
            raise NewerPayload(self._task, version, self._version)
        if version == self._version:
            return raw
        for step in range(version, self._version):
            data = dict(self._upcast(step, data))
        return to_json(data)

    def _upcast(self, version: int, data: JsonObject) -> Mapping[str, object]:
        upcaster = self._upcasters.get(version)
        return data if upcaster is None else upcaster(data)


def _json_defaults(parameters: TaskParameters) -> dict[str, Any]:
    """Defaults that have a JSON form; others are left to the function."""
    defaults = {}
    for one in parameters.arguments:
        if not one.is_required:
            try:
                to_json(one.default, field=one.name)
            except NotSerializable:
                continue
            defaults[one.name] = one.default
    return defaults


def _model(task: str, parameters: TaskParameters) -> Any:
    """The model of the data: a TypedDict, so that what it decodes can be passed to the function as it is."""
    from typing import TypedDict

    fields = {
        one.name: Required[one.annotation] if one.is_required else NotRequired[one.annotation]
        for one in parameters.arguments
    }
    try:
        model = TypedDict(f"{task} arguments", fields)  # type: ignore[misc]  # fields are known at run time only
        PayloadCodec(model)
    except TorilError as error:
        raise InvalidOption(
            task, f"has a parameter without a JSON form: {error}", "annotate with JSON types"
        ) from None
    return model
