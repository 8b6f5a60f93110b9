--[[
  Removes old jobs of a list by the official body, which is given the last jobs of the list in a list of their own: it would
  look through the whole list for the few that it has removed.

  KEYS   as cleanJobsInSet: 1 list, 2 events, 3 repeat, then 4 the list for the body
  ARGV   as cleanJobsInSet: 1 key base, 2 until when (ms), 3 how many at most, above zero, 4 state
  Reply  as cleanJobsInSet: the ids that were removed
]]
--@official clean cleanJobsInSet

-- First, because a full server lets nobody begin with a write that needs memory.
redis.call("DEL", KEYS[4])
local last = redis.call("LRANGE", KEYS[1], -tonumber(ARGV[3]), -1)
if #last > 0 then
  redis.call("RPUSH", KEYS[4], unpack(last))
end
local removed = clean({KEYS[4], KEYS[2], KEYS[3]}, ARGV)
if #removed > 0 then
  local kept = redis.call("LRANGE", KEYS[4], 0, -1)
  redis.call("LTRIM", KEYS[1], 0, -#last - 1)
  if #kept > 0 then
    redis.call("RPUSH", KEYS[1], unpack(kept))
  end
end
redis.call("DEL", KEYS[4])
return removed
