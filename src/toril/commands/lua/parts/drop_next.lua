--[[
  Part of the scripts that remove jobs: what was stored to follow a removed job (`add_deduplicated.lua`) is dropped.

  Called with the ids of the jobs before they are removed; returns the function to call afterwards.
]]
local base, ids = ...
local call = redis.call
local stored = {}
for _, id in ipairs(ids) do
  local deduplication_id = redis.pcall("HGET", base .. id, "deid")
  if type(deduplication_id) == "string" and call("EXISTS", base .. "dn:" .. deduplication_id) == 1 then
    stored[#stored + 1] = deduplication_id
  end
end
return function()
  for _, deduplication_id in ipairs(stored) do
    if call("EXISTS", base .. "de:" .. deduplication_id) == 0 then
      call("DEL", base .. "dn:" .. deduplication_id)
    end
  end
end
