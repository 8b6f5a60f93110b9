"""Dashboard and alert rules: made from one definition, accepted by Prometheus' own checker."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry

from toril.observe.grafana import PANELS
from toril.observe.grafana_files import dashboard, dashboard_text, rules, rules_text
from toril.telemetry.prometheus import PrometheusMetrics

OF_THE_DOCUMENT = {
    "Throughput": "rate(bullmq_jobs_processed_total",
    "Error rate": 'status="failed"',
    "Job duration": "histogram_quantile(0.95",
    "Queue length": 'bullmq_queue_length{state="wait"',
    "Active workers": "bullmq_active_workers",
    "Heartbeat failures": "rate(bullmq_heartbeat_failure_total",
}
OF_THE_EXPORTER = {
    "bullmq_oldest_waiting_seconds",
    "bullmq_dlq_depth",
    "bullmq_broken_schedulers",
    "bullmq_stream_lag",
    "bullmq_stream_pending",
    "bullmq_pipeline_lag_events",
    "bullmq_pipeline_last_commit_age_seconds",
}


def test_every_panel_of_the_document_is_there() -> None:
    shown = {panel["title"]: [one["expr"] for one in panel["targets"]] for panel in dashboard()["panels"]}
    for title, part in OF_THE_DOCUMENT.items():
        assert any(part in query for query in shown[title]), title


def test_percentiles_are_taken_over_rates_of_buckets() -> None:
    queries = [query for panel in PANELS for query in panel.queries.values() if "histogram_quantile" in query]
    assert len(queries) == 9
    for query in queries:
        assert re.search(r"sum by \(le, queue\) \(rate\(\w+_bucket", query)


def test_promtool_accepts_the_rules(tmp_path: Path) -> None:
    file = tmp_path / "rules.yml"
    file.write_text(rules_text())
    done = subprocess.run(["promtool", "check", "rules", str(file)], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_promtool_accepts_every_query_of_the_dashboard(tmp_path: Path) -> None:
    """Queries are checked as recording rules; a dashboard has no checker of its own."""
    queries = [
        one["expr"].replace("$queue", ".*") for panel in dashboard()["panels"] for one in panel["targets"]
    ]
    recorded = [{"record": f"query:{at}", "expr": query} for at, query in enumerate(queries)]
    file = tmp_path / "queries.yml"
    file.write_text(json.dumps({"groups": [{"name": "queries", "rules": recorded}]}))
    done = subprocess.run(["promtool", "check", "rules", str(file)], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


RULE_TEST = {
    "rule_files": ["rules.yml"],
    "evaluation_interval": "1m",
    "tests": [
        {
            "interval": "1m",
            "input_series": [
                {"series": 'bullmq_queue_length{queue="emails",state="wait"}', "values": "5+0x30"},
                {"series": 'bullmq_queue_length{queue="busy",state="wait"}', "values": "5+0x30"},
                {"series": 'bullmq_active_workers{queue="busy",worker_id="w"}', "values": "1+0x30"},
                {"series": 'bullmq_oldest_waiting_seconds{queue="emails"}', "values": "600+0x30"},
                {"series": 'bullmq_jobs_processed_total{queue="busy",status="failed"}', "values": "0+10x30"},
                {
                    "series": 'bullmq_jobs_processed_total{queue="busy",status="completed"}',
                    "values": "0+90x30",
                },
                {
                    "series": 'bullmq_active_workers{queue="busy",worker_id="w",job="exporter"}',
                    "values": "1+0x30",
                },
                {
                    "series": 'bullmq_jobs_processed_total{queue="shaky",status="retried"}',
                    "values": "0+25x30",
                },
                {
                    "series": 'bullmq_jobs_processed_total{queue="shaky",status="completed"}',
                    "values": "0+75x30",
                },
                {"series": 'bullmq_stalled_jobs_total{queue="shaky"}', "values": "0+3x30"},
                {"series": 'bullmq_stalled_jobs_total{queue="busy"}', "values": "0+0x30"},
                {"series": 'bullmq_queue_length{queue="shaky",state="active"}', "values": "20+0x30"},
                {"series": 'bullmq_queue_length{queue="busy",state="active"}', "values": "20+0x30"},
                {"series": 'bullmq_heartbeat_failure_total{queue="shaky"}', "values": "0+1x30"},
                {"series": 'bullmq_heartbeat_success_total{queue="shaky"}', "values": "0+10x30"},
                {"series": 'bullmq_heartbeat_failure_total{queue="busy"}', "values": "0+1x30"},
                {"series": 'bullmq_heartbeat_success_total{queue="busy"}', "values": "0+100x30"},
                {"series": 'bullmq_stalled_checker_skipped_total{queue="shaky"}', "values": "0+1x30"},
                {"series": 'bullmq_broken_schedulers{queue="shaky"}', "values": "2+0x30"},
                {"series": 'bullmq_broken_schedulers{queue="busy"}', "values": "0+0x30"},
                {"series": 'bullmq_jobs_unknown_name_total{queue="busy"}', "values": "0+0x30"},
                {"series": 'bullmq_jobs_unknown_name_total{queue="shaky"}', "values": "0+2x30"},
                {
                    "series": 'bullmq_lock_extend_duration_seconds_bucket{queue="shaky",le="0.01"}',
                    "values": "0+0x30",
                },
                {
                    "series": 'bullmq_lock_extend_duration_seconds_bucket{queue="shaky",le="0.05"}',
                    "values": "0+10x30",
                },
                {
                    "series": 'bullmq_lock_extend_duration_seconds_bucket{queue="shaky",le="+Inf"}',
                    "values": "0+10x30",
                },
            ],
            "alert_rule_test": [],
        }
    ],
}


@pytest.mark.parametrize(
    ("alert", "queue", "value"),
    [
        ("TorilNoWorkers", "emails", "5"),
        ("TorilJobsWaitLong", "emails", "600"),
        ("TorilHighErrorRate", "busy", "0.1"),
        ("TorilManyRetries", "shaky", "0.25"),
        ("TorilJobsStall", "shaky", "0.04"),
        ("TorilManyJobsStall", "shaky", "0.75"),
        ("TorilHeartbeatsFail", "shaky", "0.1"),
        ("TorilSweepsSkipped", "shaky", "15"),
        ("TorilSchedulerBroken", "shaky", "2"),
        ("TorilUnknownJobNames", "shaky", "10"),
        ("TorilLockRenewalsSlow", "shaky", "0.048"),
    ],
)
def test_alerts_fire_for_the_queue_that_has_the_trouble_and_no_other(
    tmp_path: Path, alert: str, queue: str, value: str
) -> None:
    rule = next(one for one in rules()["groups"][0]["rules"] if one["alert"] == alert)
    annotations = {
        name: text.replace("{{ $labels.queue }}", queue).replace('{{ printf "%.3g" $value }}', value)
        for name, text in rule["annotations"].items()
    }
    expected = {"exp_labels": {**rule["labels"], "queue": queue}, "exp_annotations": annotations}
    plan = json.loads(json.dumps(RULE_TEST))
    plan["tests"][0]["alert_rule_test"] = [{"eval_time": "25m", "alertname": alert, "exp_alerts": [expected]}]
    (tmp_path / "rules.yml").write_text(rules_text())
    (tmp_path / "test.yml").write_text(json.dumps(plan))
    done = subprocess.run(
        ["promtool", "test", "rules", "test.yml"], cwd=tmp_path, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_only_metrics_that_exist_are_asked_for() -> None:
    families = {one.name for one in PrometheusMetrics(CollectorRegistry()).registry.collect()}
    known = families | {f"{name}_total" for name in families} | {f"{name}_bucket" for name in families}
    asked = {
        name
        for text in (dashboard_text(), rules_text())
        for name in re.findall(r"bullmq_\w+(?=[\[{) ])", text)
    }
    assert asked - known <= OF_THE_EXPORTER


def test_every_alert_has_a_remedy() -> None:
    for rule in rules()["groups"][0]["rules"]:
        assert "What to do: " in rule["annotations"]["description"]
        assert rule["labels"]["severity"] in ("warning", "critical")
