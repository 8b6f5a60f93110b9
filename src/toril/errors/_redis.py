"""Errors of Redis: error replies, and missing replies.

Guarantee: no message holds a password.
"""

from __future__ import annotations

import re

from toril.errors._base import PermanentError, TorilError, TransientError

# What follows the user's name in a URL, up to the next space. Each match takes all of it, and each search begins with
# fixed characters, so that a long message of a user is searched in linear time.
_AFTER_USER = re.compile(r"(://[^\s:/@]*:)(\S*)")
_PARAMETER = re.compile(r"([?&]([a-z_]*)=)[^&\s]*", re.IGNORECASE)
_SECRETS = ("password", "auth", "secret", "token")


def redact(text: str) -> str:
    """Returns `text` with the password of every URL replaced by `***`."""
    return _PARAMETER.sub(_without_value, _AFTER_USER.sub(_without_password, text))


def _without_password(found: re.Match[str]) -> str:
    """Up to the last "@": a password may hold "/" or "@", and hiding too much of a message does no harm."""
    _, at, host = found[2].rpartition("@")
    return f"{found[1]}***@{host}" if at else found[0]


def _without_value(found: re.Match[str]) -> str:
    name = found[2].lower()
    return f"{found[1]}***" if any(one in name for one in _SECRETS) else found[0]


class RedisError(TorilError):
    """Redis answered with an error, or not at all. Passwords in the text are replaced."""

    hint: str = ""

    def __init__(self, message: str = "", *, hint: str | None = None) -> None:
        if hint is not None:
            self.hint = hint
        text = redact(message) or (self.__doc__ or "").split("\n")[0].rstrip(".")
        super().__init__(f"{text}; {self.hint}" if self.hint else text)

    @property
    def concerns_data(self) -> bool:
        """Whether a command failed because a key or a field holds something else than it expects."""
        return any(part in str(self) for part in _DATA_ERRORS)


_DATA_ERRORS = ("WRONGTYPE ", "not an integer", "not a valid float")


class RedisUnavailable(RedisError, TransientError):
    """Redis cannot be reached or cannot serve now."""


class ReplyLost(RedisUnavailable):
    """The command was sent, but its reply never came: it may or may not have run."""


class RedisOutOfMemory(RedisError, TransientError):
    """Redis has reached maxmemory and refuses writes."""

    hint = "raise maxmemory, remove finished jobs (remove_on_complete), or add workers"


class CrossSlot(RedisError, PermanentError):
    """The keys of one command are in different slots of the cluster."""

    hint = 'give the queues one shared hash tag, e.g. prefix="{bull}"'


class AccessDenied(RedisError, PermanentError):
    """Redis refuses the credentials, or its ACL forbids the command."""

    hint = "check user and password; `toril doctor` prints the smallest sufficient ACL"


class NoSuchDatabase(RedisError, PermanentError):
    """The server has no database of this number."""

    hint = "give a number below the server's setting `databases` (16 unless it was changed); a cluster has only 0"


class ScriptFailed(RedisError):
    """A script raised an error inside Redis."""


class ScriptsCorrupt(RedisError, PermanentError):
    """The packaged scripts differ from their manifest."""

    hint = "reinstall toril"


class UnsafeMix(RedisError, PermanentError):
    """A client of another major version uses this queue in a way that can destroy jobs."""

    hint = "run one major version of BullMQ per queue; `toril doctor` shows which clients are connected"
