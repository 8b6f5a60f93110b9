--[[
  Part of the scripts that place jobs of groups: how virtual times become ticks, which are priorities, and back.

  A tick is a virtual time less the offset of the queue. While jobs are renumbered for a higher offset, in the order of
  their scores, those up to the cursor have the new offset, and those behind it the old one: the order is the same at
  every step.

  Returns { clock, offset, next_offset, cursor, shift = by how much ticks were lowered last, to_tick(time), to_time(tick) }.
]]
local base = ...
local MAX_TICK = 0x200000 - 1

local found = redis.call("HMGET", base .. "toril:group-clock", "clock", "offset", "next_offset", "cursor", "shift")
local ticks = {
  clock = tonumber(found[1]) or 0, offset = tonumber(found[2]) or 0, next_offset = tonumber(found[3]),
  cursor = tonumber(found[4]) or 0, shift = tonumber(found[5]),
}

-- Up to this virtual time jobs have the new offset.
local function frontier()
  return math.floor(ticks.cursor / 0x100000000) + ticks.offset
end

function ticks.to_tick(time)
  local is_new = ticks.next_offset and time <= frontier()
  return math.max(1, math.min(time - (is_new and ticks.next_offset or ticks.offset), MAX_TICK))
end

function ticks.to_time(tick)
  local is_new = ticks.next_offset and tick <= frontier() - ticks.next_offset
  return tick + (is_new and ticks.next_offset or ticks.offset)
end

return ticks
