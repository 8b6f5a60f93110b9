--[[
  Part of `add_one.lua` and `add_many.lua`: what the queue says of itself to whoever adds plain jobs. Returns how many
  events it keeps (noted down with upstream's default if nobody has), the list for new jobs, and whether a marker may
  call a worker to it.
]]
local meta = redis.call("HMGET", KEYS[3], "opts.maxLenEvents", "paused", "concurrency")
local maxEvents = meta[1]
if not maxEvents then
  maxEvents = 10000
  redis.call("HSET", KEYS[3], "opts.maxLenEvents", maxEvents)
end
if meta[2] then
  return maxEvents, KEYS[2], false
end
return maxEvents, KEYS[1], not (meta[3] and redis.call("LLEN", KEYS[7]) >= tonumber(meta[3]))
