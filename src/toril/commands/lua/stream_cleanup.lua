--[[
  Removes consumers that have nothing pending and were idle for long, or that leave now.

  XGROUP DELCONSUMER drops the pending entries of a consumer; looking and removing in one call makes that impossible.

  idle_ms  a consumer that was idle for longer is removed
  leaving  the consumer that leaves now, or ""
  Reply    the names that were removed
]]
--@keys stream
--@args consumer_group idle_ms leaving
--@own named_fields named_fields
local removed = {}
local consumers = redis.pcall("XINFO", "CONSUMERS", stream, consumer_group)
if consumers.err then
  return removed
end
for _, flat in ipairs(consumers) do
  local info = named_fields(KEYS, ARGV, flat)
  local unused = info["name"] == leaving or info["idle"] > tonumber(idle_ms)
  if unused and info["pending"] == 0 then
    redis.call("XGROUP", "DELCONSUMER", stream, consumer_group, info["name"])
    removed[#removed + 1] = info["name"]
  end
end
return removed
