"""Options of queues and workers from the environment and from pyproject.toml: what code and command line leave out.

    TORIL_CONCURRENCY=50                         of all queues
    [tool.toril]                                 of all queues
    concurrency = 10
    rate_limit = "100/60"
    remove_on_complete = { age = 3600 }
    [tool.toril.queues.images]                   of one queue
    concurrency = 4

Guarantee: the command line comes first, then code, the environment and the file in the current directory. An unknown
name in the file is refused; an unknown variable is not looked at, because it may belong to something else. A value that
is not valid is reported with its variable or file.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Any, Final

from toril.app._queue_options import all_names, known_names, worker_names
from toril.errors import InvalidOption
from toril.protocol.batch import Batch
from toril.protocol.option_names import refuse_unknown
from toril.protocol.option_parts import KeepJobs
from toril.protocol.options import JobOptions
from toril.protocol.queue_name import QueueName
from toril.protocol.results_to import ResultsTo
from toril.protocol.worker_options import RateLimit
from toril.transport.project_file import FILE, project_table

PREFIX: Final = "TORIL_"
# Options of the command `toril worker` that are not those of a worker.
COMMAND_OPTIONS: Final = frozenset(
    {"processes", "until_idle", "http_port", "http_host", "log_level", "log_format"}
)
# Their values are functions and other objects, which text cannot express.
_NOT_TEXT: Final = frozenset(
    {"backoffs", "codecs", "error_rules", "logger", "metrics", "payload", "repeat_strategy", "tracer"}
)
_OF_FILE: Final = frozenset({"queues", "redis"})
# Options that are objects: a table in the file, and JSON in a variable.
_OBJECTS: Final[Mapping[str, Callable[..., Any]]] = {
    "batch": Batch,
    "rate_limit": RateLimit,
    "remove_on_complete": KeepJobs,
    "remove_on_fail": KeepJobs,
    "results_to": ResultsTo,
    "defaults": lambda **fields: JobOptions.of(fields),
}
_WORDS: Final = {"true": True, "false": False, "none": None}


def text_names() -> frozenset[str]:
    """The options whose values can be written as text."""
    return all_names() - _NOT_TEXT


def options_from_outside(queue: QueueName) -> dict[str, Any]:
    """The options of a queue in the environment and in the file, as far as this kind of queue has them."""
    found: dict[str, Any] = {}
    for name, (place, value) in _texts(queue).items():
        try:
            found[name] = parse_value(name, value)
        except (InvalidOption, TypeError) as error:
            raise _at(place, error) from None
    return found


def only_of_workers(queue: QueueName, options: Mapping[str, Any]) -> dict[str, Any]:
    """Those options that the workers of a queue have; the others are of producers, or of other kinds of queue."""
    known = worker_names(queue.kind)
    return {name: value for name, value in options.items() if name in known}


@contextlib.contextmanager
def naming_places(queue: QueueName, said: Collection[str]) -> Iterator[None]:
    """A value that is not valid and was not said in code is reported with its variable or file."""
    try:
        yield
    except InvalidOption as error:
        name = error.field.partition(".")[0]
        place, _ = _texts(queue).get(name, ("", None)) if name not in said else ("", None)
        if not place:
            raise
        raise _at(place, error) from None


def _texts(queue: QueueName) -> dict[str, tuple[str, object]]:
    """Where each option is written, and what is written there."""
    known = known_names(queue.kind) - _NOT_TEXT
    table = _table()
    own = table.get("queues", {}).get(str(queue), {})
    refuse_unknown(own, sorted(known), f"an option of {queue} in {FILE}")
    found: dict[str, tuple[str, object]] = {
        name: (f"{name} in {FILE}", value) for name, value in {**table, **own}.items() if name in known
    }
    for name in known:
        variable = f"{PREFIX}{name.upper()}"
        if os.environ.get(variable):
            found[name] = (variable, os.environ[variable])
    return found


def command_option(name: str) -> tuple[str, object] | None:
    """An option of the command in the environment or the file: where it is, and its value."""
    variable = f"{PREFIX}{name.upper()}"
    if os.environ.get(variable):
        return variable, os.environ[variable]
    table = _table()
    return (f"{name} in {FILE}", table[name]) if name in table else None


def parse_options(texts: Iterable[str]) -> dict[str, Any]:
    """Options that are written as NAME=VALUE."""
    found: dict[str, Any] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        name = name.strip().replace("-", "_")
        if not equals:
            raise InvalidOption("--option", f"{text!r} has no value", "write NAME=VALUE")
        refuse_unknown([name], sorted(text_names()), "an option that can be written as text")
        if name in found:
            raise InvalidOption("--option", f"gives {name} twice", "leave one of them out")
        found[name] = parse_value(name, value)
    return found


def parse_value(name: str, value: object) -> object:
    """A value of an option; text is read as the number, the word or the JSON object that it is."""
    if isinstance(value, str):
        value = _from_text(name, value.strip())
    make = _OBJECTS.get(name)
    return make(**value) if make is not None and isinstance(value, Mapping) else value


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


def _table() -> Mapping[str, Any]:
    table = project_table()
    known = sorted(text_names() | _OF_FILE | COMMAND_OPTIONS)
    refuse_unknown(table, known, f"an option of [tool.toril] in {FILE}")
    return table


def _at(place: str, error: Exception) -> InvalidOption:
    if isinstance(error, InvalidOption):
        return InvalidOption(place, error.problem, error.remedy)
    return InvalidOption(place, str(error), "see the fields of this option in the documentation")


def _from_text(name: str, text: str) -> object:
    if text.startswith(("{", "[")):
        try:
            return json.loads(text)
        except ValueError as error:
            raise InvalidOption(name, f"is not JSON: {error}", "correct it, or leave it out") from None
    if name == "rate_limit":
        return parse_rate(text)
    if text.lower() in _WORDS:
        return _WORDS[text.lower()]
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text
