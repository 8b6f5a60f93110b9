"""Redis' error replies as errors of toril.

Guarantee: other packages get subclasses of `TorilError` only, and no message contains a password.
"""

from __future__ import annotations

import enum

import hiredis

from toril.errors import (
    AccessDenied,
    CrossSlot,
    RedisError,
    RedisOutOfMemory,
    RedisUnavailable,
    ScriptFailed,
)

ReplyError = hiredis.ReplyError


class Fault(enum.Enum):
    """What an error reply requires."""

    NO_SCRIPT = enum.auto()  # send the text of the script
    MOVED = enum.auto()  # another node serves the slot
    ASK = enum.auto()  # send this command to another node, once
    LATER = enum.auto()  # not executed; the server may execute it later
    RECONNECT = enum.auto()  # not executed; this connection leads to the wrong server
    FINAL = enum.auto()  # another attempt would not help


_FAULTS = {
    "NOSCRIPT": Fault.NO_SCRIPT,
    "MOVED": Fault.MOVED,
    "ASK": Fault.ASK,
    "LOADING": Fault.LATER,
    "BUSY": Fault.LATER,
    "MASTERDOWN": Fault.LATER,
    "CLUSTERDOWN": Fault.LATER,
    "TRYAGAIN": Fault.LATER,
    "NOREPLICAS": Fault.LATER,
    "MISCONF": Fault.LATER,  # the server cannot write its file and refuses changes until it can
    "READONLY": Fault.RECONNECT,
    "UNBLOCKED": Fault.RECONNECT,  # a blocked read ended because the server became a replica
}


def fault_of(error: BaseException) -> Fault:
    text = str(error)
    if text.startswith("ERR max number of clients"):
        return Fault.LATER
    # If a script fails, the message of its error contains the reason.
    if "-READONLY" in text or "READONLY You can't write" in text:
        return Fault.RECONNECT
    return _FAULTS.get(text.split(" ", 1)[0], Fault.FINAL)


_DENIED = ("NOAUTH", "WRONGPASS", "NOPERM", "ERR AUTH", "ERR invalid password")


def is_denial(text: str) -> bool:
    """Whether an error reply refuses the user or the command; another attempt does not help."""
    return text.startswith(_DENIED) or "NOPERM" in text


def translate(error: BaseException) -> RedisError:
    """Returns the error of toril that an error reply stands for."""
    text = str(error)
    if fault_of(error) in (Fault.LATER, Fault.RECONNECT):
        return RedisUnavailable(text)
    if text.startswith("OOM") or "OOM command not allowed" in text:
        return RedisOutOfMemory(text)
    if text.startswith("CROSSSLOT") or "keys in different slots" in text or "non local key" in text:
        return CrossSlot(text)
    if is_denial(text):
        return AccessDenied(text)
    if "script" in text.lower():
        return ScriptFailed(text)
    return RedisError(text)


def redirection(error: BaseException, asked: tuple[str, int]) -> tuple[int, tuple[str, int]]:
    """Returns the slot and the node that a MOVED or ASK reply names; without a host it is the node that was asked."""
    _, slot, address = str(error).split(" ")[:3]
    host, _, port = address.rpartition(":")
    return int(slot), (host or asked[0], int(port))
