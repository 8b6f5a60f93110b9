"""The commands that a user of the server needs, and whether they are allowed.

Guarantee: the commands are those that scripts and transports send. Some are tried on keys that do not exist, in a form
that changes nothing. The printed rules allow queues and workers of all kinds, and no more.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Final

from toril.commands.command import Arg, Command, Replay
from toril.commands.library import check_all, official, own, own_names
from toril.errors import AccessDenied, InvalidOption
from toril.observe.doctor._finding import Finding, ok, problem
from toril.protocol.compatibility import BULLMQ_PREFIX, ENVELOPE_PREFIX
from toril.protocol.keys import check_prefix, check_text
from toril.transport import AsyncTransport
from toril.transport.discovery import escape_pattern

# The commands that transports send, besides those of the scripts. CLIENT SETINFO is not among them: connections work
# without it, and a server before 7.2 does not accept rules for a command that it does not know.
SENT_BY_TRANSPORT: Final = frozenset(
    """
    auth blmove bzpopmin client|getname client|id client|list client|setname client|unblock cluster|slots
    del eval evalsha exists expire get hdel hello hexists hget hgetall hkeys hlen hmget hset hsetnx info lindex llen
    lpush lrange ltrim mget object|encoding ping pexpire pttl rpush scan script|load select set smembers srandmember
    time ttl type unlink xack xadd xdel xinfo|stream xlen xrange xread xrevrange xtrim zadd zcard zcount zrange
    zrangebyscore zrem zremrangebyrank zremrangebyscore zrevrange zscore
    """.split()
)
# Scripts use several functions (`redis.call`, `rcall`, `call`), but all write commands in capitals.
_COMMAND = re.compile(r"""["']([A-Z]{3,20})["'](?:\s*,\s*["']([A-Z]+)["'])?""")
_ARGUMENTS: Final = frozenset(
    """
    CONSUMERS COUNT CREATE DELCONSUMER ENTRIESREAD FORCE GROUP GROUPS IDLE JUSTID KEEPTTL LEFT LIMIT MAXLEN MINID
    MKSTREAM NOGROUP PUSH RETRYCOUNT RIGHT SETID STREAM STREAMS WITHSCORES
    """.split()
)
# Used by scripts where the user may call it. A server before Valkey 9.1 or Redis 8.4 does not accept rules for it.
_OPTIONAL: Final = frozenset({"msetex"})
_WITH_SUBCOMMAND: Final = frozenset({"XINFO", "XGROUP"})


def needed_commands() -> list[str]:
    """Returns every command that toril may send, directly or in a script; sub-commands as in an ACL."""
    texts = [official(file.rpartition("-")[0]).text for file in check_all()]
    texts += [own(name).text for name in own_names()]
    called = {name for text in texts for name in _commands_in(text)}
    return sorted((called | SENT_BY_TRANSPORT) - _OPTIONAL)


def _commands_in(text: str) -> Iterator[str]:
    for match in _COMMAND.finditer(text):
        command, following = match.groups()
        if command in _WITH_SUBCOMMAND:
            if following:
                yield f"{command}|{following}".lower()
        elif command not in _ARGUMENTS:
            yield command.lower()
        if following and following not in _ARGUMENTS and command not in _WITH_SUBCOMMAND:
            yield following.lower()


def acl_rules(
    user: str, *, prefixes: Sequence[str] = (BULLMQ_PREFIX, ENVELOPE_PREFIX), password: str | None = None
) -> str:
    """Returns a line for the server's ACL file (or for ACL SETUSER) with everything that toril needs, and nothing else.

    Without a password a placeholder stands where its SHA-256 belongs.
    """
    if re.search(r"\s", check_text("user", user)):
        raise InvalidOption("user", "must be a word", "give a name such as toril")
    for prefix in prefixes:
        if re.search(r"\s", check_prefix(prefix)):
            raise InvalidOption(
                "prefix", "contains a space", "an ACL rule ends at a space: choose another prefix"
            )
    if password is not None and re.search(r"\s", password):
        raise InvalidOption(
            "password", "contains a space", "choose another, or put its SHA-256 into the rules"
        )
    secret = f">{password}" if password else "#<sha256-of-the-password>"
    keys = " ".join(f"~{escape_pattern(prefix)}:*" for prefix in prefixes)
    commands = " ".join(f"+{name}" for name in needed_commands())
    return f"user {user} on {secret} resetkeys {keys} resetchannels -@all {commands}"


async def examine_acl(transport: AsyncTransport, prefix: str = BULLMQ_PREFIX) -> list[Finding]:
    """Returns whether the user may send the commands of queues and workers."""
    probes = _probes(f"{prefix}:toril-doctor:nothing")
    replies = await transport.run_many([command for _, command in probes])
    refused = [
        name for (name, _), reply in zip(probes, replies, strict=True) if isinstance(reply, AccessDenied)
    ]
    if refused:
        message = f"this user may not {', '.join(refused)} on keys {prefix}:*"
        return [problem("rights", message, "give it the rules that `toril doctor --acl USER` prints")]
    return [ok("rights", "this user may send the commands of queues and workers")]


def _probes(key: str) -> list[tuple[str, Command[object]]]:
    """Returns commands in a form that changes nothing if the key does not exist."""
    group = ("XREADGROUP", "GROUP", "nobody", "nobody", "COUNT", 1, "STREAMS", key, ">")
    probes: list[tuple[Arg, ...]] = [
        ("EVAL", "return redis.call('EXISTS', KEYS[1])", 1, key),
        ("SCRIPT", "LOAD", "return 1"),
        ("HDEL", key, ""),
        ("DEL", key),
        ("HGETALL", key),
        ("LREM", key, 0, ""),
        ("LRANGE", key, 0, 0),
        ("RPOPLPUSH", key, key),
        ("ZREM", key, ""),
        ("ZADD", key, "XX", 0, ""),
        ("ZRANGE", key, 0, 0),
        ("SREM", key, ""),
        ("BZPOPMIN", key, 0.001),
        ("XADD", key, "NOMKSTREAM", "*", "a", "b"),
        ("XREAD", "COUNT", 1, "STREAMS", key, "0"),
        group,
        ("SET", key, "", "XX", "PX", 1),
        ("PEXPIRE", key, 1),
        ("CLIENT", "LIST"),
        ("CLIENT", "ID"),
        ("INFO", "server"),
        ("TIME",),
    ]
    keyed = {"EVAL": (key,)}  # its key is not the first argument
    return [
        (_title(one), Command(one, _any_reply, keys=keyed.get(str(one[0]), ()), replay=Replay.SAFE))
        for one in probes
    ]


def _title(probes: tuple[Arg, ...]) -> str:
    name = str(probes[0])
    return f"{name} {probes[1]!s}" if name in ("SCRIPT", "CLIENT") else name


def _any_reply(reply: object) -> object:
    return reply
