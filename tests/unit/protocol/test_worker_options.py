"""Worker options: defaults and rules."""

from __future__ import annotations

import os
import pickle
import re
import socket
import warnings
from datetime import timedelta
from typing import Any

import pytest

from toril.errors import InvalidOption, OptionWarning
from toril.protocol.backoff import Backoff
from toril.protocol.worker_options import RateLimit, WorkerOptions, new_worker_id
from toril.worker import ListWorker, StreamWorker, Worker


def test_the_defaults_are_the_data_models() -> None:
    options = WorkerOptions()
    assert options.concurrency == 1
    assert (options.lock_duration, options.heartbeat_interval, options.stalled_check_interval) == (30, 15, 30)
    assert (options.max_stalled_count, options.max_attempts) == (1, None)
    assert (options.backoff_delay, options.max_backoff_delay, options.backoff_jitter) == (1, 3600, 0.2)
    assert (options.reconnect_delay, options.max_reconnect_delay, options.max_reconnect_attempts) == (
        0.1,
        30,
        0,
    )
    assert (options.events_max_len, options.shutdown_timeout) == (10_000, 30)
    assert (options.unknown_errors, options.unknown_names) == ("permanent", "requeue")
    assert options.executor == "auto"
    assert options.worker_id is None
    assert options.metrics is None
    assert options.logger is None
    assert options.payload is None
    assert options.log_payloads is False


def test_durations_are_seconds_or_timedeltas() -> None:
    assert WorkerOptions(lock_duration=timedelta(minutes=1)).lock_duration == 60.0
    assert WorkerOptions(job_timeout=timedelta(minutes=1)).job_timeout == 60.0


def test_the_heartbeat_follows_the_lock_unless_it_is_given() -> None:
    assert WorkerOptions(lock_duration=4).heartbeat_interval == 2
    assert WorkerOptions(lock_duration=4, heartbeat_interval=1).heartbeat_interval == 1


def test_a_heartbeat_over_half_the_lock_is_warned_about() -> None:
    with pytest.warns(OptionWarning, match="one missed renewal loses the lock"):
        WorkerOptions(lock_duration=10, heartbeat_interval=6)
    with pytest.warns(OptionWarning, match="locks expire before they are renewed"):
        WorkerOptions(lock_duration=10, heartbeat_interval=10)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        WorkerOptions(lock_duration=10, heartbeat_interval=5)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("concurrency", 0),
        ("concurrency", True),
        ("concurrency", 1.5),
        ("lock_duration", 0),
        ("lock_duration", float("nan")),
        ("heartbeat_interval", -1),
        ("stalled_check_interval", 0),
        ("max_stalled_count", -1),
        ("max_attempts", 0),
        ("backoff_delay", -1),
        ("max_backoff_delay", 0.5),
        ("backoff_jitter", 2),
        ("backoff_jitter", True),
        ("worker_id", "x" * 256),
        ("worker_id", ""),
        ("max_reconnect_delay", 0.01),
        ("max_reconnect_attempts", -1),
        ("events_max_len", 0),
        ("shutdown_timeout", -1),
        ("job_timeout", 0),
        ("unknown_errors", "retry"),
        ("unknown_names", "ignore"),
        ("executor", "fork"),
        ("max_jobs_per_process", 0),
        ("max_process_memory", 0),
        ("backoffs", {"x": 3}),
    ],
)
def test_an_invalid_value_is_refused_with_its_field_and_a_remedy(field: str, value: Any) -> None:
    with pytest.raises(InvalidOption) as refused:
        WorkerOptions(**{field: value})
    assert refused.value.field == field
    assert refused.value.remedy


def test_a_shutdown_and_a_backoff_may_take_no_time_at_all() -> None:
    options = WorkerOptions(shutdown_timeout=0, backoff_delay=0, backoff_jitter=0)
    assert (options.shutdown_timeout, options.backoff_delay, options.backoff_jitter) == (0, 0, 0)


def test_a_job_without_a_backoff_gets_the_workers_only_if_the_worker_has_one() -> None:
    assert WorkerOptions().default_backoff is None
    assert WorkerOptions(backoff_delay=2).default_backoff == Backoff.exponential(2)
    assert WorkerOptions(max_attempts=5).default_backoff == Backoff.exponential(1)
    assert WorkerOptions(max_attempts=5, backoff_delay=0).default_backoff is None


def test_a_rate_limit_is_spelled_in_milliseconds() -> None:
    assert RateLimit(10, timedelta(seconds=2)).to_wire() == {"max": 10, "duration": 2000}
    assert RateLimit(10).period == 1.0
    for count, period in ((0, 1), (True, 1), (1, 0), ("x", 1)):
        with pytest.raises(InvalidOption):
            RateLimit(count, period)  # type: ignore[arg-type]


def test_a_worker_id_says_host_process_and_something_random() -> None:
    pattern = rf"{re.escape(socket.gethostname())}-{os.getpid()}-[0-9a-f]{{6}}"
    assert re.fullmatch(pattern, new_worker_id())
    assert new_worker_id() != new_worker_id()


def test_options_are_values() -> None:
    options = WorkerOptions(concurrency=5)
    assert options.given == ("concurrency",)
    assert pickle.loads(pickle.dumps(options)) == options


@pytest.mark.parametrize(
    ("worker", "name", "remedy"),
    [
        (Worker, "concurency", "did you mean concurrency?"),
        (Worker, "lockDuration", "did you mean lock_duration?"),
        (Worker, "limiter", "it is called rate_limit here"),
        (Worker, "colour", "options are concurrency, lock_duration,"),
        (ListWorker, "relible", "did you mean reliable?"),
        (StreamWorker, "claimIdle", "did you mean claim_idle?"),
    ],
)
def test_a_name_that_is_no_option_is_refused_with_the_nearest_one(
    worker: Any, name: str, remedy: str
) -> None:
    with pytest.raises(InvalidOption, match=f"{name}: is not a worker option; {re.escape(remedy)}"):
        worker("emails", print, **{name: 1})


def test_a_backoff_function_of_the_wrong_shape_is_refused_before_a_job_needs_it() -> None:
    wrong: Any = {"lunar": lambda _made: 5}
    with pytest.raises(InvalidOption, match=r"'lunar' takes neither two arguments nor three; write"):
        WorkerOptions(backoffs=wrong)
    assert WorkerOptions(backoffs={"lunar": lambda *_: 5, "built in": max}).backoffs.keys() == {
        "lunar",
        "built in",
    }
