"""`BatchFunction`: a handler that gets many deliveries in one call."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from toril.errors import InvalidOption

# For each delivery, in order: the JSON of its result, or the error of its attempt.
BatchResults = Sequence[bytes | BaseException]


@dataclass(frozen=True, slots=True)
class BatchFunction:
    """A function of deliveries, called in a thread with up to `size` of them, one batch after another."""

    function: Callable[[Sequence[Any]], BatchResults]
    size: int

    def __post_init__(self) -> None:
        if self.size < 1:
            raise InvalidOption("size", f"is {self.size}", "give at least 1")

    def __call__(self, deliveries: Sequence[object]) -> BatchResults:
        return self.function(deliveries)
