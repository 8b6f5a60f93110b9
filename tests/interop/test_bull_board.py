"""bull-board is a client like any other: on queues that only toril has written, it shows and does what it should."""

from __future__ import annotations

import pytest

from tests.interop.bull_board_routes import walk_the_board
from tests.interop.reference import Reference
from tests.interop.scenarios import Ground
from tests.servers import Server

pytestmark = pytest.mark.timeout(200)


async def test_every_route_of_bull_board_answers_and_acts(
    valkey: Server, prefix: str, bullmq: Reference
) -> None:
    result = await walk_the_board(Ground(valkey, prefix, bullmq))
    assert result.differences == []
