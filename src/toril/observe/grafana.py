"""The panels and alerts from which the Grafana dashboard and the Prometheus alert rules are made.

Guarantee: pure data. A panel contains the alert on its query.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, Literal

Unit = Literal["short", "reqps", "s", "percentunit"]
Severity = Literal["warning", "critical"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Alert:
    """A threshold above which Prometheus raises an alert."""

    name: str
    above: float
    lasting: str  # how long the value must be above it, as Prometheus writes it
    severity: Severity
    summary: str
    remedy: str
    query: str = ""  # left out: the panel's own


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    """One panel: a title, and queries by their legend. `%s` stands for the selection of queues."""

    title: str
    queries: dict[str, str]
    unit: Unit = "short"
    text: str = ""
    alerts: tuple[Alert, ...] = field(default=())


def _percentile(rank: float, metric: str) -> str:
    # The rates of the buckets are summed by `le` first: a quantile of raw buckets has no time range.
    return f"histogram_quantile({rank}, sum by (le, queue) (rate({metric}_bucket%s[5m])))"


def _percentiles(metric: str) -> dict[str, str]:
    ranks = {"p50": 0.5, "p95": 0.95, "p99": 0.99}
    return {f"{name} {{{{queue}}}}": _percentile(rank, metric) for name, rank in ranks.items()}


_FAILED: Final = 'sum by (queue) (rate(bullmq_jobs_processed_total{status="failed",queue=~"$queue"}[5m]))'
_SHARE: Final = (
    'sum by (queue) (rate(bullmq_jobs_processed_total{status="failed",queue=~"$queue"}[5m]))'
    " / sum by (queue) (rate(bullmq_jobs_processed_total%s[5m]))"
)

_RETRIED: Final = (
    'sum by (queue) (rate(bullmq_jobs_processed_total{status="retried",queue=~"$queue"}[5m]))'
    " / sum by (queue) (rate(bullmq_jobs_processed_total%s[5m]))"
)
_STALLED: Final = (
    "sum by (queue) (rate(bullmq_stalled_jobs_total%s[15m])) / "
    'sum by (queue) (rate(bullmq_jobs_processed_total{status="completed",queue=~"$queue"}[15m]))'
)
_MISSED: Final = (
    "sum by (queue) (rate(bullmq_heartbeat_failure_total%s[5m])) / "
    "sum by (queue) (rate(bullmq_heartbeat_success_total%s[5m]))"
)
# A worker that serves its own metrics is reported by the exporter, too: it is counted once.
_WORKERS: Final = "count by (queue) (max by (queue, worker_id) (bullmq_active_workers%s) == 1)"

_COMMIT_AGE: Final = (
    'max(bullmq_pipeline_last_commit_age_seconds{table="bronze/events"})'
    " and on() (sum(bullmq_pipeline_lag_events) > 0)"
)

PANELS: Final = (
    Panel(
        title="Throughput",
        text="Attempts that ended, by outcome.",
        unit="reqps",
        queries={"{{queue}} {{status}}": "sum by (queue, status) (rate(bullmq_jobs_processed_total%s[5m]))"},
    ),
    Panel(
        title="Error rate",
        text="Jobs that failed for good, per second.",
        unit="reqps",
        queries={"{{queue}}": _FAILED},
        alerts=(
            Alert(
                name="TorilHighErrorRate",
                query=_SHARE,
                above=0.05,
                lasting="10m",
                severity="warning",
                summary="more than 5 % of the attempts on {{ $labels.queue }} fail for good",
                remedy="see `toril dlq list` for the reasons; replay when the cause is gone",
            ),
        ),
    ),
    Panel(
        title="Retried",
        text="The share of attempts that will be made again.",
        unit="percentunit",
        queries={"{{queue}}": _RETRIED},
        alerts=(
            Alert(
                name="TorilManyRetries",
                above=0.1,
                lasting="10m",
                severity="warning",
                summary="more than 10 % of the attempts on {{ $labels.queue }} are retried",
                remedy="check the services that handlers call: one is unavailable, slow, or limits the rate",
            ),
        ),
    ),
    Panel(
        title="Job duration",
        text="How long handlers ran.",
        unit="s",
        queries=_percentiles("bullmq_job_duration_seconds"),
    ),
    Panel(
        title="Queue length",
        text="Jobs that wait to be taken.",
        queries={"{{queue}}": 'max by (queue) (bullmq_queue_length{state="wait",queue=~"$queue"})'},
        alerts=(
            Alert(
                name="TorilQueueGrows",
                query='max by (queue) (deriv(bullmq_queue_length{state="wait",queue=~"$queue"}[30m]))',
                above=1,
                lasting="30m",
                severity="warning",
                summary="{{ $labels.queue }} has grown for half an hour",
                remedy="add workers or concurrency; see the throughput of its workers",
            ),
        ),
    ),
    Panel(
        title="Active workers",
        text="Workers that run.",
        queries={"{{queue}}": _WORKERS},
        alerts=(
            Alert(
                name="TorilNoWorkers",
                query='max by (queue) (bullmq_queue_length{state="wait",queue=~"$queue"}) '
                f"unless on (queue) ({_WORKERS})",
                above=0,
                lasting="5m",
                severity="critical",
                summary="jobs wait on {{ $labels.queue }} and no worker runs",
                remedy="start workers: `toril worker`; `toril doctor` shows details",
            ),
        ),
    ),
    Panel(
        title="Heartbeat failures",
        text="Locks that could not be renewed, per second.",
        unit="reqps",
        queries={"{{queue}}": "sum by (queue) (rate(bullmq_heartbeat_failure_total%s[5m]))"},
        alerts=(
            Alert(
                name="TorilHeartbeatsFail",
                query=_MISSED,
                above=0.05,
                lasting="5m",
                severity="warning",
                summary="more than 5 % of the renewals of locks on {{ $labels.queue }} fail",
                remedy="check the connection to Redis and its latency; raise lock_duration",
            ),
        ),
    ),
    Panel(
        title="Waiting time",
        text="How long jobs were ready before their first attempt.",
        unit="s",
        queries=_percentiles("bullmq_job_wait_seconds"),
    ),
    Panel(
        title="Oldest waiting job",
        text="For how long the job that is taken next has been ready.",
        unit="s",
        queries={"{{queue}}": "max by (queue) (bullmq_oldest_waiting_seconds%s)"},
        alerts=(
            Alert(
                name="TorilJobsWaitLong",
                above=300,
                lasting="5m",
                severity="warning",
                summary="jobs on {{ $labels.queue }} wait longer than five minutes",
                remedy="add workers, or see whether the queue is paused or rate limited",
            ),
        ),
    ),
    Panel(
        title="Stalled jobs",
        text="Jobs of workers that died and were put back, per second.",
        unit="reqps",
        queries={"{{queue}}": "sum by (queue) (rate(bullmq_stalled_jobs_total%s[5m]))"},
        alerts=(
            Alert(
                name="TorilJobsStall",
                query=_STALLED,
                above=0.01,
                lasting="1m",
                severity="warning",
                summary="more than 1 % of the jobs on {{ $labels.queue }} stall: workers die, or are killed",
                remedy="look for killed processes (memory) and for handlers that block; use processes for CPU work",
            ),
            Alert(
                name="TorilManyJobsStall",
                query="sum by (queue) (increase(bullmq_stalled_jobs_total%s[5m])) / "
                'max by (queue) (bullmq_queue_length{state="active",queue=~"$queue"})',
                above=0.1,
                lasting="5m",
                severity="critical",
                summary="more than 10 % of the active jobs on {{ $labels.queue }} stalled within five minutes",
                remedy="check memory and exit codes of the workers: they end while jobs run",
            ),
        ),
    ),
    Panel(
        title="Renewal of locks",
        text="How long a renewal of locks took.",
        unit="s",
        queries=_percentiles("bullmq_lock_extend_duration_seconds"),
        alerts=(
            Alert(
                name="TorilLockRenewalsSlow",
                query=_percentile(0.95, "bullmq_lock_extend_duration_seconds"),
                above=0.01,
                lasting="10m",
                severity="warning",
                summary="renewing the locks of {{ $labels.queue }} takes longer than 10 ms (p95)",
                remedy="check the latency of Redis, long scripts and the network",
            ),
        ),
    ),
    Panel(
        title="Skipped sweeps",
        text="Searches for stalled jobs that were skipped because the one before still ran, per second.",
        unit="reqps",
        queries={"{{queue}}": "sum by (queue) (rate(bullmq_stalled_checker_skipped_total%s[5m]))"},
        alerts=(
            Alert(
                name="TorilSweepsSkipped",
                query="sum by (queue) (increase(bullmq_stalled_checker_skipped_total%s[15m]))",
                above=0,
                lasting="5m",
                severity="warning",
                summary="searches for stalled jobs on {{ $labels.queue }} do not end in time",
                remedy="check the latency of Redis, and the number of active jobs",
            ),
        ),
    ),
    Panel(
        title="Broken schedulers",
        text="Schedulers whose next job could not be added.",
        queries={"{{queue}}": "max by (queue) (bullmq_broken_schedulers%s)"},
        alerts=(
            Alert(
                name="TorilSchedulerBroken",
                query="max by (queue) (bullmq_broken_schedulers%s)",
                above=0,
                lasting="5m",
                severity="critical",
                summary="a scheduler of {{ $labels.queue }} cannot be read, so it adds no more jobs",
                remedy="see `toril doctor`; set the scheduler again with a pattern that can be read",
            ),
        ),
    ),
    Panel(
        title="Unknown job names",
        text="Jobs that workers put back because they have no handler for their name, per second.",
        unit="reqps",
        queries={"{{queue}}": "sum by (queue) (rate(bullmq_jobs_unknown_name_total%s[5m]))"},
        alerts=(
            Alert(
                name="TorilUnknownJobNames",
                query="sum by (queue) (increase(bullmq_jobs_unknown_name_total%s[5m]))",
                above=0,
                lasting="20m",
                severity="warning",
                summary="workers of {{ $labels.queue }} take jobs that they have no handler for",
                remedy="start workers with handlers for the names in the log: after an hour without one a job fails",
            ),
        ),
    ),
    Panel(
        title="Dead letters",
        text="Jobs that failed for good and are still stored.",
        queries={"{{queue}}": "max by (queue) (bullmq_dlq_depth%s)"},
        alerts=(
            Alert(
                name="TorilDeadLettersGrow",
                query="max by (queue) (delta(bullmq_dlq_depth%s[1h]))",
                above=100,
                lasting="5m",
                severity="warning",
                summary="more than 100 jobs of {{ $labels.queue }} failed for good within an hour",
                remedy="see `toril dlq list`",
            ),
        ),
    ),
    Panel(
        title="Streams",
        text="Entries that no consumer has received, and entries that are not acknowledged.",
        queries={
            "lag {{queue}}": "max by (queue) (bullmq_stream_lag%s)",
            "pending {{queue}}": "max by (queue) (bullmq_stream_pending%s)",
        },
    ),
    Panel(
        title="Pipeline lag",
        text="Events that the tables of the pipeline have yet to read, by queue.",
        queries={"{{queue}}": "max by (queue) (bullmq_pipeline_lag_events%s)"},
        alerts=(
            Alert(
                name="TorilPipelineBehind",
                above=5000,  # half of the events that a queue keeps by default
                lasting="2m",
                severity="warning",
                summary="the pipeline reads events of {{ $labels.queue }} more slowly than they come",
                remedy="look whether `toril pipeline up` runs and what it prints; events that are trimmed are lost",
            ),
        ),
    ),
    Panel(
        title="Pipeline commits",
        text="Time since the last commit to bronze/events while there are events to read.",
        unit="s",
        queries={"age": _COMMIT_AGE},
        alerts=(
            Alert(
                name="TorilPipelineStands",
                above=900,
                lasting="5m",
                severity="warning",
                summary="the pipeline has committed nothing for a quarter of an hour, and there are events to read",
                remedy="start `toril pipeline up`, or the job that runs `toril pipeline run`",
            ),
        ),
    ),
    Panel(
        title="Redis",
        text="1: connected. Attempts to reconnect, per second.",
        queries={
            "connected": 'min(bullmq_redis_connection_status{status="connected"})',
            "reconnects": "sum(rate(bullmq_redis_reconnect_attempts_total[5m]))",
        },
        alerts=(
            Alert(
                name="TorilRedisAway",
                query='max(bullmq_redis_connection_status{status="disconnected"})',
                above=0,
                lasting="1m",
                severity="critical",
                summary="a worker or the exporter has no connection to Redis",
                remedy="start the server, or repair the network; workers reconnect by themselves",
            ),
        ),
    ),
)
