--[[
  Removes consumers that nobody needs: gone for long, or leaving now, and in both cases with nothing pending.

  XGROUP DELCONSUMER drops what a consumer has pending; looking and removing in one call makes that impossible.

  KEYS   1 stream
  ARGV   1 group, 2 idle time (ms) after which a consumer counts as gone, 3 the consumer that leaves now, or ""
  Reply  the names that were removed
]]
--@own named_fields named_fields
local removed = {}
local consumers = redis.pcall("XINFO", "CONSUMERS", KEYS[1], ARGV[1])
if consumers.err then
  return removed
end
for _, flat in ipairs(consumers) do
  local info = named_fields(KEYS, ARGV, flat)
  local gone = info["name"] == ARGV[3] or info["idle"] > tonumber(ARGV[2])
  if gone and info["pending"] == 0 then
    redis.call("XGROUP", "DELCONSUMER", KEYS[1], ARGV[1], info["name"])
    removed[#removed + 1] = info["name"]
  end
end
return removed
