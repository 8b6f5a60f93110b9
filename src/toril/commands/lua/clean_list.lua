--[[
  Removes old jobs of a list by the official script, which is given the last jobs of the list in a list of their own: it
  would search the whole list for the few that it has removed.

  list       wait, paused or active
  work_list  a temporary list for the official script
  before_ms  jobs from before this time are removed
  limit      how many at most, above zero
  Reply      the ids that were removed
]]
--@keys list events repeat_set work_list
--@args base before_ms limit state
--@official clean cleanJobsInSet
--@own drop_next drop_next

-- First, because a server without memory refuses scripts that begin with a write that needs memory.
redis.call("DEL", work_list)
local last = redis.call("LRANGE", list, -tonumber(limit), -1)
if #last > 0 then
  redis.call("RPUSH", work_list, unpack(last))
end
local drop = drop_next(KEYS, ARGV, base, last)
local removed = clean({work_list, events, repeat_set}, ARGV)
if #removed > 0 then
  local kept = redis.call("LRANGE", work_list, 0, -1)
  redis.call("LTRIM", list, 0, -#last - 1)
  if #kept > 0 then
    redis.call("RPUSH", list, unpack(kept))
  end
end
redis.call("DEL", work_list)
drop()
return removed
