"""One Node process and two servers for the whole run; every comparison empties the servers first."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Protocol

import pytest

from tests.interop.adapters import NO_RULES, NodeSide, Rules, Side
from tests.interop.application_adapter import ApplicationSide
from tests.interop.command_adapter import CommandSide
from tests.interop.lockstep import Twins
from tests.interop.reference import Reference
from tests.servers import Server


class Pair(Protocol):
    """Puts a side beside Node."""

    def __call__(
        self, tested: Callable[[Server], Side], *, same_tokens: bool = True, rules: Rules = NO_RULES
    ) -> Twins: ...


@pytest.fixture(scope="session")
def bullmq() -> Iterator[Reference]:
    """BullMQ 5.62.0."""
    with Reference() as reference:
        yield reference


@pytest.fixture(scope="session")
def _two_servers() -> Iterator[tuple[Server, Server]]:
    with Server.valkey() as left, Server.valkey() as right:
        yield left, right


@pytest.fixture
def pair(bullmq: Reference, _two_servers: tuple[Server, Server]) -> Iterator[Pair]:
    """Node on one server beside any other side on the other."""
    left, right = _two_servers
    with ExitStack() as stack:

        def make(
            tested: Callable[[Server], Side], *, same_tokens: bool = True, rules: Rules = NO_RULES
        ) -> Twins:
            twins = Twins(NodeSide(bullmq, left, rules=rules), tested(right), same_tokens=same_tokens)
            stack.callback(twins.tested.close)
            stack.callback(twins.reference.close)
            return twins

        yield make
        bullmq.set_clock(None)


@pytest.fixture(params=["commands", "batches", "applications"])
def twins(request: pytest.FixtureRequest, pair: Pair) -> Twins:
    """Node beside toril: its commands one by one, its batches, and the classes that applications use."""
    if request.param == "applications":
        return pair(ApplicationSide, same_tokens=False)
    return pair(lambda server: CommandSide(server, batched=request.param == "batches"))
