--[[
  Removes old jobs of a sorted set by the official script, and what was stored to follow them.

  Keys, arguments and reply are those of cleanJobsInSet. The official script looks at the first `limit` jobs.
]]
--@keys set events repeat_set
--@args base before_ms limit state
--@official clean cleanJobsInSet
--@own drop_next drop_next
local drop = drop_next(KEYS, ARGV, base, redis.call("ZRANGE", set, 0, limit - 1))
local removed = clean(KEYS, ARGV)
drop()
return removed
