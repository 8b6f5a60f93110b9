--[[
  Removes old jobs of a sorted set by the official script, and what was stored to follow them. The official script looks
  at the first jobs only: it is given some jobs of the set in a set of their own.

  source       completed, failed, delayed or prioritized
  work         a temporary set for the official script
  work_events  a temporary stream for the official script
  before_ms    jobs from before this time are removed
  limit        how many jobs to look at, from the first on, above zero
  skip         how many of the first jobs to leave out: earlier calls kept them
  Reply        { ids that were removed, how many jobs were looked at, ids of jobs that cannot be removed }
]]
--@keys source events repeat_set work work_events
--@args base before_ms limit state skip
--@official clean cleanJobsInSet
--@own cleaned_event cleaned_event
--@own drop_next drop_next
--@own one_by_one one_by_one

-- First, because a server without memory refuses scripts that begin with a write that needs memory.
redis.call("DEL", work, work_events)
local window
if state == "completed" or state == "failed" then -- in the order of their age
  window = redis.call("ZRANGEBYSCORE", source, 0, before_ms, "LIMIT", skip, limit)
else
  window = redis.call("ZRANGE", source, skip, skip + limit - 1)
end
local drop = drop_next(KEYS, ARGV, base, window)
local removed, left = one_by_one(KEYS, ARGV, window, function(ids)
  redis.call("DEL", work)
  local members = {}
  for place, id in ipairs(ids) do
    members[2 * place - 1], members[2 * place] = place, id
  end
  if #ids > 0 then
    redis.call("ZADD", work, unpack(members))
  end
  return clean({work, work_events, repeat_set}, ARGV)
end)
redis.call("DEL", work, work_events)
if #removed > 0 then
  redis.call("ZREM", source, unpack(removed))
end
drop()
cleaned_event(KEYS, ARGV, #removed)
return {removed, #window, left}
