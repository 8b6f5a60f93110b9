--[[
  Makes or changes a scheduler and its next job, by the official body, and as BullMQ 5.62.0 does where that body is newer.

  A scheduler that is set again with the pattern it has keeps its next run: it may lie beyond the next time that the
  pattern gives, when a run was promoted before its time and is done already. The body would go back to that time, and
  put a second job in the place of one that exists.

  KEYS   as addJobScheduler: 1 repeat, 2 delayed, 3 wait, 4 paused, 5 meta, 6 prioritized, …
  ARGV   as addJobScheduler: 1 next run (ms) or "", 2 packed options of the scheduler, 3 its id, …
  Reply  as addJobScheduler
]]
--@official upsert addJobScheduler

local function can_be_replaced(job_id)
  if redis.call("ZSCORE", KEYS[2], job_id) or redis.call("ZSCORE", KEYS[6], job_id) then
    return true
  end
  local waiting = redis.call("HEXISTS", KEYS[5], "paused") == 1 and KEYS[4] or KEYS[3]
  return redis.call("LPOS", waiting, job_id) ~= false
end

local options = cmsgpack.unpack(ARGV[2])
local next_run = redis.call("ZSCORE", KEYS[1], ARGV[3])
if next_run and options["pattern"] then
  local hash = KEYS[1] .. ":" .. ARGV[3]
  local before = redis.call("HMGET", hash, "pattern", "tz")
  local same = before[1] == options["pattern"] and (before[2] or "") == (options["tz"] or "")
  local moment = string.format("%.0f", tonumber(next_run))
  local there = same and redis.call("EXISTS", hash .. ":" .. moment) == 1
  if there and can_be_replaced("repeat:" .. ARGV[3] .. ":" .. moment) then
    ARGV[1] = moment
  end
end
return upsert(KEYS, ARGV)
