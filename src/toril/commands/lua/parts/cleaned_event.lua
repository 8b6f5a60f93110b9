--[[
  Adds the event of a clean, as upstream does once per call; a call that goes on and removes nothing adds none.
]]
--@keys events
--@args skip
local removed = ...
if removed > 0 or skip == "0" then
  redis.call("XADD", events, "*", "event", "cleaned", "count", removed)
end
