"""Calls that have an effect once, however often they are sent.

Guarantee: a call that is repeated after a lost reply gets the reply to its first run and changes nothing; so the
count or the ids that it returns are exact. The server remembers replies for ten minutes, under
`<queue>:toril:reply:<client>`, in the same step in which the call runs. Obliterating a queue removes them.

    once(keys, command)                 one call
    calls = Calls(keys)                 several calls, each sent after the reply to the one before
    calls.once(first); calls.once(second)
"""

from __future__ import annotations

import itertools
import os
import uuid
from typing import Final, TypeVar

from toril.commands.command import Command, Replay
from toril.commands.library import DECLARED, remembered
from toril.commands.own_script import OwnScript
from toril.commands.signature import Signature
from toril.protocol.keys import AnyKeys

T = TypeVar("T")

_PLAIN_COMMAND = OwnScript("plain_command", keys="key", each="arg")
# The key and the arguments that `once` appends to those of a call.
DECLARED["parts/remember"] = Signature(last_keys=("replies",), last_args=("slot", "number", "reply_ms"))

# Longer than any client repeats a call.
REMEMBERED_MS: Final = 600_000
# More calls than a client that does not wait for replies ever has in flight.
MANY_AT_ONCE: Final = 1000


class Calls:
    """Numbers the calls of one client; by the number the server recognises a repeated call.

    `at_once` is how many of them may wait for their replies at the same time.
    """

    __slots__ = ("_at_once", "_key", "_keys", "_numbers", "_pid", "client")

    def __init__(self, keys: AnyKeys, *, at_once: int = 1) -> None:
        self._keys = keys
        self._at_once = at_once
        self._begin()

    def _begin(self) -> None:
        self._pid = os.getpid()
        self.client = uuid.uuid4().hex
        self._key = self._keys.toril(f"reply:{self.client}")
        self._numbers = itertools.count(1)

    def once(self, command: Command[T]) -> Command[T]:
        """Returns the command under the next number: sent again, it changes nothing."""
        if self._pid != os.getpid():
            self._begin()  # a forked child is another client than its parent
        number = next(self._numbers)
        script = command.script or _PLAIN_COMMAND.script
        keys = command.keys or (str(command.args[1]),)
        return Command(
            (*command.args, number % self._at_once, number, REMEMBERED_MS),
            command.decode,
            remembered(script),
            (*keys, self._key),
            Replay.SAFE,
        )


def once(keys: AnyKeys, command: Command[T], calls: Calls | None = None) -> Command[T]:
    """Returns the command as one of several calls, or as a single one."""
    return (calls or Calls(keys)).once(command)
