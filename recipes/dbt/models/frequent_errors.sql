-- The ten most frequent errors of each queue.
select queue, fingerprint, sum("count") as errors
from {{ source('gold', 'errors') }}
group by queue, fingerprint
qualify row_number() over (partition by queue order by sum("count") desc) <= 10
