"""Gaps, figures and errors in SQL.

Guarantee: Spark and DuckDB give the same rows for it: counts sum up to the attempts given, and percentiles are exact
(linear interpolation, to the microsecond).
"""

from __future__ import annotations

from typing import Final

from toril.lake.tables import GAP_EVENT

OUTCOMES: Final = ("completed", "failed", "retried", "stalled", "suspended")
_PERCENTILES: Final = {"p50": 0.5, "p95": 0.95, "p99": 0.99}
_DIGITS: Final = 3  # of milliseconds; engines round the last bits of a number differently

GAPS: Final = f"""
    select queue, ts, id as from_id, get_json_object(extra, '$.until') as until_id, lost,
        get_json_object(extra, '$.reason') as reason
    from {{events}} where event = '{GAP_EVENT}'
"""


def figures_sql(unit: str, seconds: int) -> str:
    """Rows of gold/queue_minute or gold/queue_hour; a span has the attempts of `{attempts}` that ended in it."""
    counts = ", ".join(f"count(case when outcome = '{one}' then 1 end) as {one}" for one in OUTCOMES)
    percentiles = ", ".join(
        f"round(percentile({what}_ms, {share}), {_DIGITS}) as {what}_{name}_ms"
        for what in ("wait", "run")
        for name, share in _PERCENTILES.items()
    )
    rates = ", ".join(
        f"cast({outcome} as double) / attempts as {name}_rate"
        for name, outcome in {"failure": "failed", "retry": "retried", "stall": "stalled"}.items()
    )
    return f"""
        select *, cast(completed as double) / {seconds} as throughput, {rates}, cast({unit} as date) as day
        from (
            select queue, date_trunc('{unit}', ended_at) as {unit}, {counts}, count(*) as attempts, {percentiles},
                cast(sum(run_ms) as bigint) as run_sum_ms
            from {{attempts}} group by queue, date_trunc('{unit}', ended_at)
        ) counted
    """


_LATEST: Final = (
    "partition by queue, fingerprint, name, day order by ended_at desc, job_id desc, attempt desc, error desc"
)
# Rows of gold/errors: one per queue, job name, fingerprint and day; `{attempts}` have fingerprints.
ERRORS: Final = f"""
    select queue, fingerprint, pattern, name, count(*) as count, count(distinct job_id) as jobs,
        min(ended_at) as first_at, max(ended_at) as last_at,
        substring(max(case when place = 1 then error end), 1, 4000) as sample,
        max(case when place = 1 then job_id end) as sample_job_id, day
    from (select *, row_number() over ({_LATEST}) as place from {{attempts}}) attempts
    group by queue, fingerprint, pattern, name, day
"""
