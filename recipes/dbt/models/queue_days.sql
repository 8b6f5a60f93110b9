-- Attempts of each queue and day, and the share that failed.
select
    queue,
    day,
    count(*) as attempts,
    count(*) filter (where outcome = 'failed') as failed,
    count(*) filter (where outcome = 'failed') / count(*) as failure_share
from {{ source('silver', 'attempts') }}
group by queue, day
