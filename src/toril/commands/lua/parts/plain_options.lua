--[[
  Part of `add_jobs.lua` and `enqueue_once.lua`: packed options as { JSON, delay, push command }, or false when they are
  not plain. Jobs of one batch mostly have the same options: each is encoded once and kept in `encoded`.
]]
local encoded, packed = ...
local known = encoded[packed]
if known == nil then
  local options = cmsgpack.unpack(packed)
  known = not options["de"] and {cjson.encode(options), options["delay"] or "0", options["lifo"] and "RPUSH" or "LPUSH"}
  encoded[packed] = known
end
return known
