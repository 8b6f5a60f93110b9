--[[
  Part of `group_tick.lua`: renumbers waiting jobs of groups for a higher offset, some with every add, before their ticks
  reach BullMQ's highest priority.

  Jobs are renumbered in the order of their scores: their order stays the same at every step, and plain BullMQ workers
  may fetch meanwhile. A job that was active or delayed comes back with its old tick, behind all others; such jobs are
  found at the end of the queue by later adds, one by each. A job without a group keeps its priority.

  tick   that of the job that is added
]]
local base, ticks, tick = ...
-- Renumbering begins at this tick, if it lowers ticks by so much: a job is moved once in that many.
local BEGIN_AT, WORTHWHILE = 0x100000, 0x80000
-- More jobs than an add can create, so that renumbering ends.
local MOVED_AT_ONCE = 50
local SCORES_PER_TICK = 0x100000000

local call = redis.call
local prioritized = base .. "prioritized"
local clock_key = base .. "toril:group-clock"

local function move(id, score, lowered, highest)
  local options = redis.pcall("HGET", base .. id, "opts")
  if type(options) ~= "string" or not string.find(options, '"group":{', 1, true) then
    return
  end
  local lower = math.max(1, math.min(math.floor(score / SCORES_PER_TICK) - lowered, highest))
  call("ZADD", prioritized, lower * SCORES_PER_TICK + score % SCORES_PER_TICK, id)
  call("HSET", base .. id, "priority", lower)
end

if not ticks.next_offset and tick > BEGIN_AT and ticks.clock - 1 - ticks.offset >= WORTHWHILE then
  ticks.next_offset, ticks.cursor = ticks.clock - 1, 0
  call("HSET", clock_key, "next_offset", ticks.next_offset, "cursor", 0)
end

if ticks.next_offset then
  local after = "(" .. string.format("%.17g", ticks.cursor)
  local page = call("ZRANGEBYSCORE", prioritized, after, "+inf", "WITHSCORES", "LIMIT", 0, MOVED_AT_ONCE)
  local lowered = ticks.next_offset - ticks.offset
  for at = 1, #page, 2 do
    move(page[at], tonumber(page[at + 1]), lowered, math.huge)
  end
  if #page == 2 * MOVED_AT_ONCE then
    ticks.cursor = tonumber(page[#page])
    call("HSET", clock_key, "cursor", string.format("%.17g", ticks.cursor))
  else
    ticks.offset, ticks.next_offset, ticks.shift = ticks.next_offset, nil, lowered
    call("HSET", clock_key, "offset", ticks.offset, "shift", lowered)
    call("HDEL", clock_key, "next_offset", "cursor")
  end
elseif ticks.shift then
  local highest = tonumber(call("ZRANGE", base .. "toril:groups", -1, -1, "WITHSCORES")[2]) or ticks.clock
  local tail = call("ZRANGE", prioritized, -1, -1, "WITHSCORES")
  local limit = math.max(1, highest - ticks.offset)
  if tail[1] and math.floor(tail[2] / SCORES_PER_TICK) > limit then
    move(tail[1], tonumber(tail[2]), ticks.shift, limit)
  end
end
