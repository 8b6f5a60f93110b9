"""`toril worker`: one process or many, stopped, killed, watched."""

from __future__ import annotations

import json
import os
import signal
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from subprocess import Popen
from typing import Any

import psutil
import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.integration.cli.conftest import Start, Toril
from tests.servers import Server, free_port


def until(true: Callable[[], Any], seconds: float = 30.0) -> Any:
    """Looks until it is so; what it found."""
    deadline = time.monotonic() + seconds
    while not (found := true()):
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.02)
    return found


def states(toril: Toril, here: list[str]) -> dict[str, int]:
    found = toril("queues", "--json", *here).data
    return dict(found[0]["states"]) if found else {}


@pytest.mark.parametrize(
    ("queue", "handler"), [("emails", "handle"), ("list:gen", "plain"), ("stream:jobs.b", "plain")]
)
def test_a_function_runs_on_all_jobs_whatever_their_kind(
    start: Start, toril: Toril, here: list[str], queue: str, handler: str
) -> None:
    toril("add", queue, "work", "--count", "5", *here)
    process = start("worker", f"handlers:{handler}", "--queue", queue, "--until-idle", "--json", *here)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    assert json.loads(out)["processed"] == 5


def by_queue(toril: Toril, here: list[str]) -> dict[str, dict[str, int]]:
    return {one["queue"]: one["states"] for one in toril("queues", "--json", *here).data}


def test_a_worker_serves_every_queue_that_is_named(start: Start, toril: Toril, here: list[str]) -> None:
    """Formerly the last one alone."""
    process = start("worker", "handlers:handle", "-q", "first", "-q", "second", "--log-level", "error", *here)
    for queue in ("first", "second"):
        toril("add", queue, "work", "--count", "4", *here)
    until(lambda: [one.get("completed") for one in by_queue(toril, here).values()] == [4, 4])
    process.send_signal(signal.SIGTERM)
    out, err = process.communicate(timeout=30)
    assert process.returncode == 0, err
    assert " on first: 4 jobs completed, 0 failed\n" in out
    assert " on second: 4 jobs completed, 0 failed\n" in out


def test_queues_of_different_kinds_are_served_together_each_with_its_own_options(
    start: Start, toril: Toril, here: list[str]
) -> None:
    queues = ["list:gen", "stream:jobs.b"]
    for queue in queues:
        toril("add", queue, "work", "--count", "3", *here)
    named = [word for queue in queues for word in ("--queue", queue)]
    process = start("worker", "handlers:plain", *named, "--reliable", "--until-idle", "--json", *here)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    assert {one["queue"]: one["processed"] for one in map(json.loads, out.splitlines())} == dict.fromkeys(
        queues, 3
    )


def test_until_idle_counts_what_a_job_of_one_queue_adds_to_another(
    start: Start, toril: Toril, here: list[str], folder: Path
) -> None:
    (folder / "passing.py").write_text(
        "from toril import Queue\n"
        "async def on(job):\n"
        "    if job.data:\n"
        f"        async with Queue(job.data['next'], redis={here[1]!r}, prefix={here[3]!r}) as queue:\n"
        "            await queue.add('work', job.data['then'])\n"
    )
    route = {"next": "first", "then": {"next": "second", "then": None}}
    toril("add", "second", "work", "--data", json.dumps(route), *here)
    process = start("worker", "passing:on", "-q", "first", "-q", "second", "--until-idle", *here)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    assert {queue: one["completed"] for queue, one in by_queue(toril, here).items()} == {
        "first": 1,
        "second": 2,
    }


def test_many_processes_serve_every_queue_that_is_named(start: Start, toril: Toril, here: list[str]) -> None:
    for queue in ("first", "second"):
        toril("add", queue, "work", "--count", "6", *here)
    words = ["-q", "first", "-q", "second", "-p", "2", "--until-idle", "--log-level", "error"]
    process = start("worker", "handlers:handle", *words, *here)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    assert "2 processes with 2 jobs each on first, second" in out
    assert err == f"server: {here[1]}\n", "it is said once, by the parent"
    assert {queue: one["completed"] for queue, one in by_queue(toril, here).items()} == {
        "first": 6,
        "second": 6,
    }


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["-q", "a", "-q", "a"], "--queue: names a twice; leave one of them out"),
        (["-q", "a", "-q", "stream:b", "--reliable"], "--reliable: is not for a, stream:b; leave it out"),
        ([], "--queue: is missing; write --queue NAME"),
    ],
)
def test_queues_that_cannot_be_served_are_refused(
    toril: Toril, here: list[str], folder: Path, words: list[str], said: str
) -> None:
    result = toril("worker", "handlers:handle", *words, *here)
    assert result.code == 2
    assert said in result.err


def test_a_mapping_of_functions_by_name_is_a_handler(start: Start, toril: Toril, here: list[str]) -> None:
    toril("add", "emails", "work", *here)
    process = start("worker", "handlers:by_name", "--queue", "emails", "--until-idle", *here)
    out, _ = process.communicate(timeout=60)
    assert "1 jobs completed, 0 failed" in out


@pytest.mark.parametrize("choice", ["requeue", "fail"])
@pytest.mark.parametrize("queue", ["emails", "list:gen", "stream:jobs.b"])
def test_jobs_without_a_function_go_back_or_fail(
    start: Start, toril: Toril, here: list[str], queue: str, choice: str
) -> None:
    toril("add", queue, "other", *here)
    toril("add", queue, "work", *here)
    told = () if choice == "requeue" else ("--unknown-names", choice)
    process = start("worker", "handlers:only_work", "--queue", queue, "--until-idle", "--json", *told, *here)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    result = json.loads(out)
    assert (result["processed"], result["failed"]) == (1, 0 if choice == "requeue" else 1)
    assert ("Unknown job name" in err) == (choice == "requeue")


def test_add_can_wait_for_the_result(start: Start, toril: Toril, here: list[str]) -> None:
    process = start("worker", "handlers:handle", "--queue", "emails", "--log-level", "error", *here)
    added = toril("add", "emails", "work", "--wait", "30", *here)
    assert json.loads(added.out)["pid"] == process.pid
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=30)


def test_the_size_of_results_is_limited(start: Start, toril: Toril, here: list[str]) -> None:
    toril("add", "emails", "work", *here)
    words = ("worker", "handlers:handle", "--queue", "emails", "--until-idle", *here)
    _, err = start(*words, "--max-result-size", "3").communicate(timeout=60)
    assert "max_result_size allows 3" in err
    toril("add", "emails", "work", *here)
    out, err = start(*words, "--max-result-size", "0").communicate(timeout=60)
    assert "1 jobs completed, 0 failed" in out, err


def test_sigterm_lets_the_running_job_finish(
    start: Start, toril: Toril, here: list[str], folder: Path
) -> None:
    file = folder / "started"
    toril("add", "emails", "slow", "--data", json.dumps({"file": str(file), "seconds": 1}), *here)
    process = start("worker", "handlers:handle", "--queue", "emails", *here)
    until(file.exists)
    process.send_signal(signal.SIGTERM)
    out, err = process.communicate(timeout=30)
    assert process.returncode == 0, err
    assert "1 jobs completed" in out
    assert states(toril, here)["completed"] == 1


def test_a_second_signal_ends_the_process_even_if_its_handler_refuses_to_end(
    start: Start, toril: Toril, here: list[str], folder: Path
) -> None:
    file = folder / "started"
    toril("add", "emails", "x", "--data", json.dumps({"file": str(file)}), *here)
    process = start("worker", "handlers:stubborn", "--queue", "emails", *here)
    until(file.exists)
    for number in (signal.SIGTERM, signal.SIGINT):
        process.send_signal(number)
    _, err = process.communicate(timeout=30)
    assert process.returncode == 0, err
    assert states(toril, here)["waiting"] == 1


def test_many_processes_share_the_work_and_end_with_their_parent(
    start: Start, toril: Toril, here: list[str]
) -> None:
    toril("add", "emails", "work", "--count", "20", *here)
    process = start("worker", "handlers:handle", "-q", "emails", "-p", "2", "--log-level", "error", *here)
    until(lambda: states(toril, here).get("completed") == 20)
    children = until(lambda: _children(process, 2))
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=30)
    assert process.returncode == 0
    assert not any(child.is_running() for child in children)


def _children(process: Popen[str], count: int) -> list[psutil.Process]:
    found = psutil.Process(process.pid).children()
    return found if len(found) == count else []


def test_a_child_that_is_killed_is_replaced(
    start: Start, toril: Toril, here: list[str], folder: Path
) -> None:
    process = start("worker", "handlers:handle", "-q", "emails", "-p", "2", "--log-level", "error", *here)
    first = until(lambda: _children(process, 2))
    victim = first[0].pid
    os.kill(victim, signal.SIGKILL)
    until(lambda: {one.pid for one in _children(process, 2)} - {one.pid for one in first})
    toril("add", "emails", "work", *here)
    until(lambda: states(toril, here).get("completed") == 1)
    process.send_signal(signal.SIGTERM)
    _, err = process.communicate(timeout=30)
    assert "worker process 0 died (SIGKILL)" in err or "worker process 1 died (SIGKILL)" in err


def test_children_do_not_outlive_a_killed_parent(start: Start, toril: Toril, here: list[str]) -> None:
    toril("add", "emails", "work", "--count", "4", *here)
    process = start("worker", "handlers:handle", "-q", "emails", "-p", "2", "--log-level", "error", *here)
    until(lambda: states(toril, here).get("completed") == 4)
    children = until(lambda: _children(process, 2))
    process.kill()
    process.wait()
    _, alive = psutil.wait_procs(children, timeout=30)
    assert not alive


def get(url: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(url, timeout=10) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()
    except OSError:
        return 0, ""


def test_a_worker_serves_metrics_that_agree_with_the_queue_and_its_health(
    start: Start, toril: Toril, here: list[str]
) -> None:
    port = free_port()
    base = f"http://127.0.0.1:{port}"
    process = start(
        "worker",
        "handlers:handle",
        "-q",
        "emails",
        "-c",
        "5",
        "--http-port",
        str(port),
        "--log-level",
        "error",
        *here,
    )
    toril("add", "emails", "work", "--count", "30", *here)
    toril("add", "emails", "fail", "--count", "3", *here)
    until(lambda: get(f"{base}/readyz")[0] == 200)
    until(lambda: states(toril, here).get("failed") == 3 and states(toril, here).get("completed") == 30)
    code, text = get(f"{base}/metrics")
    assert code == 200
    values = {
        (sample.name, *sorted(sample.labels.values())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }
    assert values["bullmq_jobs_processed_total", "completed", "emails"] == 30
    assert values["bullmq_jobs_processed_total", "emails", "failed"] == 3
    assert values["bullmq_jobs_failed_total", "emails", "permanent"] == 3
    assert values["bullmq_job_duration_seconds_count", "emails"] == 33
    assert values["bullmq_job_wait_seconds_count", "emails"] == 33
    assert values["bullmq_queue_length", "completed", "emails"] == 30
    health = json.loads(get(f"{base}/healthz")[1])
    assert health["alive"] and health["ready"] and health["sweeping"] and health["keeping_locks"]
    assert get(f"{base}/nothing")[0] == 404
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=30)


def test_the_probes_of_a_worker_are_about_all_its_queues(start: Start, toril: Toril, here: list[str]) -> None:
    port = free_port()
    base = f"http://127.0.0.1:{port}"
    words = ["-q", "first", "-q", "second", "--http-port", str(port), "--log-level", "error"]
    process = start("worker", "handlers:handle", *words, *here)
    until(lambda: get(f"{base}/readyz")[0] == 200)
    for queue in ("first", "second"):
        toril("add", queue, "work", "--wait", "30", *here)
    health = json.loads(get(f"{base}/readyz")[1])
    assert health["ready"] and [one["queue"] for one in health["workers"]] == ["first", "second"]
    metrics = get(f"{base}/metrics")[1]
    for queue in ("first", "second"):
        assert f'bullmq_jobs_processed_total{{queue="{queue}",status="completed"}} 1.0' in metrics
        assert f'bullmq_queue_length{{queue="{queue}",state="completed"}} 1.0' in metrics
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=30)


def test_without_the_extra_the_probes_are_served_and_the_missing_extra_is_named(
    start: Start, toril: Toril, here: list[str], folder: Path
) -> None:
    (folder / "sitecustomize.py").write_text("import sys; sys.modules['prometheus_client'] = None")
    port = free_port()
    base = f"http://127.0.0.1:{port}"
    process = start(
        "worker", "handlers:handle", "-q", "emails", "--http-port", str(port), "--log-level", "error", *here,
        python_path=folder,
    )  # fmt: skip
    until(lambda: get(f"{base}/readyz")[0] == 200)
    assert get(f"{base}/healthz")[0] == 200
    code, text = get(f"{base}/metrics")
    assert code == 501 and 'pip install "toril[prometheus]"' in text
    process.send_signal(signal.SIGTERM)
    out, err = process.communicate(timeout=30)
    assert f"serving {base}/healthz and /readyz\n" in out
    assert "toril: /metrics is not served: prometheus_client is not installed;" in err


def test_a_worker_without_its_server_is_alive_but_not_ready(
    start: Start, start_valkey: Callable[..., Server], folder: Path
) -> None:
    server, port = start_valkey(), free_port()
    base = f"http://127.0.0.1:{port}"
    process = start(
        "worker", "handlers:handle", "-q", "emails", "--http-port", str(port), "--redis", server.url,
        "--log-level", "error",
    )  # fmt: skip
    until(lambda: get(f"{base}/readyz")[0] == 200)
    server.stop()
    until(lambda: get(f"{base}/readyz")[0] == 503)
    assert get(f"{base}/healthz")[0] == 200
    assert get(f"{base}/metrics")[0] == 200, "what the worker knows itself is told all the same"
    server.start()
    until(lambda: get(f"{base}/readyz")[0] == 200)
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=30)
    assert process.returncode == 0
