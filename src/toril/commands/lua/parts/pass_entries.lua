--[[
  Moves the consumer group's position past entries that it has not fetched, so that its lag stays exact.

  ...  what `group_info` returned, the id of the last entry, how many entries
]]
--@keys stream
--@args consumer_group
local info, last, number = ...
if info["entries-read"] then
  redis.call("XGROUP", "SETID", stream, consumer_group, last, "ENTRIESREAD", info["entries-read"] + number)
else
  redis.call("XGROUP", "SETID", stream, consumer_group, last)
end
