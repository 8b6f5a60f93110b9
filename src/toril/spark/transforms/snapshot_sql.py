"""Jobs whose hashes are to be read, in SQL: those that ended an attempt in `{events}`.

Guarantee: Spark and DuckDB give the same rows for it.
"""

from __future__ import annotations

from typing import Final

from toril.spark.sources.positions import SEQ_BITS
from toril.spark.transforms.dialect import Dialect
from toril.spark.transforms.step_columns import TIMELINE_EVENTS
from toril.spark.transforms.step_sql import IS_STEP

_ONE: Final = (1 << SEQ_BITS) - 1
# Numbers, not structs and strings: their aggregation needs no sorting.
_CODE: Final = " ".join(f"when '{name}' then {code}" for code, name in enumerate(TIMELINE_EVENTS))
_NAME: Final = " ".join(f"when {code} then '{name}'" for code, name in enumerate(TIMELINE_EVENTS))


def ended_jobs_sql(_: Dialect, *, everything: bool) -> str:
    """Jobs that ended an attempt since they were last added, and what is known of them; or only unfinished ones."""
    # A job that is added with a delay says `delayed`, too: only one that was taken ends an attempt by it.
    retried = "case when added is null or active < delayed then delayed end"
    ends = f"greatest(unfinished, {retried}, completed)" if everything else f"greatest(unfinished, {retried})"
    state = f"case code {_NAME} end"
    return f"""
        select queue, job_id,
            case when {state} in ('added', 'stalled') then 'waiting' else {state} end as state,
            case when added is null or added = first then pickups else 0 end as pickups,
            {_id("coalesce(added, first)")} as first_id, {_id("last")} as last_id
        from (select *, {ends} as ended from ({_AGGREGATED}) jobs) jobs
        where ended is not null and (added is null or ended > added) and {state} <> 'removed'
    """


def _id(place: str) -> str:
    return f"concat(cast(shiftright({place}, {SEQ_BITS}) as string), '-', cast({place} & {_ONE} as string))"


_AGGREGATED: Final = f"""
    select queue, job_id,
        min(place) as first, max(place) as last, max_by(code, place) as code,
        max(case when event = 'added' then place end) as added,
        min(case when event = 'active' then place end) as active,
        count(case when event = 'active' then 1 end) as pickups,
        max(case when event = 'delayed' then place end) as delayed,
        max(case when event in ('failed', 'stalled')
            or (event in ('waiting', 'waiting-children') and prev = 'active') then place end) as unfinished,
        max(case when event = 'completed' then place end) as completed
    from (
        select queue, job_id, event, prev, case event {_CODE} end as code,
            shiftleft(unix_millis(ts), {SEQ_BITS}) + seq as place
        from {{events}} where {IS_STEP}
    ) steps
    group by queue, job_id
"""
