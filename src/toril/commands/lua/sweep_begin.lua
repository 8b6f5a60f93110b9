--[[
  Begins a stalled sweep: the jobs marked by the last sweep become the suspects that this sweep checks, and all jobs that
  are active now are marked.

  Upstream checks and marks in one call, whose cost grows with the square of the number of stalled jobs. Here bounded
  calls (sweep_step) check the suspects; the interval, the trimming and the marking are the same.

  stalled      the marked jobs
  suspects     the jobs that are to be checked
  sweep        the token of the current sweep
  token        of this sweep
  grace_ms  for how long the next step of this sweep may check
  Reply        how many suspects are to be checked; -1 when another worker began a sweep within the interval and has
               checked them all (if it has not, it may have ended: any worker may go on in its place)
]]
--@keys stalled active stalled_check meta events suspects sweep
--@args now_ms interval_ms token grace_ms
if redis.call("EXISTS", stalled_check) == 1 then
  local left = redis.call("LLEN", suspects)
  if left > 0 then
    redis.call("SET", sweep, token, "PX", grace_ms)
    return left
  end
  return -1
end
redis.call("SET", stalled_check, now_ms, "PX", interval_ms)
redis.call("SET", sweep, token, "PX", grace_ms)
local max_events = redis.call("HGET", meta, "opts.maxLenEvents")
if not max_events then
  max_events = 10000
  redis.call("HSET", meta, "opts.maxLenEvents", max_events)
end
redis.call("XTRIM", events, "MAXLEN", "~", max_events)

-- Suspects that an interrupted sweep has left are checked again together with the others. They keep the order in which
-- upstream would check them: the jobs of a dead worker return to wait in a defined order.
local left_over = {}
for _, id in ipairs(redis.call("LRANGE", suspects, 0, -1)) do
  left_over[id] = true
end
local marked = {}
for _, id in ipairs(redis.call("SMEMBERS", stalled)) do
  if not left_over[id] then
    marked[#marked + 1] = id
  end
end
for from = 1, #marked, 5000 do
  redis.call("RPUSH", suspects, unpack(marked, from, math.min(from + 4999, #marked)))
end
redis.call("UNLINK", stalled)

local active_ids = redis.call("LRANGE", active, 0, -1)
for from = 1, #active_ids, 5000 do
  redis.call("SADD", stalled, unpack(active_ids, from, math.min(from + 4999, #active_ids)))
end
return redis.call("LLEN", suspects)
