--[[
  Checks a bounded number of suspects: those in the active list without a lock return to wait.

  One pass over the active list serves the whole step, so a step costs the length of the list plus its suspects, not their
  product. A job whose options cannot be read is treated as one that does not repeat, one whose counter cannot be raised
  as one that stalled too often: no job's hash can stop the others, which have left the list by then.

  A step that comes too late checks nothing. While a server hangs between two steps, the locks of running workers expire;
  a delayed step would take their jobs before the workers can renew the locks.

  suspects     the jobs that are to be checked
  sweep        the token of the current sweep
  limit        how many suspects to check
  token        of this sweep
  grace_ms  for how long this sweep may check after this step
  Reply        { ids moved back, suspects that are left to this sweep }
]]
--@keys stalled wait active meta paused marker events suspects sweep
--@args max_stalled base limit token grace_ms
if redis.call("GET", sweep) ~= token then
  return {{}, 0}
end
redis.call("PEXPIRE", sweep, grace_ms)
local max_stalls = tonumber(max_stalled)
local unlocked, order = {}, {}
for _, id in ipairs(redis.call("LPOP", suspects, tonumber(limit)) or {}) do
  if string.sub(id, 1, 2) == "0:" or redis.call("EXISTS", base .. id .. ":lock") == 0 then
    unlocked[id] = true
    order[#order + 1] = id
  end
end
if #order == 0 then
  return {{}, redis.call("LLEN", suspects)}
end

-- Above this number one pass over the whole list is cheaper than a search for each job.
local FEW = 16
-- Replaces the jobs that leave, so that one pass removes them all; no client takes it for a job, even if it stayed.
local GONE = "0:gone"
local present = {}
if #order <= FEW then
  for _, id in ipairs(order) do
    present[id] = redis.call("LREM", active, 1, id) > 0
  end
else
  for at, id in ipairs(redis.call("LRANGE", active, 0, -1)) do
    if unlocked[id] and not present[id] then
      present[id] = true
      redis.call("LSET", active, at - 1, GONE)
    end
  end
  redis.call("LREM", active, 0, GONE)
end

local function is_repeated(options)
  local ok, decoded = pcall(cjson.decode, options)
  return ok and type(decoded) == "table" and decoded["repeat"]
end

-- The list for jobs that return, and whether no worker may fetch from it now.
local function target()
  local settings = redis.call("HMGET", meta, "paused", "concurrency")
  if settings[1] then
    return paused, true
  end
  return wait, settings[2] and redis.call("LLEN", active) >= tonumber(settings[2])
end

local moved = {}
for _, id in ipairs(order) do
  if present[id] then
    redis.call("SREM", stalled, id)
  end
  if present[id] and string.sub(id, 1, 2) ~= "0:" then
    local job = base .. id
    local stalls = redis.pcall("HINCRBY", job, "stc", 1)
    local excessive = type(stalls) ~= "number" or stalls > max_stalls
    if excessive and not is_repeated(redis.pcall("HGET", job, "opts")) then
      redis.pcall("HSET", job, "defa", "job stalled more than allowable limit")
    end
    local list, held = target()
    redis.call("RPUSH", list, id)
    if not held then
      redis.call("ZADD", marker, 0, "0")
    end
    redis.call("XADD", events, "*", "event", "waiting", "jobId", id, "prev", "active")
    redis.call("XADD", events, "*", "event", "stalled", "jobId", id)
    moved[#moved + 1] = id
  end
end
return {moved, redis.call("LLEN", suspects)}
