"""docs/architecture.md names files, classes and functions that exist."""

from __future__ import annotations

import ast
import asyncio
import re
import sys
from functools import cache
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from tests.servers import Server
from tests.waiting import until
from toril import Job, Queue, Worker

REPOSITORY = Path(__file__).parents[2]
PACKAGE = REPOSITORY / "src/toril"
TEXT = (REPOSITORY / "docs/architecture.md").read_text(encoding="utf-8")
WALK = TEXT[TEXT.index("## The walk of one job") :].partition("\n## Decisions")[0]
CODE = re.compile(r"`([^`\s]+)`")
FILE = re.compile(r"[\w/]+/\w+\.(?:py|lua)")
NAME = re.compile(r"[A-Za-z_]\w*(?:\.\w+)?")
# Called once, when the queue is opened.
OPENED = {("producer/_connection.py", "QueueConnection.ensure_open")}
WIRE_NAMES = {"wait", "added", "waiting", "active", "completed", "toril"}  # keys and events


@cache
def defined_names() -> frozenset[str]:
    """Classes, functions and `Class.method` of all modules."""
    names: set[str] = set()
    for path in PACKAGE.rglob("*.py"):
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            names |= names_of(node)
    return frozenset(names)


def names_in(path: Path) -> set[str]:
    return {name for node in ast.parse(path.read_text(encoding="utf-8")).body for name in names_of(node)}


def names_of(node: ast.stmt) -> set[str]:
    if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
        return {node.name}
    if isinstance(node, ast.ClassDef):
        functions = [one for one in node.body if isinstance(one, (ast.FunctionDef, ast.AsyncFunctionDef))]
        return {node.name, *(f"{node.name}.{one.name}" for one in functions)}
    return set()


def steps_of_the_walk() -> list[str]:
    return [" ".join(step.split()) for step in re.split(r"\n(?=\d+\. )", WALK) if re.match(r"\d+\. ", step)]


def hops() -> list[tuple[str, str]]:
    """Each name that directly follows a file: the file must define it."""
    return re.findall(r"`([\w/]+\.py)`\s+`([\w.]+)`", WALK)


def test_the_walk_has_its_steps_in_order() -> None:
    numbers = [int(step.partition(".")[0]) for step in steps_of_the_walk()]
    assert numbers == list(range(1, 25))
    assert len(hops()) >= 20


@pytest.mark.parametrize(("file", "name"), hops(), ids=str)
def test_each_hop_names_a_file_and_what_it_defines(file: str, name: str) -> None:
    assert name in names_in(PACKAGE / file), f"{file} defines no {name}"


def test_every_file_of_the_document_exists() -> None:
    files = {one for one in CODE.findall(TEXT) if FILE.fullmatch(one)}
    assert len(files) > 20
    missing = {one for one in files if not any((root / one).exists() for root in (PACKAGE, REPOSITORY))}
    assert not missing


def test_every_other_name_of_the_walk_is_defined_somewhere() -> None:
    words = {one for one in CODE.findall(WALK) if NAME.fullmatch(one) and not one.endswith((".lua", ".py"))}
    methods = {name.partition(".")[2] for name in defined_names()}
    unknown = {one for one in words - WIRE_NAMES if one not in defined_names() and one not in methods}
    assert unknown <= {"queue.add"}


async def test_a_job_takes_the_steps_of_the_walk_in_their_order(valkey: Server, prefix: str) -> None:
    """From `Queue.add` to the callback: the first call of each function, as the interpreter sees it."""
    functions = [(file, name) for file, name in hops() if (file, name) not in OPENED and "." in name]
    functions = functions[: functions.index(("worker/_observer.py", "WorkerObserver.settled")) + 1]
    assert len(functions) >= 12
    called: list[tuple[str, str]] = []

    def record(frame: FrameType, event: str, _: object) -> None:
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(f"{PACKAGE}/"):
            called.append((code.co_filename.removeprefix(f"{PACKAGE}/"), code.co_qualname))

    async def handler(_: Job[Any]) -> None:
        return None

    completed = asyncio.Event()
    async with (
        Queue("walk", redis=valkey.url, prefix=prefix) as queue,
        Worker("walk", handler, redis=valkey.url, prefix=prefix) as worker,
    ):
        worker.on("completed", lambda *_: completed.set())
        # Waiting: its first fetch is over, and the next step is taken by the job.
        await until(lambda: valkey.client().info("clients")["blocked_clients"], "the worker waits")
        sys.setprofile(record)
        try:
            await queue.add("mail", {})
            await completed.wait()
        finally:
            sys.setprofile(None)
    assert [one for one in dict.fromkeys(called) if one in functions] == functions
