"""What the shell offers after the tabulator: names of queues, ids of jobs, states.

Guarantee: a completion never starts a server, never waits for long and never prints an error.
"""

from __future__ import annotations

import asyncio
import contextlib
import io
import os
from collections.abc import Awaitable, Callable, Iterator, MutableMapping, Sequence
from typing import Any, Final

import typer

from toril.protocol.state import JobState

# Longer than a server needs, shorter than a person waits.
PATIENCE = 1.5
MOST_JOBS = 50
# Bash takes these for the borders of words, and hands over `list`, `:` and `gen` for `list:gen`.
_BORDERS: Final = (":", "=")


@contextlib.contextmanager
def whole_words_of_bash(environment: MutableMapping[str, str] = os.environ) -> Iterator[None]:
    """Lets completions see the words that Bash has cut, and Bash the rest that it lacks of each completion."""
    if environment.get("_TORIL_COMPLETE") != "complete_bash":
        yield
        return
    words, place = environment.get("COMP_WORDS", "").split("\n"), int(environment.get("COMP_CWORD", "0"))
    whole, place, kept = joined(words, place)
    environment.update({"COMP_WORDS": "\n".join(whole), "COMP_CWORD": str(place)})
    printed = io.StringIO()
    try:
        with contextlib.redirect_stdout(printed):
            yield
    finally:
        print("\n".join(line.removeprefix(kept) for line in printed.getvalue().splitlines()))


def joined(words: Sequence[str], place: int) -> tuple[list[str], int, str]:
    """The words put together again, the place of the current one, and what Bash keeps of it.

    `list`, `:`, `gen` are one word again; `--queue`, `=`, `em` are the option and its value.
    """
    whole: list[str] = []
    at, kept, joining = len(words), "", False
    for number, word in enumerate(words):
        border = word in _BORDERS
        together = bool(whole) and (border or (joining and word != ""))
        if number == place and together:
            kept = whole[-1] + (word if border else "")
        if together:
            whole[-1] += word
        else:
            whole.append(word)
        if number == place:
            at = len(whole) - 1
        joining = border
    at = min(at, len(whole))
    if at < len(whole) and whole[at].startswith("--") and "=" in whole[at]:
        option, _, value = whole[at].partition("=")
        whole[at : at + 1] = [option, value]
        at, kept = at + 1, kept.partition("=")[2]
    return whole, at, kept


def complete_queue(ctx: typer.Context, incomplete: str) -> list[str]:
    """Queues whose name begins like this."""
    return _beginning(_quietly(ctx, _queues), incomplete)


def complete_queues(ctx: typer.Context, incomplete: str) -> list[str]:
    """Queues for the last place of a list with commas."""
    before, comma, _ = incomplete.rpartition(",")
    return _beginning([f"{before}{comma}{one}" for one in _quietly(ctx, _queues)], incomplete)


def complete_job(ctx: typer.Context, incomplete: str) -> list[str]:
    """The newest jobs of the queue that was named."""
    return _beginning(_quietly(ctx, _jobs), incomplete)


def _beginning(values: list[str], incomplete: str) -> list[str]:
    return [one for one in values if one.startswith(incomplete)]


def complete_state(incomplete: str) -> list[str]:
    """States that a job can be in."""
    return _beginning([one.value for one in JobState if one is not JobState.UNKNOWN], incomplete)


def _quietly(ctx: typer.Context, look: Callable[[dict[str, Any]], Awaitable[list[str]]]) -> list[str]:
    async def in_time() -> list[str]:
        async with asyncio.timeout(PATIENCE):
            return await look(dict(ctx.params))

    try:
        return asyncio.run(in_time())
    except Exception:  # noqa: BLE001  # whatever is wrong, it must not appear in the middle of a command line
        return []


def _target(given: dict[str, Any]) -> Any:
    from toril.cli._target import Target
    from toril.server import status
    from toril.transport.default_server import EMBEDDED

    target = Target.of(given.get("redis"), given.get("prefix"), given.get("env") or "prod", quiet=True)
    if target.redis.startswith(EMBEDDED) and not status(target.redis).running:
        raise OSError("no server runs, and a completion starts none")
    return target


async def _queues(given: dict[str, Any]) -> list[str]:
    from toril.transport import AsyncTransport
    from toril.transport.discovery import find_queues

    target = _target(given)
    async with AsyncTransport(target.redis) as transport:
        found = await find_queues(transport, prefix=target.prefix, env=target.env)
    return list(dict.fromkeys(str(one) for one in found))


async def _jobs(given: dict[str, Any]) -> list[str]:
    from toril.cli._target import QueueName

    target, where = _target(given), QueueName.parse(given.get("queue") or "")
    if where.kind == "bullmq":
        async with target.bullmq(where, "inspect", look=True) as queue:
            return [job.id for job in await queue.get_jobs(None, 0, MOST_JOBS)]
    async with target.envelopes(where) as letters:
        waiting = [one.job_id for one, _ in await letters.scheduled(MOST_JOBS)]
        dead = [one.job_id async for one in letters.dead_letters()]
    return [*waiting, *reversed(dead[-MOST_JOBS:])]
