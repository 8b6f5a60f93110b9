"""Random lives of a queue leave the same keyspace and events through toril as through Node, after every step."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.interop.application_side import ApplicationSide
from tests.interop.conftest import Pair
from tests.interop.machine import live_through
from tests.interop.sides import STRICT
from tests.interop.steps import RECORDINGS, load
from tests.interop.twins import Twins

QUICK_SEQUENCES = 40
STEPS = 25


@pytest.mark.timeout(300)
def test_random_lives_look_the_same_to_node(twins: Twins) -> None:
    live_through(twins, sequences=QUICK_SEQUENCES, steps=STEPS, fixed=True)
    print(f"{twins.tally.sequences} sequences, {twins.tally.steps} steps, no difference")


@pytest.mark.timeout(300)
def test_workers_with_a_rate_limit_and_metrics_look_the_same_to_node(pair: Pair) -> None:
    twins = pair(lambda server: ApplicationSide(server, STRICT), same_tokens=False, rules=STRICT)
    live_through(twins, sequences=QUICK_SEQUENCES // 2, steps=STEPS, fixed=True)


@pytest.mark.parametrize("recording", sorted(RECORDINGS.glob("*.json")), ids=lambda path: path.stem)
def test_what_once_differed_is_alike_now(twins: Twins, recording: Path) -> None:
    twins.replay(load(recording))
