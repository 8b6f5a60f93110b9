"""One Node process and two servers for the whole run; every comparison empties the servers first."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Protocol

import pytest

from tests.interop.adapters import NO_RULES, NodeSide, Rules, Side
from tests.interop.application_adapter import ApplicationSide
from tests.interop.command_adapter import CommandSide
from tests.interop.lockstep import Lockstep
from tests.interop.reference import Reference
from tests.servers import Server


class MakeLockstep(Protocol):
    """Puts a side beside Node."""

    def __call__(
        self, tested: Callable[[Server], Side], *, same_tokens: bool = True, rules: Rules = NO_RULES
    ) -> Lockstep: ...


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
def make_lockstep(bullmq: Reference, _two_servers: tuple[Server, Server]) -> Iterator[MakeLockstep]:
    """Node on one server beside any other side on the other."""
    left, right = _two_servers
    with ExitStack() as stack:

        def make(
            tested: Callable[[Server], Side], *, same_tokens: bool = True, rules: Rules = NO_RULES
        ) -> Lockstep:
            lockstep = Lockstep(NodeSide(bullmq, left, rules=rules), tested(right), same_tokens=same_tokens)
            stack.callback(lockstep.tested.close)
            stack.callback(lockstep.reference.close)
            return lockstep

        yield make
        bullmq.set_clock(None)


@pytest.fixture(params=["commands", "batches", "applications"])
def lockstep(request: pytest.FixtureRequest, make_lockstep: MakeLockstep) -> Lockstep:
    """Node beside toril: its commands one by one, its batches, and the classes that applications use."""
    if request.param == "applications":
        return make_lockstep(ApplicationSide, same_tokens=False)
    return make_lockstep(lambda server: CommandSide(server, batched=request.param == "batches"))
