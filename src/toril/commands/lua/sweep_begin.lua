--[[
  Opens a stalled sweep: the suspects of the last sweep are set aside for judgement, and all that is active now becomes
  the new list of suspects.

  Upstream judges and marks in one call, whose cost grows with the square of the number of stalled jobs. Here the
  judgement follows in bounded calls (sweep_step); the guard, the trimming and the marking are the same.

  KEYS   1 stalled, 2 active, 3 stalled-check, 4 meta, 5 events, 6 suspects set aside, 7 whose sweep it is
  ARGV   1 now (ms), 2 sweep interval (ms), 3 token of this sweep, 4 for how long (ms) it may judge
  Reply  how many suspects wait for judgement; -1 when another worker swept within the interval and has judged them all
         (if it has not, it may have died: anybody may go on in its place)
]]
if redis.call("EXISTS", KEYS[3]) == 1 then
  local left = redis.call("LLEN", KEYS[6])
  if left > 0 then
    redis.call("SET", KEYS[7], ARGV[3], "PX", ARGV[4])
    return left
  end
  return -1
end
redis.call("SET", KEYS[3], ARGV[1], "PX", ARGV[2])
redis.call("SET", KEYS[7], ARGV[3], "PX", ARGV[4])
local maxEvents = redis.call("HGET", KEYS[4], "opts.maxLenEvents")
if not maxEvents then
  maxEvents = 10000
  redis.call("HSET", KEYS[4], "opts.maxLenEvents", maxEvents)
end
redis.call("XTRIM", KEYS[5], "MAXLEN", "~", maxEvents)

-- What an interrupted sweep left aside is judged again together with the rest. They are kept in the order in which
-- upstream would judge them: the jobs of a dead worker go back to wait in an order that anybody can predict.
local aside = {}
for _, id in ipairs(redis.call("LRANGE", KEYS[6], 0, -1)) do
  aside[id] = true
end
local suspects = {}
for _, id in ipairs(redis.call("SMEMBERS", KEYS[1])) do
  if not aside[id] then
    suspects[#suspects + 1] = id
  end
end
for from = 1, #suspects, 5000 do
  redis.call("RPUSH", KEYS[6], unpack(suspects, from, math.min(from + 4999, #suspects)))
end
redis.call("UNLINK", KEYS[1])

local active = redis.call("LRANGE", KEYS[2], 0, -1)
for from = 1, #active, 5000 do
  redis.call("SADD", KEYS[1], unpack(active, from, math.min(from + 4999, #active)))
end
return redis.call("LLEN", KEYS[6])
