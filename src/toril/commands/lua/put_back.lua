--[[
  Puts a job that is in no list back where it belongs: one that has ended among those that ended, one that waits for
  children among those that do, every other among the delayed ones, due at its time or now. Workers then take it from
  there as any delayed job, with its priority, paused or not.

  KEYS   1 wait, 2 paused, 3 active, 4 prioritized, 5 delayed, 6 completed, 7 failed, 8 waiting-children, 9 meta, 10 events,
         11 marker, 12 the job
  ARGV   1 its id, 2 now (ms)
  Reply  where it is now, or "" when it was not lost
]]
local id, now = ARGV[1], tonumber(ARGV[2])
local job = redis.call("HMGET", KEYS[12], "name", "timestamp", "delay", "finishedOn", "failedReason")
if not job[1] or not job[2] then
  return ""
end
for list = 1, 3 do
  if redis.call("LPOS", KEYS[list], id) then
    return ""
  end
end
for set = 4, 8 do
  if redis.call("ZSCORE", KEYS[set], id) then
    return ""
  end
end

if tonumber(job[4] or "") then
  local ended = job[5] and KEYS[7] or KEYS[6]
  redis.call("ZADD", ended, job[4], id)
  return job[5] and "failed" or "completed"
elseif redis.call("EXISTS", KEYS[12] .. ":dependencies") == 1 then
  redis.call("ZADD", KEYS[8], now, id)
  return "waiting-children"
end

-- The next run of a scheduler has its time in its id.
local run = string.match(id, "^repeat:.*:(%d+)$")
local due = tonumber(run) or (tonumber(job[2]) or 0) + (tonumber(job[3] or "") or 0)
due = math.max(due, now)
local events = redis.call("HGET", KEYS[9], "opts.maxLenEvents") or 10000
redis.call("ZADD", KEYS[5], string.format("%.0f", due * 4096), id)
redis.call("ZADD", KEYS[11], "LT", due, "1")
redis.call("XADD", KEYS[10], "MAXLEN", "~", events, "*", "event", "delayed", "jobId", id, "delay", due)
return "delayed"
