"""The name of a queue with its kind, as it is written on the command line and in tasks.

emails            a BullMQ queue
list:NAME         a queue in a Redis list
stream:NAME       a queue in a Redis stream
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from toril.errors import InvalidOption

Kind = Literal["bullmq", "list", "stream"]


@dataclass(frozen=True, slots=True)
class QueueName:
    """The kind and the name of a queue."""

    kind: Kind
    name: str

    @classmethod
    def parse(cls, text: str) -> QueueName:
        kind, colon, name = text.partition(":")
        if not colon:
            return cls("bullmq", text)
        if kind not in ("list", "stream", "bullmq"):
            raise InvalidOption(
                "queue", f"{text!r} has no known kind", "write NAME, list:NAME or stream:NAME"
            )
        return cls(kind, name)  # type: ignore[arg-type]  # checked above

    def __str__(self) -> str:
        return self.name if self.kind == "bullmq" else f"{self.kind}:{self.name}"
