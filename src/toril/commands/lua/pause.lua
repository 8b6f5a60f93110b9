--[[
  Pauses or resumes a queue without losing a job.

  Upstream renames one list to the other, which destroys the jobs of the other list. Clients of BullMQ 5 keep it empty;
  clients of BullMQ 6 leave jobs in `wait` while the queue is paused. Those are moved first, as the older jobs, so that
  the official script finds what it expects.

  source  the list to leave (wait or paused)
  target  the list to fill
  action  paused or resumed
]]
--@keys source target meta prioritized events delayed marker
--@args action
--@official pause_or_resume pause

local was_paused = redis.call("HEXISTS", meta, "paused") == 1
if redis.call("EXISTS", source) == 1 then
  local others = redis.call("LRANGE", target, 0, -1)
  for from = 1, #others, 5000 do
    redis.call("RPUSH", source, unpack(others, from, math.min(from + 4999, #others)))
  end
  redis.call("DEL", target)
end
pause_or_resume(KEYS, ARGV)
-- Jobs that were in the target list during the pause need a worker to wake up, too.
if was_paused and action == "resumed" and redis.call("EXISTS", target) == 1 then
  redis.call("ZADD", marker, 0, "0")
end
