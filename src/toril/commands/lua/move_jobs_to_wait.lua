--[[
  Moves finished or delayed jobs to the wait list by the official script, and counts them.

  source     where the jobs are
  The other keys and arguments are those of moveJobsToWait.
  Reply      { jobs moved, 1 when more may be left }
]]
--@keys base events source wait paused meta active marker
--@args limit until_ms state
--@official move moveJobsToWait

local before = redis.call("ZCARD", source)
local more = move(KEYS, ARGV)
return {before - redis.call("ZCARD", source), more}
