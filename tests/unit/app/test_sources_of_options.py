"""Every option under one name: command line, code, environment, pyproject.toml, in this order."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from toril import App, InvalidOption
from toril.app.settings import COMMAND_OPTIONS, options_from_outside, parse_options, text_names
from toril.protocol.batch import Batch
from toril.protocol.option_parts import KeepJobs
from toril.protocol.options import JobOptions
from toril.protocol.queue_name import QueueName
from toril.protocol.worker_options import RateLimit
from toril.transport import parse_address

# Three values of each option, as they are in code; they are written to the file, to a variable and to code.
VALUES: Mapping[str, tuple[Any, Any, Any]] = {
    "backoff_delay": (2.0, 3.0, 4.0),
    "backoff_jitter": (0.1, 0.3, 0.4),
    "batch": (Batch(size=2), Batch(size=3), Batch(size=4)),
    "claim_idle": (100.0, 200.0, 400.0),
    "concurrency": (2, 3, 4),
    "consumer_group": ("a", "b", "c"),
    "consumer_idle": (7200.0, 7300.0, 7400.0),
    "cron_generation": (6, 5, 6),
    "defaults": (JobOptions(attempts=2), JobOptions(attempts=3), JobOptions(attempts=4)),
    "drain_delay": (2.0, 3.0, 4.0),
    "env": ("test", "stage", "prod"),
    "events_max_len": (100, 200, 300),
    "executor": ("thread", "process", "auto"),
    "hash_tag": (True, False, True),
    "heartbeat_interval": (2.0, 3.0, 4.0),
    "ids": ("short", "counter", "uuid"),
    "job_timeout": (2.0, 3.0, 4.0),
    "job_timeouts": ({"a": 2.0}, {"a": 3.0}, {"a": 4.0}),
    "keep": (100, 200, 300),
    "keep_results": (60.0, 70.0, 80.0),
    "lock_duration": (20.0, 25.0, 40.0),
    "log_payloads": (True, False, True),
    "max_attempts": (2, 3, 4),
    "max_backoff_delay": (60.0, 70.0, 80.0),
    "max_jobs_per_process": (2, 3, 4),
    "max_process_memory": (10**8, 2 * 10**8, 3 * 10**8),
    "max_reconnect_attempts": (2, 3, 4),
    "max_reconnect_delay": (2.0, 3.0, 4.0),
    "max_result_size": (1000, 2000, 3000),
    "max_stalled_count": (2, 3, 4),
    "max_started_attempts": (2, 3, 4),
    "maximum_rate_limit_delay": (2.0, 3.0, 4.0),
    "metrics_minutes": (60, 70, 80),
    "prefix": ("a", "b", "c"),
    "rate_limit": (RateLimit(1, 60.0), RateLimit(2, 60.0), RateLimit(3, 60.0)),
    "reconnect_delay": (0.2, 0.3, 0.4),
    "reliable": (True, False, True),
    "remove_on_complete": (KeepJobs(age=60), 5, KeepJobs(count=7)),
    "remove_on_fail": (KeepJobs(age=60), True, KeepJobs(count=7)),
    "results_to": ("a", "b", "c"),
    "shutdown_timeout": (2.0, 3.0, 4.0),
    "skip_lock_renewal": (True, False, True),
    "skip_meta": (True, False, True),
    "skip_stalled_check": (True, False, True),
    "source": ("a", "b", "c"),
    "stalled_check_interval": (2.0, 3.0, 4.0),
    "unknown_errors": ("transient", "permanent", "transient"),
    "unknown_names": ("fail", "requeue", "fail"),
    "worker_id": ("a", "b", "c"),
}
KINDS = {"list": ("reliable",), "stream": ("claim_idle", "consumer_group", "consumer_idle", "keep", "source")}
KINDS["list"] += ("env", "keep_results")


def kind_of(name: str) -> str:
    return next((kind for kind, names in KINDS.items() if name in names), "bullmq")


def as_json(value: object) -> str:
    """The value as JSON, which is a value of TOML, too, except for objects."""
    if isinstance(value, JobOptions):
        value = {"attempts": value.attempts}
    if isinstance(value, KeepJobs):
        value = {name: one for name, one in (("age", value.age), ("count", value.count)) if one is not None}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        value = dataclasses.asdict(value)
    if isinstance(value, dict):
        return json.dumps({name: one for name, one in value.items() if one is not None})
    return json.dumps(value)


def as_text(value: object) -> str:
    return value if isinstance(value, str) else as_json(value)


def as_toml(name: str, value: object) -> str:
    text = as_json(value)
    if not text.startswith("{"):
        return f"[tool.toril]\n{name} = {text}\n"
    lines = [f"{key} = {json.dumps(one)}" for key, one in json.loads(text).items()]
    return f"[tool.toril.{name}]\n" + "\n".join(lines) + "\n"


def test_every_option_that_text_can_express_is_in_the_table() -> None:
    assert set(VALUES) == set(text_names())


@pytest.mark.parametrize("name", sorted(VALUES))
def test_code_comes_before_the_environment_and_this_before_the_file(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    in_file, in_variable, in_code = VALUES[name]
    queue = QueueName.parse(f"{kind_of(name)}:q" if kind_of(name) != "bullmq" else "q")

    def chosen(app: App) -> object:
        if name != "batch":
            return app.queue_options(queue).fields.get(name)
        return options_from_outside(queue)[name]  # an app refuses it: its functions take one call

    (tmp_path / "pyproject.toml").write_text(as_toml(name, in_file))
    assert chosen(App(redis="redis://127.0.0.1:1")) == in_file
    monkeypatch.setenv(f"TORIL_{name.upper()}", as_text(in_variable))
    assert chosen(App(redis="redis://127.0.0.1:1")) == in_variable
    assert parse_options([f"{name}={as_text(in_variable)}"]) == {name: in_variable}
    if name == "batch":
        return
    options: Any = {name: in_code}
    assert chosen(App(redis="redis://127.0.0.1:1", **options)) == in_code
    declared = App(redis="redis://127.0.0.1:1")
    declared.queue(str(queue), **options)
    assert chosen(declared) == in_code


@pytest.mark.parametrize(
    ("variable", "value", "problem"),
    [
        ("TORIL_JOB_TIMEOUT", "soon", "TORIL_JOB_TIMEOUT: "),
        ("TORIL_CONCURRENCY", "0", "TORIL_CONCURRENCY: is 0"),
        ("TORIL_REMOVE_ON_COMPLETE", "{", "TORIL_REMOVE_ON_COMPLETE: is not JSON"),
        ("TORIL_REMOVE_ON_FAIL", '{"ages": 5}', "TORIL_REMOVE_ON_FAIL: is not a field of KeepJobs"),
    ],
)
def test_a_wrong_value_is_reported_with_its_variable(
    monkeypatch: pytest.MonkeyPatch, variable: str, value: str, problem: str
) -> None:
    monkeypatch.setenv(variable, value)
    with pytest.raises(InvalidOption) as raised:
        App(redis="redis://127.0.0.1:1").queue_options(QueueName.parse("q"))
    assert str(raised.value).startswith(problem)


def test_a_wrong_value_in_the_file_is_reported_with_the_file_and_one_in_code_without(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "pyproject.toml").write_text("[tool.toril]\nconcurrency = 0\n")
    app = App(redis="redis://127.0.0.1:1")
    with pytest.raises(InvalidOption, match=r"^concurrency in pyproject\.toml: is 0"):
        app.queue_options(QueueName.parse("q"))
    app.queue("q", concurrency=3)
    assert app.queue_options(QueueName.parse("q")).worker_options.concurrency == 3
    # A heartbeat that is longer than the default lock is right beside a longer lock in code.
    (tmp_path / "pyproject.toml").write_text("[tool.toril]\nheartbeat_interval = 60\n")
    app = App(redis="redis://127.0.0.1:1", lock_duration=120)
    assert app.queue_options(QueueName.parse("q")).worker_options.heartbeat_interval == 60


def test_an_empty_variable_counts_as_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORIL_CONCURRENCY", "")
    assert "concurrency" not in App(redis="redis://127.0.0.1:1").queue_options(QueueName.parse("q")).fields


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("drain_delay", "'drain_delay' has no value"),
        ("drain_dely=2", "did you mean drain_delay"),
        ("codecs=x", "is not an option that can be written as text"),
    ],
)
def test_options_by_name_are_checked(text: str, problem: str) -> None:
    with pytest.raises(InvalidOption, match=problem):
        parse_options([text])


def test_the_server_of_the_file_is_that_of_the_whole_library(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("TORIL_REDIS_URL", raising=False)
    (tmp_path / "pyproject.toml").write_text('[tool.toril]\nredis = "redis://example.org:7000"\n')

    assert parse_address().label == App().connection.address.label == "redis://example.org:7000"
    monkeypatch.setenv("TORIL_REDIS_URL", "redis://example.org:7001")
    assert App().connection.address.label == "redis://example.org:7001"
    monkeypatch.delenv("TORIL_REDIS_URL")
    (tmp_path / "pyproject.toml").write_text("[tool.toril]\nredis = 5\n")
    with pytest.raises(InvalidOption, match="write a URL as a string"):
        _ = App().connection.address


def test_options_of_the_command_are_not_those_of_a_queue() -> None:
    assert not COMMAND_OPTIONS & text_names()
