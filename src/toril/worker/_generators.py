"""Handlers that are generators: each value that they yield is a checkpoint, and the last one is the result.

Guarantee: a value is stored before the generator goes on behind its `yield`. When an attempt ends early, the
generator is closed, so that its `finally` blocks run.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, Callable, Generator
from dataclasses import dataclass
from typing import Any

from toril.errors import InvalidOption
from toril.worker._callables import is_async_generator, is_generator
from toril.worker._results import Encode

Handler = Callable[[Any], Any]


@dataclass(frozen=True, slots=True)
class GeneratorHandler:
    """A generator function as a handler that returns its last value. It is sent to processes: it pickles."""

    function: Callable[[Any], Generator[Any, None, Any]]
    encode: Encode  # raises if a value is too large

    def __call__(self, job: Any) -> Any:
        last = job.checkpoint
        with contextlib.closing(self.function(job)) as values:
            for value in values:
                self.encode(value)
                job.save_checkpoint(value)
                last = value
        return last


@dataclass(frozen=True, slots=True)
class AsyncGeneratorHandler:
    """The same for an asynchronous generator function. In a process, the job has blocking methods."""

    function: Callable[[Any], AsyncGenerator[Any, None]]
    encode: Encode

    async def __call__(self, job: Any) -> Any:
        last = job.checkpoint
        async with contextlib.aclosing(self.function(job)) as values:
            async for value in values:
                self.encode(value)
                saved = job.save_checkpoint(value)
                if saved is not None:
                    await saved
                last = value
        return last


def yields(handler: Handler) -> bool:
    """Whether a handler is a generator function."""
    return is_async_generator(handler) or is_generator(handler)


def with_checkpoints(handler: Handler, encode: Encode) -> Handler:
    """A handler that returns a result: a generator function becomes one, all others are as they were."""
    if is_async_generator(handler):
        return AsyncGeneratorHandler(handler, encode)
    return GeneratorHandler(handler, encode) if is_generator(handler) else handler


def refuse_generators(handler: Handler, where: str, remedy: str) -> None:
    """Raises if a handler yields checkpoints where none can be stored."""
    if yields(handler):
        raise InvalidOption("handler", f"is a generator, whose checkpoints {where}", remedy)
