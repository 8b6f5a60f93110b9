"""Options of queues and workers from the environment and from pyproject.toml: what code and command line leave out.

    TORIL_CONCURRENCY=50                         of all queues
    [tool.toril]                                 of all queues
    concurrency = 10
    rate_limit = "100/60"
    [tool.toril.queues.images]                   of one queue
    concurrency = 4

Guarantee: the command line comes first, then code, the environment and the file in the current directory. An unknown
name in the file is refused; an unknown variable is not looked at, because it may belong to something else.
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from toril.app._queue_options import all_names, known_names
from toril.errors import InvalidOption
from toril.protocol.option_names import refuse_unknown
from toril.protocol.queue_name import QueueName
from toril.protocol.worker_options import RateLimit

PREFIX: Final = "TORIL_"
FILE: Final = "pyproject.toml"
# Their values are objects, which text cannot express.
_NOT_TEXT: Final = frozenset(
    {"backoffs", "codecs", "defaults", "error_rules", "logger", "metrics", "payload", "tracer"}
)
_OF_FILE: Final = frozenset({"queues", "redis"})


def options_from_outside(queue: QueueName) -> dict[str, Any]:
    """The options of a queue in the environment and in the file, as far as this kind of queue has them."""
    table = _table()
    own = table.get("queues", {}).get(str(queue), {})
    refuse_unknown(own, sorted(known_names(queue.kind) - _NOT_TEXT), f"an option of {queue} in {FILE}")
    general = {name: value for name, value in table.items() if name not in _OF_FILE}
    known = known_names(queue.kind)
    found = {name: _value(name, value) for name, value in {**general, **own}.items() if name in known}
    return {**found, **{name: value for name, value in _variables().items() if name in known}}


def redis_from_file() -> str | None:
    """The server in the file. The variable TORIL_REDIS_URL comes before it."""
    redis = _table().get("redis")
    return None if redis is None else str(redis)


def _variables() -> dict[str, object]:
    texts = {name: os.environ.get(f"{PREFIX}{name.upper()}") for name in all_names() - _NOT_TEXT}
    return {name: _value(name, text) for name, text in texts.items() if text is not None}


def _table() -> Mapping[str, Any]:
    path = Path(FILE)
    if not path.is_file():
        return {}
    try:
        table = tomllib.loads(path.read_text()).get("tool", {}).get("toril", {})
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, OSError) as error:
        raise InvalidOption(FILE, f"cannot be read: {error}", "correct it") from None
    refuse_unknown(
        table, sorted((all_names() - _NOT_TEXT) | _OF_FILE), f"an option of [tool.toril] in {FILE}"
    )
    found: Mapping[str, Any] = table
    return found


def _value(name: str, value: object) -> object:
    """A value of an option; text is read as the number or the word that it is."""
    if name == "rate_limit" and isinstance(value, str):
        return parse_rate(value)
    if not isinstance(value, str):
        return value
    words = {"true": True, "false": False, "none": None}
    if value.lower() in words:
        return words[value.lower()]
    for kind in (int, float):
        try:
            return kind(value)
        except ValueError:
            continue
    return value


def parse_rate(text: str) -> RateLimit:
    """A rate limit that is written as JOBS/SECONDS."""
    count, _, period = text.partition("/")
    try:
        return RateLimit(int(count), float(period or 1))
    except ValueError as error:
        if isinstance(error, InvalidOption):
            raise
        problem = f"{text!r} is not a rate"
        raise InvalidOption("rate_limit", problem, "write JOBS/SECONDS, e.g. 100/60") from None
