"""What many runs say together."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.figures import best, percentile, percentiles, ratio, summarize

VALUES = st.lists(st.floats(min_value=0.001, max_value=1e6), min_size=1, max_size=50)


def test_a_summary_is_the_median_of_the_runs_with_half_of_their_range() -> None:
    summary = summarize([{"rate": 90.0}, {"rate": 100.0}, {"rate": 130.0}])["rate"]
    assert (summary.median, summary.low, summary.high, summary.runs) == (100.0, 90.0, 130.0, 3)
    assert summary.spread == pytest.approx(0.2)


def test_a_metric_that_some_runs_lack_is_summed_up_over_the_others() -> None:
    summary = summarize([{"rate": 1.0}, {"rate": 3.0, "rss_mb": 40.0}])
    assert summary["rss_mb"].runs == 1
    assert summary["rate"].median == 2.0


def test_one_disturbed_run_does_not_move_the_median_much() -> None:
    runs = [{"rate": rate} for rate in (100.0, 101.0, 5.0)]
    assert summarize(runs)["rate"].median == 100.0


@given(VALUES, st.sampled_from([0.5, 0.95, 0.99, 1.0]))
def test_a_percentile_is_one_of_the_values_and_enough_of_them_do_not_exceed_it(
    values: list[float], share: float
) -> None:
    found = percentile(values, share)
    assert found in values
    assert sum(value <= found for value in values) >= share * len(values)


def test_a_hundred_values_have_the_percentiles_one_expects() -> None:
    assert percentiles("wait_", list(range(1, 101))) == {"wait_p50": 50, "wait_p95": 95, "wait_p99": 99}


def test_no_values_have_no_percentiles() -> None:
    assert percentiles("wait_", []) == {}
    with pytest.raises(ValueError, match="no percentile"):
        percentile([], 0.5)


def test_the_best_has_the_most_jobs_a_second_but_the_least_time_and_memory() -> None:
    assert best("rate", {"a": 1.0, "b": 2.0}) == "b"
    assert best("started_p99", {"a": 1.0, "b": 2.0}) == "a"
    assert best("client_us", {"a": 1.0, "b": 2.0}) == "a"
    assert best("rate", {}) is None


def test_beside_nothing_everything_is_infinite() -> None:
    assert ratio(6.0, 3.0) == 2.0
    assert ratio(1.0, 0.0) == float("inf")
