"""Everything under a prefix, as values that can be compared.

Guarantee: two dumps are equal exactly when a client could see no difference: every key, its type, its value
and whether it expires, and about when. What differs by nature is taken out: stream ids, JSON spelling, and
toril's own `<prefix>:<queue>:toril:` keys.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, TypeAlias

import redis

Fields: TypeAlias = dict[str, str]
Content: TypeAlias = str | Fields | list[str] | list[tuple[str, str]] | list[Fields]

# One round trip: a dump that takes many could see half a step.
_DUMP = """
local dump = {}
for _, key in ipairs(redis.call('KEYS', ARGV[1])) do
  local kind = redis.call('TYPE', key).ok
  local value
  if kind == 'string' then value = redis.call('GET', key)
  elseif kind == 'hash' then value = redis.call('HGETALL', key)
  elseif kind == 'list' then value = redis.call('LRANGE', key, 0, -1)
  elseif kind == 'set' then value = redis.call('SMEMBERS', key)
  elseif kind == 'zset' then value = redis.call('ZRANGE', key, 0, -1, 'WITHSCORES')
  elseif kind == 'stream' then value = redis.call('XRANGE', key, '-', '+') end
  dump[#dump + 1] = {key, kind, redis.call('PTTL', key), value}
end
return dump
"""

# Fields that hold JSON, by the kind of key that has them. Everything else is compared as text.
_JSON_OF_JOB = frozenset({"data", "opts", "returnvalue", "stacktrace", "parent", "progress"})
_JSON_OF_EVENT = frozenset({"data", "returnvalue"})
_JSON_OF_SCHEDULER = frozenset({"data", "opts"})

_QUEUE_HASHES = frozenset({"meta", "metrics"})


@dataclass(frozen=True, kw_only=True, slots=True)
class Entry:
    """One key: its type, its value in canonical form, and the milliseconds it has left (None: for ever)."""

    kind: str
    content: Content
    ttl: int | None = None


Keyspace: TypeAlias = dict[str, Entry]


def dump(client: redis.Redis, prefix: str = "bull") -> Keyspace:
    """Read and normalise every key of the prefix."""
    reply: Any = client.eval(_DUMP, 0, f"{prefix}:*")
    rows = [(_text(key), _text(kind), ttl, value) for key, kind, ttl, value in reply]
    return {
        key: _entry(key, kind, ttl, value, prefix)
        for key, kind, ttl, value in sorted(rows)
        if not _own(key, prefix)
    }


def queues_of(keyspace: Keyspace, prefix: str = "bull") -> set[str]:
    return {key.removeprefix(f"{prefix}:").split(":", 1)[0] for key in keyspace}


def _own(key: str, prefix: str) -> bool:
    return _role(key, prefix).startswith("toril:")


def _role(key: str, prefix: str) -> str:
    """What comes after `<prefix>:<queue>:`; a queue's name has no colon."""
    return key.removeprefix(f"{prefix}:").partition(":")[2]


def _entry(key: str, kind: str, ttl: int, value: Any, prefix: str) -> Entry:
    content = _READERS[kind](value, _role(key, prefix))
    return Entry(kind=kind, content=content, ttl=ttl if ttl >= 0 else None)


def _read_string(value: bytes, _: str) -> str:
    return _text(value)


def _read_list(value: list[bytes], _: str) -> list[str]:
    return [_text(item) for item in value]


def _read_set(value: list[bytes], _: str) -> list[str]:
    return sorted(_text(item) for item in value)


def _read_zset(value: list[bytes], _: str) -> list[tuple[str, str]]:
    return [(member, score) for member, score in _pairs(value)]


def _read_hash(value: list[bytes], role: str) -> Fields:
    spelled = _json_fields(role)
    return {
        name: canonical(text) if name in spelled or "*" in spelled else text
        for name, text in sorted(_pairs(value))
    }


def _read_stream(value: list[Any], _: str) -> list[Fields]:
    return [_event(dict(_pairs(fields))) for _id, fields in value]


def _event(fields: Fields) -> Fields:
    return {name: canonical(text) if name in _JSON_OF_EVENT else text for name, text in fields.items()}


_READERS: dict[str, Callable[[Any, str], Content]] = {
    "string": _read_string,
    "list": _read_list,
    "set": _read_set,
    "zset": _read_zset,
    "hash": _read_hash,
    "stream": _read_stream,
}


def _json_fields(role: str) -> frozenset[str]:
    if role.endswith(":processed"):
        return frozenset({"*"})
    if role.startswith("repeat:") and role.count(":") == 1:
        return _JSON_OF_SCHEDULER
    return frozenset() if role.split(":", 1)[0] in _QUEUE_HASHES else _JSON_OF_JOB


def canonical(text: str) -> str:
    """JSON with one spelling for one value; text that is not JSON stays as it is."""
    try:
        value = json.loads(text)
    except ValueError:
        return text
    return json.dumps(_plain_numbers(value), sort_keys=True, ensure_ascii=False, separators=(",", ":"))


def _plain_numbers(value: Any) -> Any:
    """JavaScript writes 2.0 as 2: numbers are compared by value, as its readers see them."""
    match value:
        case dict():
            return {name: _plain_numbers(item) for name, item in value.items()}
        case list():
            return [_plain_numbers(item) for item in value]
        case float() if value.is_integer() and abs(value) < 2**53:
            return int(value)
        case _:
            return value


def _pairs(flat: list[bytes]) -> Iterator[tuple[str, str]]:
    texts = [_text(item) for item in flat]
    return zip(texts[::2], texts[1::2], strict=True)


def _text(value: bytes | str) -> str:
    # surrogateescape: bytes that are no UTF-8 must still be compared, and told apart.
    return value if isinstance(value, str) else value.decode("utf-8", "surrogateescape")
