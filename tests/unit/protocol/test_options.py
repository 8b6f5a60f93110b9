"""Job options: valid or refused, merged by what was given, spelled as Node spells them."""

from __future__ import annotations

import dataclasses
import pickle
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toril.errors import InvalidOption
from toril.protocol.backoff import Backoff
from toril.protocol.codec import unpack
from toril.protocol.options import (
    MAX_PRIORITY,
    Deduplication,
    JobOptions,
    JobOptionsDict,
    KeepJobs,
    NewJob,
    ParentRef,
    merge,
)

NOON = datetime(2025, 1, 1, 12, tzinfo=UTC)

EVERY_OPTION: dict[str, Any] = {
    "expires": 90,
    "priority": 3,
    "delay": timedelta(seconds=2),
    "attempts": 5,
    "backoff": Backoff.exponential(1, jitter=0.5),
    "lifo": True,
    "job_id": "order-17",
    "remove_on_complete": KeepJobs(age=3600, count=3),
    "remove_on_fail": 10,
    "keep_logs": 5,
    "size_limit": 100,
    "stack_trace_limit": 2,
    "deduplication": Deduplication.debounce("x", 3),
    "parent": ParentRef("p", "bull:parents"),
    "fail_parent_on_failure": True,
    "continue_parent_on_failure": False,
    "ignore_dependency_on_failure": False,
    "remove_dependency_on_failure": False,
    "timestamp": NOON,
    "telemetry_metadata": '{"traceparent":"00"}',
    "omit_context": True,
}


def test_the_defaults_are_the_data_models() -> None:
    options = JobOptions()
    assert (options.attempts, options.priority, options.delay) == (3, 0, 0.0)
    assert options.backoff == Backoff.exponential(1)
    assert options.remove_on_complete is False
    assert options.remove_on_fail is False
    assert options.to_wire() == {"attempts": 3, "backoff": {"type": "exponential", "delay": 1000}}
    assert repr(options) == "JobOptions()"


def test_every_option_is_spelled_as_node_spells_it() -> None:
    assert JobOptions(**EVERY_OPTION).to_wire() == {
        "expires": 90_000,
        "priority": 3,
        "delay": 2000,
        "attempts": 5,
        "backoff": {"type": "exponential", "delay": 1000, "jitter": 0.5},
        "lifo": True,
        "jobId": "order-17",
        "removeOnComplete": {"age": 3600, "count": 3},
        "removeOnFail": 10,
        "kl": 5,
        "sizeLimit": 100,
        "stackTraceLimit": 2,
        "de": {"id": "x", "ttl": 3000, "extend": True, "replace": True},
        "parent": {"id": "p", "queue": "bull:parents"},
        "fpof": True,
        "cpof": False,
        "idof": False,
        "rdof": False,
        "timestamp": 1735732800000,
        "tm": '{"traceparent":"00"}',
        "omc": True,
    }


def test_options_come_back_from_the_wire() -> None:
    options = JobOptions(**EVERY_OPTION)
    assert JobOptions.from_wire(options.to_wire()) == options


def test_only_what_was_given_is_written() -> None:
    assert JobOptions(delay=0, lifo=False, backoff=None).to_wire() == {
        "attempts": 3,
        "delay": 0,
        "lifo": False,
    }
    assert JobOptions(job_id=None, parent=None, timestamp=None).to_wire() == JobOptions().to_wire()


def test_packed_options_are_the_wire_form_and_made_once() -> None:
    options = JobOptions(**EVERY_OPTION)
    assert unpack(options.packed) == options.to_wire()
    assert options.packed is options.packed


def test_seconds_are_short_for_a_fixed_backoff() -> None:
    assert JobOptions(backoff=2).backoff == Backoff.fixed(2)
    assert JobOptions(backoff=timedelta(seconds=2)).to_wire()["backoff"] == {"type": "fixed", "delay": 2000}


def test_the_keywords_of_add_are_the_fields_of_the_options() -> None:
    fields = [field.name for field in dataclasses.fields(JobOptions) if field.init]
    assert list(JobOptionsDict.__annotations__) == fields
    # A group excludes a priority and lifo; its test is below.
    assert set(EVERY_OPTION) | {"repeat", "group"} == set(fields)


def test_a_group_comes_back_from_the_wire_and_excludes_a_priority() -> None:
    options = JobOptions(group="tenant-7")
    assert options.to_wire()["group"] == {"id": "tenant-7"}
    assert JobOptions.from_wire(options.to_wire()).group == "tenant-7"
    with pytest.raises(InvalidOption, match="group"):
        JobOptions(group="tenant-7", priority=3)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("priority", -1),
        ("priority", MAX_PRIORITY + 1),
        ("priority", 1.5),
        ("priority", True),
        ("delay", -1),
        ("delay", float("nan")),
        ("delay", True),
        ("delay", "5"),
        ("attempts", 0),
        ("attempts", -3),
        ("attempts", None),
        ("attempts", 2.0),
        ("backoff", {"type": "fixed"}),
        ("lifo", 1),
        ("job_id", "17"),
        ("job_id", "a:b"),
        ("job_id", "wait"),
        ("job_id", ""),
        ("remove_on_complete", -1),
        ("remove_on_complete", {"age": 3}),
        ("remove_on_fail", "yes"),
        ("keep_logs", -1),
        ("size_limit", 0),
        ("stack_trace_limit", -1),
        ("deduplication", "x"),
        ("parent", "p"),
        ("fail_parent_on_failure", "yes"),
        ("timestamp", 1700000000000),
        ("timestamp", datetime(2025, 1, 1)),  # noqa: DTZ001
        ("telemetry_metadata", {"a": 1}),
        ("telemetry_metadata", "x" * 70_000),
        ("repeat", "daily"),
        ("repeat", {"x": "y" * 70_000}),
    ],
)
def test_an_invalid_value_is_refused_with_its_field_and_a_remedy(field: str, value: Any) -> None:
    with pytest.raises(InvalidOption) as refused:
        JobOptions(**{field: value})
    assert refused.value.field == field
    assert refused.value.remedy


def test_an_invalid_backoff_names_its_part() -> None:
    with pytest.raises(InvalidOption, match=r"backoff\.delay: is -1 s"):
        JobOptions(backoff=-1)


def test_a_backoff_of_zero_is_no_delay_whatever_the_defaults_are() -> None:
    options = merge(JobOptions(backoff=Backoff.exponential(5)), {"backoff": 0})
    assert options.to_wire()["backoff"] == {"type": "fixed", "delay": 0}
    assert JobOptions.from_wire({"backoff": 0}).backoff == Backoff.fixed(0)


def test_what_a_failure_does_to_the_parent_is_one_choice() -> None:
    with pytest.raises(InvalidOption, match="cannot be combined with fail_parent_on_failure"):
        JobOptions(fail_parent_on_failure=True, ignore_dependency_on_failure=True)


def test_delay_and_repeat_exclude_each_other_as_in_node() -> None:
    with pytest.raises(InvalidOption, match="repeat"):
        JobOptions(delay=1, repeat={"every": 1000})
    assert JobOptions(delay=1, repeat={"every": 1000, "count": 2}).to_wire()["repeat"] == {
        "every": 1000,
        "count": 2,
    }


def test_a_misspelt_option_is_refused_with_the_right_name() -> None:
    with pytest.raises(InvalidOption, match="did you mean priority"):
        JobOptions.of({"priorty": 3})
    with pytest.raises(InvalidOption, match="options are attempts"):
        JobOptions.of({"zzz": 3})


def test_a_given_field_overrides_the_default_even_with_the_same_value() -> None:
    defaults = JobOptions(attempts=9, delay=5)
    assert merge(defaults, {"delay": 0}).to_wire()["delay"] == 0
    assert merge(defaults, {"delay": 0}).attempts == 9
    assert merge(defaults, JobOptions(attempts=3)).attempts == 3
    assert merge(defaults, JobOptions(lifo=True)).attempts == 9
    assert merge(defaults, {"job_id": None}).attempts == 9


def test_merging_with_nothing_is_the_other_side() -> None:
    defaults, overrides = JobOptions(attempts=9), JobOptions(lifo=True)
    assert merge(defaults, None) is defaults
    assert merge(defaults, {}) is defaults
    assert merge(defaults, JobOptions()) is defaults
    assert merge(JobOptions(), overrides) is overrides
    assert merge(JobOptions(), {"lifo": True}) == overrides


@given(st.sets(st.sampled_from(sorted(EVERY_OPTION))), st.sets(st.sampled_from(sorted(EVERY_OPTION))))
def test_a_merge_has_exactly_the_fields_of_both(ours: set[str], theirs: set[str]) -> None:
    defaults = JobOptions.of({name: EVERY_OPTION[name] for name in ours})
    merged = merge(defaults, {name: EVERY_OPTION[name] for name in theirs})
    assert set(merged.given) == ours | theirs


def test_options_are_values() -> None:
    options = JobOptions(**EVERY_OPTION)
    assert pickle.loads(pickle.dumps(options)) == options
    assert hash(JobOptions(attempts=2)) == hash(JobOptions(attempts=2))
    assert repr(JobOptions(attempts=2)) == "JobOptions(attempts=2)"
    with pytest.raises(dataclasses.FrozenInstanceError):
        options.attempts = 4  # type: ignore[misc]


def test_the_parent_is_stored_with_what_a_failure_does() -> None:
    parent = ParentRef("p", "bull:parents")
    assert parent.key == "bull:parents:p"
    assert JobOptions(parent=parent).parent_wire() == {"id": "p", "queueKey": "bull:parents"}
    wire = JobOptions(parent=parent, ignore_dependency_on_failure=True).parent_wire()
    assert wire == {"id": "p", "queueKey": "bull:parents", "idof": True}
    assert JobOptions().parent_wire() is None


@pytest.mark.parametrize(
    ("keep", "wire"),
    [
        (KeepJobs(count=5), {"count": 5}),
        (KeepJobs(age=timedelta(hours=1)), {"age": 3600}),
        (KeepJobs(age=60, count=0, limit=100), {"age": 60, "count": 0, "limit": 100}),
        (KeepJobs(age=0), {"age": 0}),
        (KeepJobs(age=0.4), {"age": 1}),
        (KeepJobs(age=timedelta(minutes=1, milliseconds=1)), {"age": 61}),
    ],
)
def test_how_many_jobs_stay_is_spelled_with_the_age_in_seconds(keep: KeepJobs, wire: dict[str, int]) -> None:
    assert keep.to_wire() == wire
    assert JobOptions.from_wire({"removeOnFail": wire}).remove_on_fail == keep


@pytest.mark.parametrize("fields", [{}, {"limit": 3}, {"count": -1}, {"age": -1}, {"count": True}])
def test_keeping_needs_an_age_or_a_count(fields: dict[str, Any]) -> None:
    with pytest.raises(InvalidOption):
        KeepJobs(**fields)


def test_the_ways_to_deduplicate_have_names() -> None:
    assert Deduplication.simple("x").to_wire() == {"id": "x"}
    assert Deduplication.throttle("x", 5).to_wire() == {"id": "x", "ttl": 5000}
    assert Deduplication.debounce("x", 5).to_wire() == {
        "id": "x",
        "ttl": 5000,
        "extend": True,
        "replace": True,
    }


DEBOUNCED = Deduplication.debounce("x", 5)


@pytest.mark.parametrize(
    ("options", "delay"),
    [
        (JobOptions(deduplication=DEBOUNCED), 5.0),
        (JobOptions(deduplication=DEBOUNCED, delay=2), 2.0),
        (JobOptions(deduplication=DEBOUNCED, delay=0), 0.0),
        (JobOptions(deduplication=Deduplication.throttle("x", 5)), 0.0),
        (merge(JobOptions(delay=3), {"deduplication": DEBOUNCED}), 3.0),
        (merge(JobOptions(deduplication=DEBOUNCED), {"priority": 1}), 5.0),
        (merge(JobOptions(deduplication=DEBOUNCED), {"delay": 1}), 1.0),
        (merge(JobOptions(deduplication=DEBOUNCED), {"deduplication": Deduplication.debounce("x", 9)}), 9.0),
        (merge(JobOptions(deduplication=DEBOUNCED), {"deduplication": None}), 0.0),
    ],
)
def test_a_debounced_job_is_delayed_by_its_ttl_unless_it_says_otherwise(
    options: JobOptions, delay: float
) -> None:
    assert options.delay == delay
    assert options.to_wire().get("delay", 0) == delay * 1000
    assert JobOptions.from_wire(options.to_wire()).delay == delay


def test_a_stored_job_that_is_debounced_has_no_delay_but_its_own() -> None:
    assert JobOptions.from_wire({"de": DEBOUNCED.to_wire()}).delay == 0


@pytest.mark.parametrize(
    "fields", [{"id": ""}, {"id": "x", "ttl": 0}, {"id": "x", "extend": True}, {"id": "x", "replace": 1}]
)
def test_a_deduplication_that_does_nothing_is_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(InvalidOption):
        Deduplication(**fields)


def test_a_job_of_node_without_attempts_runs_once() -> None:
    options = JobOptions.from_wire({"attempts": 0})
    assert options.attempts == 1
    assert options.backoff is None


@pytest.mark.parametrize(
    "wire",
    [
        {"attempts": "x", "delay": "x", "backoff": {"delay": 3}, "de": {"ttl": 3}, "parent": {"id": 3}},
        {"removeOnComplete": {"age": "x"}, "timestamp": 1e300, "priority": -4, "kl": [], "lifo": "yes"},
        {"delay": None, "de": [], "unknown": 1},
    ],
)
def test_options_that_do_not_fit_are_left_out_when_read(wire: dict[str, Any]) -> None:
    assert JobOptions.from_wire(wire).to_wire() == {"attempts": 1}


def test_a_new_job_has_a_name_and_data() -> None:
    job = NewJob("send", {"n": 2}, JobOptions(lifo=True))
    assert (job.name, job.data, job.options) == ("send", {"n": 2}, JobOptions(lifo=True))
    assert NewJob("send").data == {}
    for name in ("", "x" * 256, None):
        with pytest.raises(InvalidOption):
            NewJob(name)  # type: ignore[arg-type]


def test_the_deduplication_modes_of_the_sixth_generation_are_spelled_as_node_does() -> None:
    assert Deduplication.keep_last("a").to_wire() == {"id": "a", "keepLastIfActive": True}
    assert Deduplication("a", reschedule=True).to_wire() == {"id": "a", "reschedule": True}
    stored = {"id": "a", "ttl": 5, "keepLastIfActive": True, "replace": True, "reschedule": True}
    assert Deduplication.from_wire(stored) == Deduplication("a", replace=True, keep_last_if_active=True)


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"reschedule": True, "replace": True}, "deduplication.reschedule"),
        ({"keep_last_if_active": True, "ttl": 1}, "deduplication.ttl"),
        ({"keep_last_if_active": 1}, "deduplication.keep_last_if_active"),
    ],
)
def test_deduplication_modes_that_have_no_effect_together_are_refused(
    fields: dict[str, Any], field: str
) -> None:
    with pytest.raises(InvalidOption) as refused:
        Deduplication("a", **fields)
    assert refused.value.field == field
