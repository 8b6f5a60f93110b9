"""`Command`: one call to the server as a value, from its words to the meaning of its reply.

Guarantee: a command holds everything a driver needs (script, keys, arguments, decoder, whether it may be sent twice),
so that asyncio, blocking, pipelined and batched execution share one truth.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from toril.commands.library import Script

T = TypeVar("T")
U = TypeVar("U")

Arg = str | bytes | int | float


class Replay(enum.Enum):
    """May the driver send the command again when its reply was lost?"""

    SAFE = "safe"  # Reads, lock extensions, adds under a ledger: a second run changes nothing.
    NEVER = "never"  # A second run could take, finish or move another job.


@dataclass(frozen=True, slots=True)
class Command(Generic[T]):
    """One script call (`script` is set) or one plain Redis command (`words` begins with its name)."""

    words: Sequence[Arg]  # For a script: its arguments; for a plain command: name and arguments.
    decode: Callable[[Any], T]
    script: Script | None = None
    keys: Sequence[str] = ()
    replay: Replay = Replay.NEVER

    @property
    def name(self) -> str:
        return self.script.name if self.script is not None else str(self.words[0])

    def evalsha(self) -> tuple[Arg, ...]:
        """The words to send when the server is expected to know the script."""
        if self.script is None:
            return tuple(self.words)
        return ("EVALSHA", self.script.sha1, len(self.keys), *self.keys, *self.words)

    def eval(self) -> tuple[Arg, ...]:
        """The words to send after NOSCRIPT: the text itself, which the server then remembers."""
        if self.script is None:
            return tuple(self.words)
        return ("EVAL", self.script.text, len(self.keys), *self.keys, *self.words)

    def then(self, change: Callable[[T], U]) -> Command[U]:
        """The same call with a further step of decoding."""
        decode = self.decode
        return Command(
            words=self.words,
            decode=lambda reply: change(decode(reply)),
            script=self.script,
            keys=self.keys,
            replay=self.replay,
        )


def call(
    script: Script,
    keys: Sequence[str],
    args: Sequence[Arg],
    decode: Callable[[Any], T],
    replay: Replay = Replay.NEVER,
) -> Command[T]:
    """A script call."""
    return Command(words=args, decode=decode, script=script, keys=keys, replay=replay)


def plain(decode: Callable[[Any], T], *words: Arg, replay: Replay = Replay.SAFE) -> Command[T]:
    """A plain Redis command; safe to repeat unless said otherwise, as most of ours only read."""
    return Command(words=words, decode=decode, replay=replay)
