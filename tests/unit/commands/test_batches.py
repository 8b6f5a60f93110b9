"""Our scripts leave what upstream's would: on random lives of a queue, and where lives seldom go."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import redis
from hypothesis.stateful import run_state_machine_as_test

from tests.servers import Server
from tests.unit.commands.one_by_one import Batched, OneByOne
from tests.unit.commands.queue_lives import LIVES, QueueLife
from toril.contract.keys import QueueKeys


@pytest.fixture
def clients(valkey: Server) -> Iterator[tuple[redis.Redis, redis.Redis]]:
    """Two databases of one server, so that keys have the same names on both sides."""
    with redis.Redis(port=valkey.port, db=0) as one, redis.Redis(port=valkey.port, db=1) as other:
        yield one, other


@pytest.mark.timeout(600)
@pytest.mark.parametrize("with_limits", [True, False], ids=["with limits", "without limits"])
def test_batches_leave_what_single_scripts_leave(
    clients: tuple[redis.Redis, redis.Redis], prefix: str, with_limits: bool
):
    """Without pauses and limits most of the work is plain, and goes the short way through our scripts."""
    queue = QueueKeys("q", prefix, hash_tag=False)

    class Life(QueueLife):
        keys = queue
        reference = OneByOne(clients[0], queue)
        tested = Batched(clients[1], queue)
        limits = with_limits

    run_state_machine_as_test(Life, settings=LIVES)
