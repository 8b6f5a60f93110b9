--[[
  Puts a job that is in no list or set back where it belongs: a job that has ended into completed or failed, one that
  waits for children into waiting-children, every other into delayed, due at its time or now. Workers fetch it from there
  as any delayed job, with its priority, paused or not.

  job    the job's hash
  Reply  the state it has now, or "" when it was in a list or set
]]
--@keys wait paused active prioritized delayed completed failed waiting_children meta events marker job
--@args job_id now_ms
local fields = redis.call("HMGET", job, "name", "timestamp", "delay", "finishedOn", "failedReason")
if not fields[1] or not fields[2] then
  return ""
end
for _, list in ipairs({wait, paused, active}) do
  if redis.call("LPOS", list, job_id) then
    return ""
  end
end
for _, set in ipairs({prioritized, delayed, completed, failed, waiting_children}) do
  if redis.call("ZSCORE", set, job_id) then
    return ""
  end
end

if tonumber(fields[4] or "") then
  redis.call("ZADD", fields[5] and failed or completed, fields[4], job_id)
  return fields[5] and "failed" or "completed"
elseif redis.call("EXISTS", job .. ":dependencies") == 1 then
  redis.call("ZADD", waiting_children, tonumber(now_ms), job_id)
  return "waiting-children"
end

-- The id of a scheduler's next job holds its time.
local scheduled = string.match(job_id, "^repeat:.*:(%d+)$")
local due = tonumber(scheduled) or (tonumber(fields[2]) or 0) + (tonumber(fields[3] or "") or 0)
due = math.max(due, tonumber(now_ms))
local max_events = redis.call("HGET", meta, "opts.maxLenEvents") or 10000
redis.call("ZADD", delayed, string.format("%.0f", due * 4096), job_id)
redis.call("ZADD", marker, "LT", due, "1")
redis.call("XADD", events, "MAXLEN", "~", max_events, "*", "event", "delayed", "jobId", job_id, "delay", due)
return "delayed"
