"""How each command is called on queues that a hostile program has filled, and with its texts as arguments.

Guarantee: `test_every_command_is_run_over_the_corpus` fails if a command of `toril` has no call here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from tests.hostile_corpus import TEXTS

# Stands for the text in the calls with a hostile text as an argument; {lake}, {page} and {file} for paths of a test.
TEXT: Final = "{text}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One command line without the words for server and prefix."""

    words: tuple[str, ...]
    may_fail: bool = False  # exit code 1 is right: it found something, or the queue cannot be read
    as_json: bool = True  # also with --json
    on_server: bool = True  # has the options --redis and --prefix

    @property
    def command(self) -> str:
        """The name of the command: one word, or two in a group of commands."""
        return " ".join(self.words[:2]) if self.words[0] in GROUPS else self.words[0]

    def line(self, places: Mapping[str, str], options: Sequence[str] = ()) -> list[str]:
        """Returns all words: with the values of `{names}`, and with options before a `--`."""
        words = [places.get(word[1:-1], word) if word.startswith("{") else word for word in self.words]
        at = self.words.index("--") if "--" in self.words else len(words)
        return [*words[:at], *options, *words[at:]]


def call(line: str, *more: str, may_fail: bool = False, as_json: bool = True, on_server: bool = True) -> Call:
    return Call(words=(*line.split(), *more), may_fail=may_fail, as_json=as_json, on_server=on_server)


def ids_of(calls: Sequence[Call]) -> list[str]:
    """Returns the names of parametrized tests."""
    return [" ".join(one.words) for one in calls]


GROUPS: Final = ("server", "dlq", "flow", "schedulers", "groups", "pipeline")

# In this order on one planted server: first commands that read.
READING: Final = (
    call("queues"),
    call("top --pictures 1"),
    call("top --pictures 1 --queues hostile"),
    call("inspect hostile --limit 1000"),
    call("inspect hostile --state failed"),
    call("inspect wrong-type", may_fail=True),
    call("inspect list:hostile --limit 1000"),
    call("inspect stream:hostile --limit 1000"),
    call("logs hostile --", TEXTS["a new line"]),
    call("flow show hostile malformed-opts"),
    call("events hostile --last 1000"),
    call("schedulers list hostile"),
    call("groups list hostile"),
    call("dlq list hostile --limit 1000"),
    call("dlq list list:hostile --limit 1000"),
    call("dlq list stream:hostile --limit 1000"),
    call("dlq show hostile malformed-timestamp", may_fail=True),
    call("dlq export hostile -", as_json=False),
    call("dlq export list:hostile -", as_json=False),
    call("dlq export stream:hostile {file}"),
    call("doctor", may_fail=True),
    call("exporter --once", as_json=False),
    call("scripts", on_server=False),
    call("server status {file}", may_fail=True, on_server=False),
    call("server url {file}", may_fail=True, on_server=False),
    call("server stop {file}", may_fail=True, on_server=False),
)
CHANGING: Final = (
    call("retry hostile --all"),
    call("retry hostile --name n"),
    call("retry list:hostile --all"),
    call("promote hostile --all"),
    call("promote list:hostile --all"),
    call("groups set hostile tenant --weight 2"),
    call("groups set hostile tenant --concurrency 2 --rate-limit 10/60 --max-size 5"),
    call("groups pause hostile tenant"),
    call("groups resume hostile tenant"),
    call("schedulers set hostile plain --every 60"),
    call("schedulers remove hostile plain --yes", may_fail=True),  # there is none
    call("pause hostile"),
    call("resume hostile"),
    call("cancel hostile malformed-timestamp --yes"),
    call("add hostile plain"),
    call("add list:hostile plain"),
    call("add stream:hostile plain"),
    call("flow add {flow}"),
    call("clean hostile --state failed --yes"),
    call("dlq replay hostile --all"),
    call("dlq replay list:hostile --all"),
    call("dlq purge hostile --all --yes"),
    call("dlq purge stream:hostile --all --yes"),
    call("drain hostile --delayed --yes"),
    call("drain list:hostile --yes"),
    call("drain stream:hostile --yes"),
    call("bench --jobs 20 -c 2"),
    call("doctor --repair --yes", may_fail=True),
    call("remove hostile --all --force --yes"),
)
# After each other on one lake, with the tables that the first writes.
PIPELINE: Final = (
    call("pipeline run --engine driver --stream-prefix {prefix}"),
    call("pipeline status"),
    call("pipeline check", may_fail=True),
    call("pipeline query", "select * from silver.jobs", on_server=False),
    call("pipeline query", "select * from silver.attempts", on_server=False),
    call("pipeline query", "select * from bronze.stream_entries", on_server=False),
    call("pipeline query", "select * from gold.errors", on_server=False),
    call("pipeline report -o {page}", on_server=False),
    call("pipeline views --duckdb {views} --spark {script}", on_server=False),
    call("pipeline replay --engine driver"),
    call("pipeline maintain", on_server=False),
)
# Processes that run until they are told to stop.
PROCESSES: Final = (
    call("worker handlers:handle -q hostile", as_json=False),
    call("worker handlers:plain -q list:hostile --log-format json", as_json=False),
    call("dashboard --port 0", as_json=False),
    call("pipeline up --stream-prefix {prefix} --lake {lake}"),
    call("demo --quick --jobs 40 --pace 0"),
    call("server start {folder} --port 0"),
)
# With each text as an argument; the text is refused, or the command does its work.
WITH_TEXT: Final = (
    call("inspect hostile --", TEXT),
    call("logs hostile --", TEXT),
    call("flow show hostile --", TEXT),
    call("dlq show hostile --", TEXT),
    call("cancel hostile --yes --", TEXT),
    call("retry hostile --", TEXT),
    call("promote hostile --", TEXT),
    call("remove hostile --yes --", TEXT),
    call("dlq replay list:hostile --", TEXT),
    call("dlq purge stream:hostile --yes --", TEXT),
    call("schedulers set hostile --every 60 --", TEXT),
    call("schedulers remove hostile --yes --", TEXT),
    call("groups set hostile --weight 2 --", TEXT),
    call("groups set hostile --concurrency 1 --", TEXT),
    call("groups pause hostile --", TEXT),
    call("groups resume hostile --", TEXT),
    call("add hostile --", TEXT),
    call("add hostile name --data {} --job-id", TEXT),
    call("add hostile name --group", TEXT),
    call("add list:hostile --", TEXT),
    call("pause --", TEXT),
    call("inspect --", TEXT),
    call("queues --prefix", TEXT),
    call("events --last 1 --", TEXT),
)
ALL: Final = (*READING, *CHANGING, *PIPELINE, *PROCESSES, *WITH_TEXT)
