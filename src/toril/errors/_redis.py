"""What Redis answers instead of what was asked for, or when it does not answer.

Guarantee: no message holds a password.
"""

from __future__ import annotations

import re

from toril.errors._base import PermanentError, TorilError, TransientError

# Greedy on purpose: a password may hold "/" or "@", and hiding too much of a message does no harm.
_CREDENTIALS = re.compile(r"([A-Za-z][\w+.-]*://[^\s:/@]*):\S*@")
_PASSWORD_PARAMETER = re.compile(r"([?&][a-z_]*(?:password|auth|secret|token)[a-z_]*=)[^&\s]*", re.IGNORECASE)


def redact(text: str) -> str:
    """`text` with the password of every URL in it replaced by `***`."""
    return _PASSWORD_PARAMETER.sub(r"\1***", _CREDENTIALS.sub(r"\1:***@", text))


class RedisError(TorilError):
    """Redis answered with an error, or not at all. Passwords in the text are replaced."""

    hint: str = ""

    def __init__(self, message: str = "", *, hint: str | None = None) -> None:
        if hint is not None:
            self.hint = hint
        text = redact(message) or (self.__doc__ or "").split("\n")[0].rstrip(".")
        super().__init__(f"{text}; {self.hint}" if self.hint else text)


class RedisUnavailable(RedisError, TransientError):
    """Redis cannot be reached or cannot serve now."""


class ReplyLost(RedisUnavailable):
    """The command was sent, but its reply never came: it may or may not have run."""


class RedisOutOfMemory(RedisError, TransientError):
    """Redis has reached maxmemory and refuses writes."""

    hint = "raise maxmemory, remove finished jobs (remove_on_complete), or add workers"


class CrossSlot(RedisError, PermanentError):
    """The keys of one command live in different slots of the cluster."""

    hint = 'give the queues one shared hash tag, e.g. prefix="{bull}"'


class AccessDenied(RedisError, PermanentError):
    """Redis refuses the credentials, or its ACL forbids the command."""

    hint = "check user and password; `toril doctor` prints the smallest ACL that works"


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
