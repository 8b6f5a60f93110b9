"""Hostile texts and records, as another program can write them to Redis; every output is tested with them.

Guarantee: what `plant` writes can be written by a client that does not check its input: names, ids, data, errors, log
lines, worker reports, schedulers, envelopes and keys. All keys begin with the prefix of the test.

    with valkey.client() as client:
        planted = plant(client, prefix)
    ...
    assert not problems_in(output)          # nothing is forged, nothing is obeyed by a terminal
    assert not tripwire.exists()            # nothing was run: see `texts_with_commands`
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

import redis

# No line of an output may begin with this word: it stands behind every line break of the texts.
FORGED: Final = "FORGED"
MEGABYTE: Final = 1_000_000

TEXTS: Final[dict[str, str]] = {
    "a new line": f"a\n{FORGED} b",
    "a carriage return": f"a\r{FORGED} b",
    "both": f"a\r\n{FORGED} b",
    "a vertical tab and a form feed": f"a\x0b{FORGED}\x0c{FORGED} b",
    "separators of records": f"a\x1c{FORGED}\x1d{FORGED}\x1e{FORGED} b",
    "next line": f"a\x85{FORGED} b",
    "a line separator": f"a\u2028{FORGED} b",
    "a paragraph separator": f"a\u2029{FORGED} b",
    "a tabulator": "a\tb",
    "a null character": "a\x00b",
    "an escape sequence": "\x1b[2J\x1b]0;owned\x07",
    "a sequence in one character": "\x9b31m",
    "backspaces": "abc\x08\x08\x08xyz",
    "delete": "a\x7fb",
    "an override of the direction": "a\u202egpj.exe",
    "an isolate": "a\u2067b\u2069",
    "marks of the direction": "a\u200eb\u200fc\u061cd",
    "a byte order mark": "\ufeffa",
    "no width": "a\u200bb\u200dc\u2060d",
    "300 characters": "x" * 300,
    "a command in a shell": "$(touch tripwire)",
    "an escaped command in a shell": "\\$(touch tripwire)",
    "backquotes": "`touch tripwire`",
    "a second command": "a;touch tripwire",
    "a quoted command": "'$(touch tripwire)'\"$(touch tripwire)\"",
    "a glob qualifier of zsh": "*(e:'touch tripwire':)",
    "a process substitution": "<(touch tripwire)",
    "a history expansion": "!!",
    "an option": "--help",
    "markup": "[red]a[/red] [link=http://a]b[/link] [/]",
    "a script": "<script>alert(1)</script>",
    "an attribute": "\" onmouseover=\"alert(1)\" '",
    "a template": "{{7*7}} ${7*7} {0.__class__} %s %(a)s %n",
    "a metric": f'a"}} 1\n{FORGED}_total{{x="b\\',
    "a log line in JSON": f'"}}\n{FORGED} {{"level":"error"}}',
    "SQL": "a'; DROP TABLE jobs; --",
    "a formula": "=HYPERLINK(\"http://a\")",
    "a path": "../../../etc/passwd",
    "a glob": "[a-z]*?",
    "the protocol of Redis": f"\r\n*1\r\n$8\r\n{FORGED}\r\n",
    "braces": "}{",
    "a space": " ",
    "many languages": "ünï 日本語 עברית العربية",
    "an emoji of several characters": "👩‍👩‍👧‍👦",
    "a combining character": "e" + "\u0301" * 50,
}  # fmt: skip

# Texts of a megabyte that begin again and again with what a regular expression searches for.
LONG_TEXTS: Final[dict[str, str]] = {
    name: (piece * (MEGABYTE // len(piece) + 1))[:MEGABYTE]
    for name, piece in {
        "one character": "a",
        "colons": ":",
        "slashes": "/",
        "beginnings of URLs": "://",
        "beginnings of URLs with a user": "://a:",
        "beginnings of passwords": "://:b",
        "whole URLs": "redis://u:p@h ",
        "questions": "?",
        "ampersands": "&",
        "beginnings of parameters": "?a",
        "parameters": "&password=",
        "equals signs": "=",
        "at signs": "@",
        "spaces": " ",
        "new lines": "\n",
        "tabulators": "\t",
        "beginnings of stack lines": '\n  File "',
        "beginnings of Node's stack lines": "\n    at ",
        "digits": "1",
        "signs and digits": "-1e",
        "commas": ",",
        "dots": ".",
        "quotes": '"',
        "backslashes": "\\",
        "open braces": "{",
        "open brackets": "[",
        "open parentheses": "(",
        "escape characters": "\x1b",
        "words": "aB ",
        "snake case": "a_",
        "underscores": "_",
        "hyphens": "-",
        "percent signs": "%",
        "letters of many bytes": "é",
        "asterisks": "*",
    }.items()
}  # fmt: skip

# What a text must not contain when it is printed: a terminal or a reader would obey it or be misled by it. A new line
# between lines of output is allowed.
_OBEYED = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]"
)
_FORGED_LINE = re.compile(rf"^{FORGED}", re.MULTILINE)


def problems_in(output: str) -> list[str]:
    """Returns what is forged or obeyed in the output of a command, a log or a page; empty if nothing is."""
    obeyed = sorted({f"U+{ord(found[0]):04X}" for found in _OBEYED.finditer(output)})
    forged = [output[one.start() : one.start() + 80] for one in _FORGED_LINE.finditer(output)]
    return [f"contains {sign}" for sign in obeyed] + [f"has a forged line {line!r}" for line in forged]


def texts_with_commands(path: str) -> list[str]:
    """Returns texts that create the file `path` when a shell evaluates them."""
    return [text.replace("tripwire", path) for text in TEXTS.values() if "tripwire" in text]


# --- what another program stores -----------------------------------------------------------------------------------

QUEUE: Final = "hostile"  # the queue with a plain name that holds hostile jobs
STATES: Final = ("wait", "active", "delayed", "prioritized", "completed", "failed", "waiting-children")
# Fields of a job's hash that do not parse, one job for each.
MALFORMED_FIELDS: Final[dict[str, str | bytes]] = {
    "timestamp": "yesterday",
    "processedOn": "1e400",
    "finishedOn": "-9" * 30,
    "delay": "NaN",
    "priority": "high",
    "atm": "many",
    "ats": "[]",
    "stc": "\x1b[31m",
    "opts": "{",
    "data": "{not json",
    "progress": "}",
    "returnvalue": "undefined",
    "stacktrace": "{not a list",
    "parent": "[]",
    "parentKey": "no key",
    "name": b"\xff\xfe",
    "failedReason": b"\xc3(",
}
MALFORMED_ENVELOPES: Final = (
    b"",
    b"{",
    b"null",
    b"[]",
    b'"text"',
    b"\xff\xfe",
    b'{"job_id":5,"task_type":null,"payload":[],"attempts":"x","max_attempts":-1,"meta":7}',
    b'{"job_id":"a","task_type":"b","payload":{},"attempts":0,"max_attempts":1,"meta":{"enqueue_ts":"yesterday"}}',
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Planted:
    """What was written: the names under which others would search for it."""

    prefix: str
    env: str
    queue: str  # BullMQ queue with a plain name and hostile jobs
    queue_names: list[str]  # BullMQ queues with hostile names
    envelope_queue: str  # list and stream queue with a plain name
    job_ids: list[str]
    malformed_job_ids: list[str]
    wrong_type_queue: str  # a BullMQ queue whose waiting jobs are a string
    undecodable_queue: bytes  # the name of a BullMQ queue that is no UTF-8


def plant(client: redis.Redis, prefix: str, env: str = "prod") -> Planted:
    """Writes the whole corpus under a prefix."""
    planted = Planted(
        prefix=prefix,
        env=env,
        queue=QUEUE,
        queue_names=[text for text in TEXTS.values() if ":" not in text],
        envelope_queue=QUEUE,
        job_ids=list(TEXTS.values()),
        malformed_job_ids=[f"malformed-{field}" for field in MALFORMED_FIELDS],
        wrong_type_queue="wrong-type",
        undecodable_queue=b"\xff\xfequeue",
    )
    pipe = client.pipeline(transaction=False)
    for base, ids in _bases(planted):
        # With a length that is not a number, no script of BullMQ changes the queue: the others must be changed.
        length = "10000" if base.endswith(f":{QUEUE}") else "x"
        pipe.hset(f"{base}:meta", mapping={"version": "bullmq:5.0.0", "opts.maxLenEvents": length})
        for number, job_id in enumerate(ids):
            _plant_job(pipe, base, job_id, job_id, STATES[number % len(STATES)], number)
    _plant_malformed(pipe, planted)
    _plant_workers(pipe, f"{prefix}:{QUEUE}:")
    _plant_schedulers(pipe, f"{prefix}:{QUEUE}")
    _plant_envelopes(pipe, planted)
    _plant_strange_keys(pipe, planted)
    pipe.execute()
    return planted


def _bases(planted: Planted) -> Iterator[tuple[str, list[str]]]:
    yield f"{planted.prefix}:{planted.queue}", planted.job_ids
    for name in planted.queue_names:
        yield f"{planted.prefix}:{name}", ["job-1"]


def _plant_job(
    pipe: redis.client.Pipeline, base: str, job_id: str, text: str, state: str, number: int
) -> None:
    now = 1_700_000_000_000 + number
    record = {
        "name": text,
        "data": json.dumps({text: text}),
        "opts": json.dumps({"attempts": 3, "jobId": text}),
        "timestamp": str(now),
        "processedOn": str(now + 1),
        "finishedOn": str(now + 2),
        "failedReason": text,
        "stacktrace": json.dumps([f"Error: {text}\n    at {text}"]),
        "returnvalue": json.dumps(text),
        "progress": json.dumps({"note": text}),
        "pb": text,
        "deid": text,
        "parentKey": f"{base}:{text}",
        "priority": "1" if state == "prioritized" else "0",
    }
    _set_hash(pipe, f"{base}:{job_id}", record)
    pipe.rpush(f"{base}:{job_id}:logs", text, text.encode() + b"\xff")
    _place(pipe, base, job_id, state, now)
    pipe.xadd(f"{base}:events", {"event": "added", "jobId": job_id, "name": text})
    pipe.xadd(f"{base}:events", {"event": "waiting", "jobId": job_id})
    pipe.xadd(f"{base}:events", {"event": "active", "jobId": job_id, "prev": "waiting"})
    pipe.xadd(f"{base}:events", {"event": "failed", "jobId": job_id, "failedReason": text, "prev": text})
    pipe.xadd(f"{base}:events", {"event": text, "jobId": job_id, "data": text})


def _set_hash(pipe: redis.client.Pipeline, key: str, fields: Mapping[str, str | bytes]) -> None:
    pipe.execute_command("HSET", key, *(word for field in fields.items() for word in field))


def _place(pipe: redis.client.Pipeline, base: str, job_id: str, state: str, score: int) -> None:
    if state in ("wait", "active"):
        pipe.lpush(f"{base}:{state}", job_id)
    else:
        pipe.zadd(f"{base}:{state}", {job_id: score})


def _plant_malformed(pipe: redis.client.Pipeline, planted: Planted) -> None:
    base = f"{planted.prefix}:{planted.queue}"
    for number, (field, value) in enumerate(MALFORMED_FIELDS.items()):
        job_id = f"malformed-{field}"
        fields = {"name": "n", "data": "{}", "opts": "{}", "timestamp": "1700000000000", field: value}
        _set_hash(pipe, f"{base}:{job_id}", fields)
        _place(pipe, base, job_id, STATES[number % len(STATES)], 1_700_000_000_000)
    pipe.lpush(f"{base}:wait", "without-hash", b"\xff\xfe")
    for state in STATES:
        pipe.set(f"{base}:no-hash-{state}", "a string where a hash is expected")
        _place(pipe, base, f"no-hash-{state}", state, 1)


def _plant_workers(pipe: redis.client.Pipeline, base: str) -> None:
    for number, text in enumerate(TEXTS.values()):
        report = {"worker": text, "host": text, "state": text, "queue": text, "jobs": text, "time_ms": text}
        pipe.zadd(f"{base}toril:workers", {text: number})
        pipe.set(f"{base}toril:worker:{text}", json.dumps(report))
    for name, report_text in (
        ("broken", "{"),
        ("list", "[]"),
        ("number", '{"worker": 5, "concurrency": "x"}'),
    ):
        pipe.zadd(f"{base}toril:workers", {name: 1})
        pipe.set(f"{base}toril:worker:{name}", report_text)


def _plant_schedulers(pipe: redis.client.Pipeline, base: str) -> None:
    for number, text in enumerate(TEXTS.values()):
        pipe.zadd(f"{base}:repeat", {text: 1_700_000_000_000 + number})
        pipe.hset(
            f"{base}:repeat:{text}",
            mapping={"name": text, "every": text, "tz": text, "data": text, "ic": text},
        )
        pipe.hset(f"{base}:toril:broken-schedulers", text, text)
        pipe.hset(f"{base}:toril:group-weights", text, "2")
    for number, weight in enumerate(("nan", "inf", "-1", "0", "x", "")):
        pipe.hset(f"{base}:toril:group-weights", f"malformed-{number}", weight)
    pipe.zadd(f"{base}:repeat", {"without-hash": 1})
    pipe.zadd(f"{base}:repeat", {b"\xff\xfe": 2})


def _plant_envelopes(pipe: redis.client.Pipeline, planted: Planted) -> None:
    start = f"{planted.prefix}:{planted.env}"
    bodies: list[bytes] = [*MALFORMED_ENVELOPES, *(_envelope(text) for text in TEXTS.values())]
    names = [planted.envelope_queue, *planted.queue_names]
    for name in names:
        some = bodies if name == planted.envelope_queue else bodies[:1]
        queue, stream = f"{start}:queue:{name}", f"{start}:stream:{name}"
        pipe.rpush(queue, *some)
        for body in some:
            pipe.xadd(stream, {"envelope": body})
            for dlq in (f"{queue}:dlq", f"{stream}:dlq"):
                pipe.xadd(dlq, {"envelope": body})
        pipe.zadd(f"{queue}:scheduled", dict.fromkeys(some, 1.0))
    pipe.xadd(f"{start}:stream:{planted.envelope_queue}", {"another field": "x"})
    pipe.hset(f"{start}:queue:{planted.envelope_queue}:toril:totals", mapping={"done": "many", b"\xff": "1"})


def _envelope(text: str) -> bytes:
    meta = {
        "correlation_id": text,
        "enqueue_ts": "2026-01-01T00:00:00+00:00",
        "source": text,
        "user_id": text,
    }
    fields = {"job_id": text, "task_type": text, "payload": {text: text}, "attempts": 0, "max_attempts": 3}
    dead = {"dlq_reason": text, "error": text, "error_type": text, "failed_at": text}
    return json.dumps({**fields, "meta": meta, **dead}).encode()


def _plant_strange_keys(pipe: redis.client.Pipeline, planted: Planted) -> None:
    prefix = planted.prefix.encode()
    pipe.set(f"{planted.prefix}:a-string:meta", "no hash")
    pipe.set(f"{planted.prefix}:{planted.wrong_type_queue}:wait", "no list")
    pipe.hset(f"{planted.prefix}:{planted.wrong_type_queue}:meta", "version", "bullmq:5.0.0")
    pipe.hset(prefix + b":" + planted.undecodable_queue + b":meta", "version", "x")
    pipe.hset(prefix + b"::meta", "version", "an empty name")
    pipe.hset(prefix + b":a:b:c:meta", "version", "colons")
    pipe.hset(prefix + b":{}:meta", "version", "empty braces")
    pipe.set(f"{planted.prefix}:{planted.env}:queue:a-string", "no list")
    pipe.set(f"{planted.prefix}:{planted.env}:stream:a-string", "no stream")
    pipe.rpush(f"{planted.prefix}:{planted.env}:queue:".encode() + planted.undecodable_queue, "x")
    pipe.xadd(f"{planted.prefix}:{planted.env}:stream:".encode() + planted.undecodable_queue, {"a": "b"})
