"""States and counts by Node's names."""

from __future__ import annotations

import pytest

from toril.errors import InvalidOption
from toril.protocol.keys import QueueKeys
from toril.protocol.state import COUNTED_STATES, JobCounts, JobState


def test_states_are_spelled_as_node_spells_them() -> None:
    assert [state.value for state in COUNTED_STATES] == [
        *("active", "completed", "delayed", "failed", "paused", "prioritized", "waiting", "waiting-children"),
    ]
    assert JobState("waiting-children") is JobState.WAITING_CHILDREN
    assert str(JobState.WAITING) == "waiting"


def test_every_counted_state_is_a_key_of_the_queue() -> None:
    keys = QueueKeys("q")
    for state in COUNTED_STATES:
        assert getattr(keys, state.suffix.replace("-", "_")) == f"bull:q:{state.suffix}"


@pytest.mark.parametrize("name", ["waiting", "wait", "waiting_children", "waiting-children", JobState.FAILED])
def test_a_state_is_understood_in_either_spelling(name: str) -> None:
    assert JobState.parse(name) in COUNTED_STATES


def test_a_state_that_does_not_exist_is_refused() -> None:
    with pytest.raises(InvalidOption, match="choose one of active"):
        JobState.parse("sleeping")


def test_only_completed_and_failed_are_final() -> None:
    assert {state for state in JobState if state.is_final} == {JobState.COMPLETED, JobState.FAILED}


def test_counts_add_up() -> None:
    counts = JobCounts.of({"waiting": 1, "prioritized": 2, "active": 4, "waiting-children": 8, "failed": 16})
    assert counts.ready == 3
    assert counts.total == 31
    assert counts.unfinished == 15
    assert counts["waiting-children"] == counts["waiting_children"] == counts.waiting_children == 8
    assert counts.as_dict()["waiting-children"] == 8
    assert JobCounts.of(counts.as_dict()) == counts
