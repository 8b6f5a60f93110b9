--[[
  Part of `add_grouped.lua`: the tick of the next job of a group, which is its priority: where it stands in the order
  that serves groups in turns.

  The jobs of a group are 16 virtual times apart, divided by its weight. The clock is the highest virtual time of a grouped
  job that was first in the queue when a job was added: a group that was idle begins there, and gets no credit for its
  idle time. When no prioritized job is left and no group holds jobs, nothing of this matters any more, and it begins
  again at 0.

  A tick is a virtual time less the offset of the queue (`parts/group_ticks.lua`), and below BullMQ's highest priority.
  Before ticks reach it, waiting jobs are renumbered for a higher offset, some with every add (`parts/renumber.lua`).
  Beyond it, jobs are served in the order in which they were added.

  Returns the tick, and the virtual time.
]]
--@own group_ticks group_ticks
--@own renumber renumber
local base, group = ...
local TIMES_PER_JOB = 16
-- Groups that the clock has passed are removed in bounded steps, more than one add can create.
local REMOVED_AT_ONCE = 50

local call = redis.call
local prioritized = base .. "prioritized"
local groups, clock_key = base .. "toril:groups", base .. "toril:group-clock"
local ticks = group_ticks(KEYS, ARGV, base)
local head = call("ZRANGE", prioritized, 0, 0, "WITHSCORES")
local last
if #head == 0 and call("EXISTS", base .. "toril:group-holding") == 0 then
  call("UNLINK", groups, clock_key)
  ticks.clock, ticks.offset, ticks.next_offset, ticks.shift = 0, 0, nil, nil
else
  local options = head[1] and redis.pcall("HGET", base .. head[1], "opts")
  local is_grouped = type(options) == "string" and string.find(options, '"group":{', 1, true)
  local first = is_grouped and ticks.to_time(math.floor(head[2] / 0x100000000)) or 0
  if first > ticks.clock then
    ticks.clock = first
    call("HSET", clock_key, "clock", first)
    local passed = call("ZRANGEBYSCORE", groups, "-inf", first, "LIMIT", 0, REMOVED_AT_ONCE)
    if #passed > 0 then
      call("ZREM", groups, unpack(passed))
    end
  end
  last = call("ZSCORE", groups, group)
end
local weight = tonumber(call("HGET", base .. "toril:group-weights", group)) or 1
if not (weight > 0) then -- what another program stored may be no weight, or no number at all
  weight = 1
end
local step = math.max(1, math.floor(TIMES_PER_JOB / weight + 0.5))
local time = math.max(ticks.clock, tonumber(last) or 0) + step
local tick = ticks.to_tick(time)
renumber(KEYS, ARGV, base, ticks, tick)
tick = ticks.to_tick(time)
return tick, math.min(time, ticks.to_time(tick))
