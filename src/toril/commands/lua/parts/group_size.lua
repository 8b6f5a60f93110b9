--[[
  Part of `add_grouped.lua` and `add_flow.lua`: whether a group has room for another job, by its maximum size.

  The jobs of such a group that wait, delayed and held ones included, are kept in a sorted set, in the order of their adds.
  A worker of toril removes what it fetches. What other clients fetched or removed is found when the group seems full: it
  is neither prioritized nor delayed any more.

  others  how many jobs of the same group are added before this one and are not counted yet, or nothing
  Returns nothing for a group without a maximum, the code of a group that is full, or the key of the sorted set.
]]
local base, group, others = ...
local GROUP_FULL = -103
-- Entries that one add checks: more than one add can create.
local CHECKED_AT_ONCE = 50

local call = redis.call
local prioritized, delayed = base .. "prioritized", base .. "delayed"
local found = call("HMGET", base .. "toril:group-limits", group, "")
local text = found[1] or found[2]
if not text or not string.find(text, '"size"', 1, true) then
  return
end
local ok, limits = pcall(cjson.decode, text)
local size = ok and type(limits) == "table" and tonumber(limits["size"])
if not size then
  return
end
local waiting = base .. "toril:group:waiting:" .. group
size = size - (others or 0)
if call("ZCARD", waiting) >= size then
  for _, id in ipairs(call("ZRANGE", waiting, 0, CHECKED_AT_ONCE - 1)) do
    if not call("ZSCORE", prioritized, id) and not call("ZSCORE", delayed, id) then
      call("ZREM", waiting, id)
    end
  end
  if call("ZCARD", waiting) >= size then
    return GROUP_FULL
  end
end
return waiting
