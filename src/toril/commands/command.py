"""`Command`: one call to the server as a value.

Guarantee: a command holds everything that a transport needs (script, keys, arguments, decoder, replay policy), so that
asyncio, blocking, pipelined and batched execution behave alike.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeAlias, TypeVar

from toril.commands.library import Script

T = TypeVar("T")
U = TypeVar("U")

Arg = str | bytes | int | float
Reply: TypeAlias = Any
"""A reply of the server, as the Redis client returns it: bytes, numbers, None, lists and maps of these."""


class Replay(enum.Enum):
    """Whether the transport may send a command again when its reply was lost."""

    SAFE = "safe"  # Reads, renewals of locks, adds under a ledger: a second run changes nothing.
    NEVER = "never"  # A second run could fetch, settle or move another job.


@dataclass(frozen=True, slots=True)
class Command(Generic[T]):
    """One script call (`script` is set) or one plain Redis command (`args` begins with its name)."""

    args: Sequence[Arg]  # For a script: its arguments; for a plain command: name and arguments.
    decode: Callable[[Reply], T]
    script: Script | None = None
    keys: Sequence[str] = ()
    replay: Replay = Replay.NEVER

    @property
    def name(self) -> str:
        return self.script.name if self.script is not None else str(self.args[0])

    def evalsha(self) -> tuple[Arg, ...]:
        """What to send when the server is expected to know the script."""
        if self.script is None:
            return tuple(self.args)
        return ("EVALSHA", self.script.sha1, len(self.keys), *self.keys, *self.args)

    def eval(self) -> tuple[Arg, ...]:
        """What to send after NOSCRIPT: the text itself, which the server then stores."""
        if self.script is None:
            return tuple(self.args)
        return ("EVAL", self.script.text, len(self.keys), *self.keys, *self.args)

    def then(self, change: Callable[[T], U]) -> Command[U]:
        """Returns the same call with a further step of decoding."""
        decode = self.decode
        return Command(
            args=self.args,
            decode=lambda reply: change(decode(reply)),
            script=self.script,
            keys=self.keys,
            replay=self.replay,
        )


def call(
    script: Script,
    keys: Sequence[str],
    args: Sequence[Arg],
    decode: Callable[[Reply], T],
    replay: Replay = Replay.NEVER,
) -> Command[T]:
    """Returns a script call."""
    return Command(args=args, decode=decode, script=script, keys=keys, replay=replay)


def plain(decode: Callable[[Reply], T], *args: Arg, replay: Replay = Replay.SAFE) -> Command[T]:
    """Returns a Redis command, given by its name and arguments. Most only read, so it may be repeated by default."""
    return Command(args=args, decode=decode, replay=replay)


def no_value(_: object) -> None:
    """Decodes a reply whose content does not matter."""
