--[[
  Judges a bounded number of suspects: those in the active list without a lock go back to wait.

  One pass over the active list serves the whole step, so a step costs the length of the list plus its suspects, not
  their product. A job whose options cannot be read is treated as one that does not repeat, one whose counter cannot be
  raised as one that stalled too often: nothing in a job's hash can stop the others, which have left the list by then.

  A step that comes too late judges nobody. A server that hung between two steps has let the locks of living workers run
  out; a step that it held up would take their jobs before they can renew them.

  KEYS   1 stalled, 2 wait, 3 active, 4 meta, 5 paused, 6 marker, 7 events, 8 suspects set aside, 9 whose sweep it is
  ARGV   1 max stalled count, 2 key base, 3 how many suspects to judge, 4 token of this sweep, 5 for how long (ms) it may
         judge after this step
  Reply  { ids moved back, suspects still waiting for this sweep }
]]
if redis.call("GET", KEYS[9]) ~= ARGV[4] then
  return {{}, 0}
end
redis.call("PEXPIRE", KEYS[9], ARGV[5])
local maxStalled, base, room = tonumber(ARGV[1]), ARGV[2], tonumber(ARGV[3])
local suspects = redis.call("LPOP", KEYS[8], room) or {}
local guilty, order = {}, {}
for _, id in ipairs(suspects) do
  if string.sub(id, 1, 2) == "0:" or redis.call("EXISTS", base .. id .. ":lock") == 0 then
    guilty[id] = true
    order[#order + 1] = id
  end
end
if #order == 0 then
  return {{}, redis.call("LLEN", KEYS[8])}
end

-- Above this number one look at the whole list is cheaper than a search for each job.
local FEW = 16
-- Stands in for those who leave, so that one pass takes them all out; nobody takes it for a job, even if it stayed.
local GONE = "0:gone"
local present = {}
if #order <= FEW then
  for _, id in ipairs(order) do
    present[id] = redis.call("LREM", KEYS[3], 1, id) > 0
  end
else
  for at, id in ipairs(redis.call("LRANGE", KEYS[3], 0, -1)) do
    if guilty[id] and not present[id] then
      present[id] = true
      redis.call("LSET", KEYS[3], at - 1, GONE)
    end
  end
  redis.call("LREM", KEYS[3], 0, GONE)
end

local function repeats(options)
  local ok, decoded = pcall(cjson.decode, options)
  return ok and type(decoded) == "table" and decoded["repeat"]
end

local function target()
  local meta = redis.call("HMGET", KEYS[4], "paused", "concurrency")
  if meta[1] then
    return KEYS[5], true
  end
  return KEYS[2], meta[2] and redis.call("LLEN", KEYS[3]) >= tonumber(meta[2])
end

local moved = {}
for _, id in ipairs(order) do
  if present[id] then
    redis.call("SREM", KEYS[1], id)
  end
  if present[id] and string.sub(id, 1, 2) ~= "0:" then
    local job = base .. id
    local stalls = redis.pcall("HINCRBY", job, "stc", 1)
    local excessive = type(stalls) ~= "number" or stalls > maxStalled
    if excessive and not repeats(redis.pcall("HGET", job, "opts")) then
      redis.pcall("HSET", job, "defa", "job stalled more than allowable limit")
    end
    local list, held = target()
    redis.call("RPUSH", list, id)
    if not held then
      redis.call("ZADD", KEYS[6], 0, "0")
    end
    redis.call("XADD", KEYS[7], "*", "event", "waiting", "jobId", id, "prev", "active")
    redis.call("XADD", KEYS[7], "*", "event", "stalled", "jobId", id)
    moved[#moved + 1] = id
  end
end
return {moved, redis.call("LLEN", KEYS[8])}
