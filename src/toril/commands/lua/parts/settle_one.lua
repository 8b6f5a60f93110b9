--[[
  Part of `settle.lua`: fetches one job, and settles the one before it, if that is plain. This is all that a worker with
  concurrency 1 needs. It leaves the same keys as `settle_many`, without the preparations of a batch, which cost as much
  as the work itself. Constants are texts: the server formats a number as a fraction of 17 digits, which costs as much as a
  short command.

  Returns the reply of the whole script; nothing, with nothing written, when the job or the queue is not plain.
]]
--@keys wait active events stalled delayed meta marker completed
--@args base now_ms token lock_ms worker
--@each job_id token value
local call, try = redis.call, redis.pcall
local id, result = ARGV[FIRST_ITEM + JOB_ID], ARGV[FIRST_ITEM + VALUE]
local job, lock, fields
local has_delayed = true -- perhaps

local settings = call("HMGET", meta, "paused", "concurrency", "max", "opts.maxLenEvents")
if settings[1] or settings[2] or settings[3] then
  return
end
if id then
  job = base .. id
  lock = job .. ":lock"
  fields = try("HMGET", job, "name", "parentKey", "parent", "deid", "atm")
  if not fields[1] or fields[2] or fields[3] or fields[4] or (fields[5] and not tonumber(fields[5]))
    or not settings[4] or not string.find(settings[4], "^%d+$") or call("GET", lock) ~= ARGV[FIRST_ITEM + TOKEN] then
    return
  end
  -- One call for what is rare: children, jobs marked as stalled, delayed jobs.
  local children, failed_children = job .. ":dependencies", job .. ":unsuccessful"
  has_delayed = call("EXISTS", delayed, stalled, children, failed_children) > 0
  if has_delayed and call("EXISTS", stalled, children, failed_children) > 0 then
    return
  end
end

-- The next job: the one that waits longest, unless a delayed job is due or it is a marker of BullMQ before version 5.
local next_id = call("LINDEX", wait, "-1")
if not next_id or next_id == id or string.find(next_id, "0:", 1, true) == 1
  or (has_delayed
    and #call("ZRANGEBYSCORE", delayed, "0", (now_ms + 1) * 0x1000 - 1, "LIMIT", "0", "1") > 0) then
  return
end
local next_job = base .. next_id
local hash = try("HGETALL", next_job)
local size, starts, priority = #hash, 0, "0"
for at = 1, size, 2 do
  local name = hash[at]
  if name == "ats" then
    starts = tonumber(hash[at + 1])
  elseif name == "priority" then
    priority = hash[at + 1]
  end
end
-- A job with a priority is here only when it stalled or was retried by hand, and may belong to a group that has limits.
if hash.err or not starts or priority ~= "0" then
  return
end
starts = starts == 0 and "1" or tostring(starts + 1)

if id then
  -- The first write: one that is refused, or finds nothing to remove, has changed nothing.
  local removed = try("LREM", active, "-1", id)
  if removed == 0 or type(removed) == "table" then
    return
  end
  call("DEL", lock)
  call("XTRIM", events, "MAXLEN", "~", settings[4])
  call("HSET", job, "atm", fields[5] and fields[5] + 1 or "1", "returnvalue", result, "finishedOn", now_ms)
  call("ZADD", completed, now_ms, id)
  call("XADD", events, "*", "event", "completed", "jobId", id, "returnvalue", result, "prev", "active")
end

-- A server without memory refuses this write, unless something was written before.
if type(try("RPOPLPUSH", wait, active)) == "table" then
  return
end
call("SET", next_job .. ":lock", token, "PX", lock_ms)
call("XADD", events, "*", "event", "active", "jobId", next_id, "prev", "waiting")
hash[size + 1], hash[size + 2], hash[size + 3], hash[size + 4] = "processedOn", now_ms, "ats", starts
if worker ~= "" then
  call("HSET", next_job, "processedOn", now_ms, "pb", worker, "ats", starts)
  hash[size + 5], hash[size + 6], hash[size + 7] = "pb", worker, next_id
else
  call("HSET", next_job, "processedOn", now_ms, "ats", starts)
  hash[size + 5] = next_id
end
call("ZADD", marker, "0", "0")
return {0, {hash}, 0, 0, ""}
