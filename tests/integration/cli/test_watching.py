"""`toril top`, `exporter`, `doctor`: the commands of those who watch."""

from __future__ import annotations

import json
import signal
import urllib.request
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

from tests.integration.cli.conftest import Start, Toril
from tests.integration.cli.test_demo import in_terminal
from tests.integration.cli.test_workers import get, until
from tests.servers import Server, free_port


def test_top_shows_all_kinds_of_queues_for_programs(toril: Toril, here: list[str]) -> None:
    for queue in ("emails", "list:gen", "stream:jobs.b"):
        toril("add", queue, "send", "--count", "2", *here)
    first, second = toril("top", "--pictures", "2", "--every", "0.1", "--json", *here).lines
    assert [one["queue"] for one in json.loads(first)["queues"]] == ["emails", "list:gen", "stream:jobs.b"]
    assert json.loads(second)["queues"][0]["rates"]["completed"] == 0


def test_top_shows_slow_and_failing_jobs_while_a_worker_runs(
    start: Start, toril: Toril, here: list[str], folder: Path
) -> None:
    file = folder / "started"
    toril("add", "emails", "slow", "--data", json.dumps({"file": str(file), "seconds": 30}), *here)
    toril("add", "emails", "fail", "--data", '"no"', *here)
    process = start(
        "worker", "handlers:handle", "-q", "emails", "-c", "2", "--log-level", "error",
        "--shutdown-timeout", "0", *here,
    )  # fmt: skip

    def all_is_reported() -> bool:
        (queue,) = toril("queues", "--json", *here).data
        # The worker's first report comes from a thread of its own, and may come after the first failure.
        return file.exists() and queue["states"]["failed"] == 1 and len(queue["workers"]) == 1

    until(all_is_reported)
    shown = toril("top", "--pictures", "1", *here).out
    assert "slow" in shown and "runs for" in shown
    assert "refused: no" in shown
    assert "worker" in shown and "running" in shown
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=30)


def test_top_is_a_live_screen_in_a_terminal(toril: Toril, here: list[str]) -> None:
    toril("add", "emails", "send", *here)
    shown = in_terminal("top", "--pictures", "3", "--every", "0.1", *here)
    assert "\x1b[?1049h" in shown and "\x1b[?1049l" in shown, "it has a screen of its own and gives it back"
    assert shown.count("toril top") == 3 and "emails" in shown


def test_a_picture_can_be_kept(toril: Toril, here: list[str], tmp_path: Path) -> None:
    toril("add", "emails", "<send>", *here)
    file = tmp_path / "top.svg"
    assert toril("top", "--pictures", "1", "--svg", str(file), *here).code == 0
    text = file.read_text()
    assert text.startswith("<svg") and "emails" in text
    assert "@font-face" not in text, "a picture loads nothing from elsewhere"


def test_the_exporter_serves_all_queues(start: Start, toril: Toril, here: list[str]) -> None:
    toril("add", "emails", "send", "--count", "3", *here)
    toril("add", "stream:jobs.b", "send", *here)
    port = free_port()
    process = start("exporter", "--port", str(port), "--json", *here)
    until(lambda: get(f"http://127.0.0.1:{port}/metrics")[0] == 200)
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
        families = {one.name: one for one in text_string_to_metric_families(answer.read().decode())}
    counts = {tuple(one.labels.values()): one.value for one in families["bullmq_job_count"].samples}
    assert counts["emails", "waiting"] == 3
    assert [one.value for one in families["bullmq_stream_lag"].samples] == [1]
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=30)
    assert process.returncode in (0, 130)


def test_metrics_can_be_printed_once(toril: Toril, here: list[str]) -> None:
    toril("add", "emails", "send", *here)
    printed = toril("exporter", "--once", *here).out
    assert 'bullmq_job_count{queue="emails",state="waiting"} 1.0' in printed


def test_metrics_can_be_read_by_programs(toril: Toril, here: list[str]) -> None:
    toril("add", "emails", "send", *here)
    samples = toril("exporter", "--once", "--json", *here).data
    wanted = {"name": "bullmq_job_count", "labels": {"queue": "emails", "state": "waiting"}, "value": 1}
    assert wanted in samples


def test_metrics_of_a_server_that_is_away_are_a_failure_of_the_command(toril: Toril) -> None:
    result = toril("exporter", "--once", "--redis", f"redis://127.0.0.1:{free_port()}")
    assert result.code == 1 and "bullmq_exporter_up 0.0" in result.out


def test_the_benchmark_measures_and_leaves_nothing_behind(toril: Toril, here: list[str]) -> None:
    figures = toril("bench", "--jobs", "300", "--json", *here).data
    assert figures["jobs"] == 300
    assert figures["processed_per_second"] > 0 and figures["start_p99_seconds"] > 0
    assert "jobs processed" in toril("bench", "--jobs", "50", *here).out
    assert toril("queues", "--json", *here).data == []
    assert toril("bench", "--rivals", "--json", *here).code == 1


def test_the_doctor_is_content_with_the_embedded_server(toril: Toril, folder: Path) -> None:
    toril("add", "emails", "send")
    found = toril("doctor", "--json").data
    # How long the way to the server takes is a matter of how busy this machine is.
    todo = [one for one in found["findings"] if one["level"] in ("problem", "warning")]
    assert [one for one in todo if one["check"] != "latency"] == []
    shown = toril("doctor")
    assert ("healthy" in shown.out) is (shown.code == 0)


def test_the_doctor_fails_where_something_must_be_done(toril: Toril, valkey: Server, prefix: str) -> None:
    result = toril("doctor", "--redis", valkey.url, "--prefix", prefix, "--json")
    assert result.code == 1
    findings = {one["check"]: one for one in result.data["findings"]}
    assert findings["persistence"]["level"] == "warning" and findings["persistence"]["remedy"]


def test_the_doctor_repairs_with_the_option(
    toril: Toril, valkey: Server, here: list[str], prefix: str
) -> None:
    toril("add", "emails", "send", "--job-id", "first", *here)
    toril("add", "emails", "send", "--job-id", "second", *here)
    with valkey.client() as client:
        client.delete(f"{prefix}:emails:first")
        client.lrem(f"{prefix}:emails:wait", 0, "second")
    assert toril("doctor", "--repair", "--json", *here).code == 1  # nobody said yes
    (done,) = toril("doctor", "--repair", "--yes", "--json", *here).data["repaired"]
    assert (done["queue"], done["removed_ids"], done["put_back"]) == (
        "emails",
        ["first"],
        {"second": "delayed"},
    )
    assert "nothing to repair" in toril("doctor", "--repair", "--yes", *here).out


def test_the_doctor_prints_an_acl(toril: Toril) -> None:
    line = toril("doctor", "--acl", "toril").out
    assert line.startswith("user toril on ") and "+evalsha" in line and "~bull:*" in line
    assert "flushall" not in line and "config" not in line


def test_dashboard_and_alerts_are_printed(toril: Toril) -> None:
    assert json.loads(toril("exporter", "--print", "grafana").out)["title"] == "toril"
    assert json.loads(toril("exporter", "--print", "alerts").out)["groups"]
