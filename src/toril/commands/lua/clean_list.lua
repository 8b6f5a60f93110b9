--[[
  Removes old jobs of a list by the official script, and what was stored to follow them. The official script would search
  the whole list for the few that it has removed: it is given some jobs of the list in a list of their own.

  source       wait, paused or active
  work         a temporary list for the official script
  work_events  a temporary stream for the official script
  before_ms    jobs from before this time are removed
  limit        how many jobs to look at, from the last on, above zero
  skip         how many of the last jobs to leave out: earlier calls kept them
  Reply        { ids that were removed, how many jobs were looked at, ids of jobs that cannot be removed }
]]
--@keys source events repeat_set work work_events
--@args base before_ms limit state skip
--@official clean cleanJobsInSet
--@own cleaned_event cleaned_event
--@own drop_next drop_next
--@own one_by_one one_by_one

local MARK = "" -- as upstream marks what it removes; no job has this id

-- First, because a server without memory refuses scripts that begin with a write that needs memory.
redis.call("DEL", work, work_events)
local before = redis.call("LLEN", source)
local window = redis.call("LRANGE", source, -(skip + limit), -(skip + 1))
local drop = drop_next(KEYS, ARGV, base, window)
local removed, left = one_by_one(KEYS, ARGV, window, function(ids)
  redis.call("DEL", work)
  if #ids > 0 then
    redis.call("RPUSH", work, unpack(ids))
  end
  return clean({work, work_events, repeat_set}, ARGV)
end)
redis.call("DEL", work, work_events)
local gone = {}
for _, id in ipairs(removed) do
  gone[id] = (gone[id] or 0) + 1
end
for place, id in ipairs(window) do
  if (gone[id] or 0) > 0 then
    gone[id] = gone[id] - 1
    -- Counted from the first: the official script may have appended the parent of a removed job.
    redis.call("LSET", source, before - skip - #window + place - 1, MARK)
  end
end
if #removed > 0 then
  redis.call("LREM", source, -#removed, MARK) -- from the last on, so that the rest of the list is not searched
end
drop()
cleaned_event(KEYS, ARGV, #removed)
return {removed, #window, left}
