"""toril and Node do a small amount of each work, on a real server, and say what it cost."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from benchmarks.__main__ import main
from benchmarks.contenders import CONTENDERS, FEATURES, Contender, UnknownContender, named
from benchmarks.environment import Environment, RunFailed, Unsupported
from benchmarks.installation import install
from benchmarks.persistence import Environments, Persistence
from benchmarks.runner import BenchmarkRunner
from benchmarks.workloads import (
    QUEUE,
    Workload,
    adding,
    bulk,
    latency,
    persisted,
    processing,
    sweeping,
)
from tests.servers import Server

pytestmark = [pytest.mark.any_key, pytest.mark.timeout(300)]
JOBS = 200


@pytest.fixture
def environment(valkey: Server) -> Iterator[Environment]:
    made = Environment(valkey)
    yield made
    made.close()


@pytest.mark.parametrize("name", ["toril", "node-5", "node-6"])
def test_jobs_are_filled_in_and_worked_off(environment: Environment, name: str) -> None:
    install(CONTENDERS[name])
    run = environment.process(CONTENDERS[name], {"queue": QUEUE, "jobs": JOBS, "concurrency": 10})
    assert run["rate"] > 0
    assert run["client_us"] > 0
    assert run["rss_mb"] > 10


def test_two_processes_share_the_work(environment: Environment) -> None:
    parameters = {"queue": QUEUE, "jobs": JOBS, "concurrency": 5}
    assert environment.process(CONTENDERS["toril"], parameters, processes=2)["rate"] > 0


def test_a_round_measures_everybody_who_is_wanted(environment: Environment) -> None:
    runner = BenchmarkRunner(lambda _: environment, repeat=2, rivals=["node-5"])
    for workload in (bulk(JOBS, "node-5", "node-6"), adding(50, JOBS, "node-5"), latency(5, "node-5")):
        results = runner.run(workload)
        assert list(results) == ["toril", "node-5"]
        assert all(summary.runs == 2 for one in results.values() for summary in one.values())
    assert runner.record.failures == []


@pytest.mark.parametrize("mode", ["everysec", "always"])
def test_a_workload_with_an_append_only_file_runs_on_a_server_that_has_one(mode: Persistence) -> None:
    install(CONTENDERS["node-5"])
    with Environments() as environments:
        runner = BenchmarkRunner(environments.of, repeat=1)
        results = runner.run(persisted(processing(10, JOBS, "node-5"), mode))
        assert list(results) == ["toril", "node-5"]
        assert all(one["file_bytes"].median > 100 for one in results.values())
        with environments.of(mode).server.client() as client:
            assert client.config_get("appendfsync") == {"appendfsync": mode}
    assert runner.record.runs["process-10-" + mode]


def test_a_run_starts_with_an_empty_file() -> None:
    with Environments() as environments:
        environment = environments.of("everysec")
        environment.add(CONTENDERS["toril"], {"task": "bulk", "queue": QUEUE, "jobs": JOBS})
        with environment.server.client() as client:
            filled = client.info("persistence")["aof_current_size"]
            environment.clear()
            assert client.info("persistence")["aof_current_size"] < filled / 10


@pytest.mark.parametrize("kind", ["list", "stream"])
def test_list_and_stream_queues_are_measured_in_the_same_way(environment: Environment, kind: str) -> None:
    run = environment.process(CONTENDERS[f"toril-{kind}"], {"queue": QUEUE, "jobs": JOBS, "concurrency": 10})
    assert run["rate"] > 0


@pytest.mark.parametrize("name", FEATURES)
def test_each_feature_is_measured_beside_a_plain_handler(environment: Environment, name: str) -> None:
    run = environment.process(CONTENDERS[name], {"queue": QUEUE, "jobs": JOBS, "concurrency": 100})
    assert run["rate"] > 0
    assert environment.server.client().zcard(f"bull:{QUEUE}:completed") == JOBS


def test_recovery_moves_every_stalled_job_in_bounded_calls(environment: Environment) -> None:
    run = sweeping(1200).run(environment, CONTENDERS["toril"])
    assert run["stalled_sum_ms"] > run["stalled_ms"] > 0


def test_a_contender_that_fails_is_reported_and_the_others_go_on(environment: Environment) -> None:
    def measure(
        environment: Environment, contender: Contender, _parameters: Mapping[str, Any]
    ) -> dict[str, float]:
        if contender.name == "node-5":
            raise RunFailed("it fell over")
        return {"rate": 1.0}

    runner = BenchmarkRunner(lambda _: environment, repeat=3)
    workload = dataclasses.replace(processing(1, 10, "node-5"), measure=measure)
    assert list(runner.run(workload)) == ["toril"]
    assert runner.record.failures == ["process-1, Node bullmq 5.62.0: it fell over"]


def test_a_rival_says_what_it_does_not_offer(environment: Environment) -> None:
    with pytest.raises(Unsupported):
        environment.add(CONTENDERS["toril"], {"task": "juggle", "queue": QUEUE, "jobs": 1})


def test_a_rival_that_breaks_is_quoted(environment: Environment) -> None:
    broken = dataclasses.replace(CONTENDERS["toril"], variables={"PYTHONHOME": "/nowhere"})
    with pytest.raises(RunFailed, match="toril ended with"):
        environment.add(broken, {"task": "bulk", "queue": QUEUE, "jobs": 1})


def test_unknown_names_on_the_command_line_are_answered_with_the_known_ones(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(UnknownContender, match="choose among toril"):
        named(["sidekiq"])
    with pytest.raises(SystemExit):
        main(["--rivals", "sidekiq"])
    assert "bullmq-py" in capsys.readouterr().err
    with pytest.raises(SystemExit, match="process-100"):
        main(["--only", "juggling"])


def test_slow_contenders_get_fewer_jobs(environment: Environment) -> None:
    seen: list[int] = []

    def measure(
        _environment: Environment, _contender: Contender, parameters: Mapping[str, Any]
    ) -> dict[str, float]:
        seen.append(parameters["jobs"])
        return {}

    workload = Workload(name="x", title="x", measure=measure, jobs=800)
    for name in ("toril", "saq"):
        workload.run(environment, CONTENDERS[name])
    assert seen == [800, 100]
