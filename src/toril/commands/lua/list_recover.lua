--[[
  Puts back the jobs of workers that have not been seen for a while, where they are taken next, and counts the stall: not
  of jobs that had not begun, because the reply that brought them was lost or their worker died at once.

  Only for reliable pickup: each worker's jobs in hand stand in its own list. A worker that comes back later finds them
  gone, and its outcomes are refused.

  KEYS   1 list, 2 consumers, 3 totals, 4 stalls by job id
  ARGV   1 start of the workers' lists, 2 now (ms), 3 after how long (ms) a worker counts as dead, 4 how many jobs at most,
         5 the consumer that asks, 6 start of the keys with jobs that have not begun
  Reply  { the envelopes that were put back, how many dead workers are left }
]]
--@own envelope_id envelope_id
local now, limit = tonumber(ARGV[2]), tonumber(ARGV[4])
-- Whoever asks is alive. A worker that a busy machine had held up for long would take itself for dead otherwise, and
-- give away the jobs that it is running.
redis.pcall("ZADD", KEYS[2], now, ARGV[5])

-- The ids of a worker's jobs that have not begun.
local function unbegun(consumer)
  local ids = {}
  local pickups = redis.pcall("HVALS", ARGV[6] .. consumer)
  for _, packed in ipairs(pickups.err and {} or pickups) do
    for _, id in ipairs(cmsgpack.unpack(packed)) do
      ids[id] = true
    end
  end
  return ids
end

local recovered, silent = {}, now - ARGV[3]
for _, consumer in ipairs(redis.call("ZRANGEBYSCORE", KEYS[2], "-inf", silent, "LIMIT", 0, 100)) do
  local list, spared = ARGV[1] .. consumer, unbegun(consumer)
  while #recovered < limit do
    local envelope = redis.call("LMOVE", list, KEYS[1], "LEFT", "RIGHT")
    if not envelope then
      redis.call("ZREM", KEYS[2], consumer)
      redis.call("DEL", ARGV[6] .. consumer)
      break
    end
    local id = envelope_id(KEYS, ARGV, envelope)
    if id and not spared[id] then
      redis.call("HINCRBY", KEYS[4], id, 1)
    end
    recovered[#recovered + 1] = envelope
  end
end
if #recovered > 0 then
  redis.call("HINCRBY", KEYS[3], "stalled", #recovered)
end
return {recovered, redis.call("ZCOUNT", KEYS[2], "-inf", silent)}
