"""What a user of the server must be allowed to do, and whether ours is.

Guarantee: the commands listed are those that scripts and drivers use; each is tried on keys that do not exist, in a
form that changes nothing. The rules printed are enough to run queues and workers of all kinds, and no more.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Final

from toril.commands.command import Arg, Command, Replay
from toril.commands.library import check_all, official, own, own_names
from toril.errors import AccessDenied, InvalidOption
from toril.observe.doctor._finding import Finding, ok, problem
from toril.protocol.compatibility import BULLMQ_PREFIX, ENVELOPE_PREFIX
from toril.transport import AsyncTransport

# What the drivers themselves say, besides what the scripts call. CLIENT SETINFO is not among them: connections do
# without it, and a server before 7.2 does not accept rules about a command that it does not know.
OF_DRIVERS: Final = frozenset(
    """
    auth blmove bzpopmin client|getname client|id client|list client|setname client|unblock cluster|slots
    del eval evalsha exists expire get hdel hello hexists hget hgetall hkeys hlen hmget hset hsetnx info lindex llen
    lpush lrange ltrim mget object|encoding ping pexpire pttl rpush scan script|load select set smembers srandmember
    time ttl type unlink xack xadd xdel xinfo|stream xlen xrange xread xrevrange xtrim zadd zcard zcount zrange
    zrangebyscore zrem zremrangebyrank zremrangebyscore zrevrange zscore
    """.split()
)
# Scripts call by several names (`redis.call`, `rcall`, `call`), but they all write commands in capitals.
_SAID = re.compile(r"""["']([A-Z]{3,20})["'](?:\s*,\s*["']([A-Z]+)["'])?""")
_WORDS_OF_COMMANDS: Final = frozenset(
    """
    CONSUMERS COUNT CREATE DELCONSUMER ENTRIESREAD GROUP GROUPS IDLE JUSTID KEEPTTL LEFT LIMIT MAXLEN MINID MKSTREAM
    NOGROUP PUSH RETRYCOUNT RIGHT SETID STREAM STREAMS WITHSCORES
    """.split()
)
_WITH_SUBCOMMAND: Final = frozenset({"XINFO", "XGROUP"})


def needed_commands() -> list[str]:
    """Every command that toril may send, by itself or from a script; sub-commands as the ACL writes them."""
    texts = [official(file.rpartition("-")[0]).text for file in check_all()]
    texts += [own(name).text for name in own_names()]
    said = {name for text in texts for name in _commands_in(text)}
    return sorted(said | OF_DRIVERS)


def _commands_in(text: str) -> Iterator[str]:
    for match in _SAID.finditer(text):
        command, following = match.groups()
        if command in _WITH_SUBCOMMAND:
            if following:
                yield f"{command}|{following}".lower()
        elif command not in _WORDS_OF_COMMANDS:
            yield command.lower()
        if following and following not in _WORDS_OF_COMMANDS and command not in _WITH_SUBCOMMAND:
            yield following.lower()


def acl_rules(
    user: str, *, prefixes: Iterable[str] = (BULLMQ_PREFIX, ENVELOPE_PREFIX), password: str | None = None
) -> str:
    """A line for the server's ACL file (or for ACL SETUSER): everything that toril needs, nothing else.

    Without a password a placeholder stands where its SHA-256 belongs.
    """
    if not user or re.search(r"\s", user):
        raise InvalidOption("user", "must be a word", "give a name such as toril")
    secret = f">{password}" if password else "#<sha256-of-the-password>"
    keys = " ".join(f"~{prefix}:*" for prefix in prefixes)
    commands = " ".join(f"+{name}" for name in needed_commands())
    return f"user {user} on {secret} resetkeys {keys} resetchannels -@all {commands}"


async def examine_acl(transport: AsyncTransport, prefix: str = BULLMQ_PREFIX) -> list[Finding]:
    """Whether our user may do what queues and workers do."""
    probes = _probes(f"{prefix}:toril-doctor:nothing")
    replies = await transport.run_many([command for _, command in probes])
    refused = [
        name for (name, _), reply in zip(probes, replies, strict=True) if isinstance(reply, AccessDenied)
    ]
    if refused:
        message = f"this user may not {', '.join(refused)} on keys {prefix}:*"
        return [problem("rights", message, "give it the rules that `toril doctor --acl USER` prints")]
    return [ok("rights", "this user may do what queues and workers do")]


def _probes(key: str) -> list[tuple[str, Command[object]]]:
    """Commands in a form that does nothing to a key that is not there."""
    group = ("XREADGROUP", "GROUP", "nobody", "nobody", "COUNT", 1, "STREAMS", key, ">")
    words: list[tuple[Arg, ...]] = [
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
    keyed = {"EVAL": (key,)}  # its key does not stand where those of other commands do
    return [
        (_title(one), Command(one, _anything, keys=keyed.get(str(one[0]), ()), replay=Replay.SAFE))
        for one in words
    ]


def _title(words: tuple[Arg, ...]) -> str:
    name = str(words[0])
    return f"{name} {words[1]!s}" if name in ("SCRIPT", "CLIENT") else name


def _anything(reply: object) -> object:
    return reply
