"""The comparison is worth something only if it notices: each planted bug must be found, and shrunk to a short way."""

from __future__ import annotations

import pytest

from tests.interop.command_side import CommandSide
from tests.interop.conftest import Pair
from tests.interop.machine import live_through
from tests.interop.planted_bugs import BUGS
from tests.interop.sides import PlantedBug, Spoil
from tests.interop.twins import Differs

SEQUENCES = 150
SHORT = 8  # Steps; none of these bugs needs a longer way to show.


@pytest.mark.timeout(300)
@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.__name__)
def test_a_planted_bug_is_found_and_shrunk(pair: Pair, bug: Spoil) -> None:
    twins = pair(lambda server: PlantedBug(CommandSide(server, batched=True), bug))
    with pytest.raises(Differs):
        live_through(twins, sequences=SEQUENCES, steps=20, fixed=True)
    assert len(twins.steps) <= SHORT, twins.steps
