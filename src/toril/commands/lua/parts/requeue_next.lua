--[[
  Adds the job that was stored to follow the active job of a deduplication id (`add_deduplicated.lua`), as BullMQ 6 does
  when that job finishes. Does nothing when none is stored.

  It is added by the official script of its kind. A parent that does not exist any more is left out.
  Returns the id of the job, or nothing.
]]
--@official add_standard addStandardJob
--@official add_delayed addDelayedJob
--@official add_prioritized addPrioritizedJob
local base, deduplication_id, now = ...
local call = redis.call
local deduplication_key, next_key = base .. "de:" .. deduplication_id, base .. "dn:" .. deduplication_id
local name, data, opts, parent, parent_data, dependencies, series, id =
  unpack(call("HMGET", next_key, "name", "data", "opts", "pk", "pd", "pdk", "rjk", "jid"))
if not opts then
  return
end

local function key(suffix)
  return base .. suffix
end
local options = cjson.decode(opts)
if parent and call("EXISTS", parent) == 0 then
  parent, parent_data, dependencies = nil, nil, nil
end
-- A table with gaps is packed as a map of numbers, which the scripts read in the same way.
local arguments = {
  [1] = base, [2] = id or "", [3] = name, [4] = tonumber(now), [5] = parent or nil, [6] = dependencies or nil,
  [7] = parent_data and cjson.decode(parent_data) or nil, [8] = series or nil, [9] = deduplication_key,
}
local args = {cmsgpack.pack(arguments), data, cmsgpack.pack(options)}
call("DEL", deduplication_key)
local reply
if (options["delay"] or 0) ~= 0 then
  reply = add_delayed({key("marker"), key("meta"), key("id"), key("delayed"), key("completed"), key("events")}, args)
elseif (options["priority"] or 0) > 0 then
  reply = add_prioritized({key("marker"), key("meta"), key("id"), key("prioritized"), key("delayed"), key("completed"),
    key("active"), key("events"), key("pc")}, args)
else
  reply = add_standard({key("wait"), key("paused"), key("meta"), key("id"), key("completed"), key("delayed"),
    key("active"), key("events"), key("marker")}, args)
end
if options["de"] and options["de"]["keepLastIfActive"] then
  call("PERSIST", deduplication_key)
end
call("DEL", next_key)
return reply
