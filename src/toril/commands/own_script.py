"""`OwnScript`: the declaration of a script of toril, with the names of its keys and arguments.

Guarantee: keys and arguments are sent in the order of the names, which the script's header must repeat
(`commands/signature.py`); a name that is missing or unknown raises `TypeError`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from toril.commands.command import Arg, Command, Replay, Reply
from toril.commands.library import DECLARED, Script, own
from toril.commands.signature import Signature
from toril.protocol.keys import AnyKeys

T = TypeVar("T")


class OwnScript:
    """An own script by name. Names of keys and arguments are separated by spaces."""

    __slots__ = ("name", "signature")

    def __init__(
        self, name: str, *, keys: str = "", each_keys: str = "", args: str = "", each: str = ""
    ) -> None:
        self.name = name
        self.signature = Signature(
            keys=tuple(keys.split()),
            each_keys=tuple(each_keys.split()),
            args=tuple(args.split()),
            each=tuple(each.split()),
        )
        DECLARED[name] = self.signature

    @property
    def script(self) -> Script:
        return own(self.name)

    def keys(self, keys: AnyKeys, **given: str) -> tuple[str, ...]:
        """Returns the keys in order: those that are given by name, and those of the queue of the same name."""
        return in_order(self.name, self.signature.keys, keys, given)

    def each_keys(self, keys: AnyKeys, **given: str) -> tuple[str, ...]:
        """Returns the keys of one item in order."""
        return in_order(self.name, self.signature.each_keys, keys, given)

    def args(self, **values: Arg) -> list[Arg]:
        """Returns the arguments in order; arguments of items are appended by the caller."""
        names = self.signature.args
        if len(values) != len(names):
            raise TypeError(f"{self.name} takes the arguments {', '.join(names)}")
        return [values[name] for name in names]

    def call(
        self,
        keys: Sequence[str],
        args: Sequence[Arg],
        decode: Callable[[Reply], T],
        replay: Replay = Replay.NEVER,
    ) -> Command[T]:
        """Returns the call as a command."""
        return Command(args, decode, own(self.name), keys, replay)


def in_order(script: str, names: tuple[str, ...], keys: AnyKeys, given: dict[str, str]) -> tuple[str, ...]:
    unknown = given.keys() - set(names)
    if unknown:
        raise TypeError(f"{script} has no key {', '.join(sorted(unknown))}")
    return tuple([given[name] if name in given else getattr(keys, name) for name in names])
