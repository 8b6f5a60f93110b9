--[[
  Moves finished or delayed jobs to the wait list by the official script, and counts them. Jobs whose key is no hash stay:
  the official script would raise at them, or move what no worker can read.

  source     where the jobs are
  work       a temporary set for the official script, when some jobs stay
  skip       how many of the first jobs to leave out: earlier calls left them
  The other keys and arguments are those of moveJobsToWait.
  Reply      { jobs moved, 1 when more may be left, ids of jobs that stay }
]]
--@keys base events source wait paused meta active marker work
--@args limit until_ms state skip
--@official move moveJobsToWait

local found = redis.call("ZRANGEBYSCORE", source, 0, until_ms, "WITHSCORES", "LIMIT", skip, limit)
local moved, members, left = {}, {}, {}
for at = 1, #found, 2 do
  local id = found[at]
  local kind = redis.call("TYPE", base .. id).ok
  if kind == "hash" or kind == "none" then
    moved[#moved + 1] = id
    members[#members + 1], members[#members + 2] = found[at + 1], id
  else
    left[#left + 1] = id
  end
end
if #left == 0 and skip == "0" then
  move(KEYS, ARGV)
elseif #moved > 0 then
  redis.call("DEL", work)
  redis.call("ZADD", work, unpack(members))
  move({base, events, work, wait, paused, meta, active, marker}, ARGV)
  redis.call("DEL", work)
  redis.call("ZREM", source, unpack(moved))
end
return {#moved, #found == 2 * limit and 1 or 0, left}
