--[[
  Puts the jobs of workers that have not renewed their locks for a while back to the end of the list from which jobs are
  fetched, and counts the stall. Jobs that had not begun are not counted: the reply that carried them was lost, or their
  worker ended at once.

  Only for reliable pickup: the jobs of each worker are in its own processing list. A worker that returns later finds its
  jobs gone, and its outcomes are refused.

  stalls           number of stalls by job id
  processing_base  start of the keys of processing lists
  silence_ms       a worker that was silent for so long counts as dead
  limit            how many jobs at most
  consumer         the worker that sends this call
  unbegun_base     start of the keys with jobs that have not begun
  Reply            { the envelopes that were put back, how many dead workers are left }
]]
--@keys jobs consumers totals stalls
--@args processing_base now_ms silence_ms limit consumer unbegun_base
--@own envelope_id envelope_id
local now, max_jobs = tonumber(now_ms), tonumber(limit)
-- The sender is alive. A worker that a busy machine has delayed for long would otherwise count itself as dead, and put
-- the jobs back that it is running.
redis.pcall("ZADD", consumers, now, consumer)

-- The ids of a worker's jobs that have not begun.
local function unbegun_ids(worker)
  local ids = {}
  local pickups = redis.pcall("HVALS", unbegun_base .. worker)
  for _, packed in ipairs(pickups.err and {} or pickups) do
    for _, id in ipairs(cmsgpack.unpack(packed)) do
      ids[id] = true
    end
  end
  return ids
end

local recovered, last_seen = {}, now - silence_ms
for _, worker in ipairs(redis.call("ZRANGEBYSCORE", consumers, "-inf", last_seen, "LIMIT", 0, 100)) do
  local processing, unbegun = processing_base .. worker, unbegun_ids(worker)
  while #recovered < max_jobs do
    local envelope = redis.call("LMOVE", processing, jobs, "LEFT", "RIGHT")
    if not envelope then
      redis.call("ZREM", consumers, worker)
      redis.call("DEL", unbegun_base .. worker)
      break
    end
    local id = envelope_id(KEYS, ARGV, envelope)
    if id and not unbegun[id] then
      redis.call("HINCRBY", stalls, id, 1)
    end
    recovered[#recovered + 1] = envelope
  end
end
if #recovered > 0 then
  redis.call("HINCRBY", totals, "stalled", #recovered)
end
return {recovered, redis.call("ZCOUNT", consumers, "-inf", last_seen)}
