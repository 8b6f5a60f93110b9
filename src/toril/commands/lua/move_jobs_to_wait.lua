--[[
  Sends finished or delayed jobs to wait, by the official body, and counts them.

  KEYS, ARGV   as moveJobsToWait (KEYS 3: where the jobs are)
  Reply        { jobs moved, 1 when more may be left }
]]
--@official move moveJobsToWait

local before = redis.call("ZCARD", KEYS[3])
local more = move(KEYS, ARGV)
return {before - redis.call("ZCARD", KEYS[3]), more}
