"""Shell completion: names of queues, ids of jobs, states.

Guarantee: a completion never starts a server, ends within `TIMEOUT_SECONDS` and never prints an error. It offers only
values that no shell evaluates: other programs choose names of queues and ids of jobs.
"""

from __future__ import annotations

import asyncio
import contextlib
import io
import os
import re
from collections.abc import Awaitable, Callable, Iterator, MutableMapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import typer

from toril.protocol.state import JobState

if TYPE_CHECKING:
    from toril.cli._target import Target

_Params = dict[str, Any]  # of the command, as far as they are given

# Longer than a server needs, short enough for a person to wait.
TIMEOUT_SECONDS = 1.5
MAX_JOBS = 50
# Bash splits words here, and passes `list`, `:` and `gen` for `list:gen`.
_WORD_BREAKS: Final = (":", "=")
# A queue or an id; a hyphen at the beginning would be an option.
_SAFE_WORD: Final = re.compile(r"(?:(?:list|stream):)?[A-Za-z0-9_.@/+][A-Za-z0-9_.@/+-]{0,254}")


@contextlib.contextmanager
def bash_completion_words(environment: MutableMapping[str, str] = os.environ) -> Iterator[None]:
    """Joins the words that Bash has split, and removes from each completion what Bash already has."""
    if environment.get("_TORIL_COMPLETE") != "complete_bash":
        yield
        return
    words, current = environment.get("COMP_WORDS", "").split("\n"), int(environment.get("COMP_CWORD", "0"))
    complete, current, kept_by_bash = join_words(words, current)
    environment.update({"COMP_WORDS": "\n".join(complete), "COMP_CWORD": str(current)})
    printed = io.StringIO()
    try:
        with contextlib.redirect_stdout(printed):
            yield
    finally:
        print("\n".join(line.removeprefix(kept_by_bash) for line in printed.getvalue().splitlines()))


def join_words(words: Sequence[str], current: int) -> tuple[list[str], int, str]:
    """Returns the words joined again, the index of the current one, and the part of it that Bash has.

    `list`, `:`, `gen` are one word again; `--queue`, `=`, `em` are the option and its value.
    """
    complete: list[str] = []
    at, kept_by_bash, after_break = len(words), "", False
    for number, word in enumerate(words):
        is_break = word in _WORD_BREAKS
        continues = bool(complete) and (is_break or (after_break and word != ""))
        if number == current and continues:
            kept_by_bash = complete[-1] + (word if is_break else "")
        if continues:
            complete[-1] += word
        else:
            complete.append(word)
        if number == current:
            at = len(complete) - 1
        after_break = is_break
    at = min(at, len(complete))
    if at < len(complete) and complete[at].startswith("--") and "=" in complete[at]:
        option, _, value = complete[at].partition("=")
        complete[at : at + 1] = [option, value]
        at, kept_by_bash = at + 1, kept_by_bash.partition("=")[2]
    return complete, at, kept_by_bash


def complete_queue(ctx: typer.Context, incomplete: str) -> list[str]:
    """Returns the queues whose name starts with `incomplete`."""
    return _starting_with(_found_in_time(ctx, _queues), incomplete)


def complete_queues(ctx: typer.Context, incomplete: str) -> list[str]:
    """Returns completions of the last name in a list with commas."""
    before, comma, _ = incomplete.rpartition(",")
    return _starting_with([f"{before}{comma}{one}" for one in _found_in_time(ctx, _queues)], incomplete)


def complete_job(ctx: typer.Context, incomplete: str) -> list[str]:
    """Returns the newest jobs of the queue on the command line."""
    return _starting_with(_found_in_time(ctx, _jobs), incomplete)


def _starting_with(values: list[str], incomplete: str) -> list[str]:
    return [one for one in values if one.startswith(incomplete) and is_safe_word(one)]


def is_safe_word(value: str) -> bool:
    """Returns whether every shell takes a value as it is: no quoting, no expansion, no option."""
    return all(_SAFE_WORD.fullmatch(one) for one in value.split(","))


def complete_state(incomplete: str) -> list[str]:
    """Returns the states of jobs."""
    return _starting_with([one.value for one in JobState if one is not JobState.UNKNOWN], incomplete)


def _found_in_time(ctx: typer.Context, search: Callable[[_Params], Awaitable[list[str]]]) -> list[str]:
    async def in_time() -> list[str]:
        async with asyncio.timeout(TIMEOUT_SECONDS):
            return await search(dict(ctx.params))

    with contextlib.suppress(Exception):  # an error must not be printed into the command line
        return asyncio.run(in_time())
    return []


def _target(params: _Params) -> Target:
    from toril.cli._target import Target
    from toril.server import status
    from toril.transport.default_server import EMBEDDED

    target = Target.of(params.get("redis"), params.get("prefix"), params.get("env") or "prod", quiet=True)
    if target.redis.startswith(EMBEDDED) and not status(target.redis).running:
        raise OSError("no server runs, and a completion starts none")
    return target


async def _queues(params: _Params) -> list[str]:
    from toril.transport import AsyncTransport
    from toril.transport.discovery import find_queues

    target = _target(params)
    async with AsyncTransport(target.redis) as transport:
        found = await find_queues(transport, prefix=target.prefix, env=target.env)
    return list(dict.fromkeys(str(one) for one in found))


async def _jobs(params: _Params) -> list[str]:
    from toril.cli._target import QueueName

    target, where = _target(params), QueueName.parse(params.get("queue") or "")
    if where.kind == "bullmq":
        async with target.bullmq(where, "inspect", read_only=True) as queue:
            return [job.id for job in await queue.get_jobs(None, 0, MAX_JOBS)]
    async with target.envelopes(where) as queue:
        waiting = [one.job_id for one, _ in await queue.scheduled(MAX_JOBS)]
        dead = [one.job_id async for one in queue.dead_letters()]
    return [*waiting, *reversed(dead[-MAX_JOBS:])]
