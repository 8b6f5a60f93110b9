--[[
  Part of `add_one.lua` and `add_many.lua`: reads the settings of the queue that plain jobs need. Returns the maximal
  length of the event stream (writing upstream's default if there is none), the list for new jobs, and whether a marker
  may wake a worker.
]]
--@keys wait paused meta active
local settings = redis.call("HMGET", meta, "opts.maxLenEvents", "paused", "concurrency")
local max_events = settings[1]
if not max_events then
  max_events = "10000"
  redis.call("HSET", meta, "opts.maxLenEvents", max_events)
end
if settings[2] then
  return max_events, paused, false
end
return max_events, wait, not (settings[3] and redis.call("LLEN", active) >= tonumber(settings[3]))
